"""`python -m benchmarks cost`: what it does is what it says, it goes on where it was, and shapes are as published."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.cost.decoding import Decoding
from benchmarks.cost.forming import form_job
from benchmarks.cost.linking import ScatteredShare
from benchmarks.cost.placing import PlaceCase, PlaceRing
from benchmarks.cost.run import CostRun
from benchmarks.cost.shapes import FOLDER, shape_names
from benchmarks.cost.states import LANES, sizes_table, states_table
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace, interleaved
from benchmarks.tests.running import benchmarks
from emblema.models.load import load_model
from tests.families.cases import CASES

ROW_BYTES = {"qwen2.5-vl-3b": 36_864, "qwen2.5-vl-7b": 57_344, "qwen3-vl-8b": 147_456, "kimi-k2.5-slice": 4 * 1152}
"""Bytes of a row's KV in bfloat16: layers times heads times width, both slots; the latent and its key for MLA."""


@pytest.fixture(scope="module")
def subject() -> CostSubject:
    return CostSubject("reference", load_model("reference", device="cpu")[0], 0)


def test_every_stage_is_measured_and_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    quick = ("cost", "--quick", "--plain", "--report", str(tmp_path))
    first = benchmarks(*quick, "--only", "rates")
    assert first.returncode == 0, first.stderr
    second = benchmarks(*quick)
    assert second.returncode == 0 and "reference: rates: " not in second.stdout, second.stdout
    assert list(json.loads((tmp_path / "cost.json").read_text())["runs"]["reference"]["tables"]) == list(CostRun.stages)
    page = (tmp_path / "cost.md").read_text()
    assert "cost --shape reference --device cpu --seed 0 --quick" in page and (tmp_path / "cost-roofline.png").is_file()


def test_actions_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    actions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = interleaved(actions, torch.device("cpu"), Pace(2, 60.0))
    assert "".join(order) == "abc" + "abc" + "bca" and len(found.rounds["a"]) == 2
    own = interleaved({"a": lambda: 2.0, "b": lambda: 4.0}, torch.device("cpu"), Pace(5, 60.0))
    assert own.ratio("a", "b").value == 0.5 and own.least(("a", "b")) == "a"


@pytest.mark.parametrize("rank", [0, 8])
def test_placing_writes_what_the_executor_writes(subject: CostSubject, rank: int) -> None:
    ring = PlaceRing(subject, PlaceCase(60, 2, rank), payload=1)
    ring.place()
    job, table, _ = next(iter(ring.sets))
    linked = subject.engine.session.linker.executor.run(job)
    for layer in range(len(table.layouts)):
        ours, whole = table.read(layer), linked.table.read(layer)
        assert torch.equal(ours.keys[:, 8:68], whole.keys[:, 8:68])
        assert torch.equal(ours.values[:, 8:68], whole.values[:, 8:68])


def test_stock_prefill_is_the_models_own(subject: CostSubject) -> None:
    from transformers import DynamicCache

    with subject.prompt(96, 2) as prompt:
        stock = subject.stock_forward(subject.embeds(prompt.prompt), prompt.prompt.positions, DynamicCache())
        ours = subject.engine.prefill(prompt.parts, "full", template=False).logits
    assert (stock - ours).abs().max() < 1e-3
    assert len(subject.engine.store) == 0


def test_scattered_rows_are_a_share_of_each_chunk(subject: CostSubject) -> None:
    with subject.prompt(248, 2) as prompt:
        plan = ScatteredShare(0.12).plan(prompt.prompt, subject.knowledge())
    plan.validate()
    computed = plan.sources()[0] == 0
    shares = [computed[segment.start : segment.stop] for segment, _ in prompt.prompt.chunk_segments]
    assert all(own.sum() == 12 and not own[:12].all() for own in shares) and computed.sum() == 24 + 48


def test_a_formed_patch_is_of_the_rows_in_context(subject: CostSubject) -> None:
    with subject.prompt(96, 2) as kept:
        patch = form_job(subject, kept, 24).form()
    assert patch is not None and patch.rank == 24 and all(layer is not None for layer in patch.layers)
    assert float(patch.layers[-1].values.dense(1).abs().max()) > 1e-3  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["qwen3_vl", "kimi_k25"])
def test_other_families_are_measured_too(name: str) -> None:
    subject = CostSubject(name, CASES[name].build(0)[0], 0)
    with subject.prompt(96, 2, patches=["patch-32"]) as prompt:
        assert min(subject.link(prompt, lane) for lane in ("blind", "patch-32")) > 0
    PlaceRing(subject, PlaceCase(40, 1, 4), payload=1).place()
    decoding = Decoding(subject, 20, 3)
    for _ in range(2):
        assert decoding.ours() > 0 and decoding.stock() > 0
        assert decoding.table.length == 20 == decoding.cache.get_seq_length(), "rows are left as they were"
    prepared = subject.media(20)
    assert subject.adapter.encode(prepared).tokens == len(prepared.token_ids)


def test_shapes_are_as_published() -> None:
    from transformers import CONFIG_MAPPING

    assert set(ROW_BYTES) | {"reference", "137m", "qwen3.5-135m"} == set(shape_names())
    for name, size in ROW_BYTES.items():
        written = json.loads((FOLDER / f"{name}.json").read_text())
        text = CONFIG_MAPPING[written["model_type"]].from_dict(written).text_config
        if name.startswith("kimi"):
            row = text.kv_lora_rank + text.qk_rope_head_dim
        else:
            width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            row = 2 * text.num_key_value_heads * width
        assert text.num_hidden_layers * row * 2 == size, name


def test_layers_with_states_are_measured_where_there_are_any(subject: CostSubject) -> None:
    assert states_table(subject, Pace(1, 0.0), 96).rows == ()
    model, _ = CASES["qwen3_5"].build(0)
    found = states_table(CostSubject("qwen3_5", model, 0), Pace(1, 0.0), 400)
    assert [row[0] for row in found.rows] == ["full", *LANES]


def test_chunks_at_published_shapes_take_what_the_layouts_say() -> None:
    table = sizes_table()
    found = {(row[0], row[1]): row[2:] for row in table.rows}
    kv, rows, maps, first = found["Qwen3.5-9B", 1000][:4]
    assert (kv, rows) == (32.768, 396.288)
    assert maps == 24 * (32 * 128 * (256 + 10) + 2 * 9 * 8256) / 1e6 and first == 75
