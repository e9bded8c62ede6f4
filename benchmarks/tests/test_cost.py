"""`python -m benchmarks cost`: what it does is what it says, it goes on where it was, and shapes are as published."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cost.computed_share import ScatteredShare
from benchmarks.cost.decoding import OURS, STOCK, Decoding, decode_table
from benchmarks.cost.forming import form_job, true_chunks
from benchmarks.cost.linking import LANES, lane_seconds, link_bars, rows_table
from benchmarks.cost.page import write_page
from benchmarks.cost.placing import PlaceCase, PlaceRing, place_table
from benchmarks.cost.rates import DeviceRates
from benchmarks.cost.run import QUICK, STAGES, CostExtent, CostOptions, command_of
from benchmarks.cost.shapes import FOLDER, shape_names
from benchmarks.cost.stored import HELD, LOADED, stored_table
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace, Seconds, interleaved
from benchmarks.tests.running import benchmarks, refused
from emblema.models.load import load_model
from tests.families.cases import CASES

ONCE = Pace(1, 0.0)
RESULTS = Path(__file__).parents[2] / "docs" / "results"
ROW_BYTES = {"qwen2.5-vl-3b": 36_864, "qwen2.5-vl-7b": 57_344, "qwen3-vl-8b": 147_456, "kimi-k2.5-slice": 4 * 1152}
"""Bytes of a row's KV in bfloat16: layers times heads times width, both slots; the latent and its key for MLA."""


@pytest.fixture(scope="module")
def subject() -> CostSubject:
    return CostSubject("reference", load_model("reference", device="cpu")[0], 0)


def tables_in(folder: Path) -> list[str]:
    return list(json.loads((folder / "cost.json").read_text())["runs"]["reference"]["tables"])


def test_a_run_is_written_and_goes_on_where_it_was(tmp_path: Path) -> None:
    first = benchmarks("cost", "--quick", "--plain", "--only", "rates,rows", "--report", str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert tables_in(tmp_path) == ["rates", "rows"]
    second = benchmarks("cost", "--quick", "--plain", "--only", "rates,load", "--report", str(tmp_path))
    assert second.returncode == 0 and "reference: rates\n" not in second.stdout
    assert tables_in(tmp_path) == ["rates", "rows", "load"]
    assert "--shape reference" in (tmp_path / "cost.md").read_text()


def test_the_committed_page_is_what_its_figures_make(tmp_path: Path) -> None:
    runs = json.loads((RESULTS / "cost.json").read_text())["runs"]
    assert write_page(runs, tmp_path).read_text() == (RESULTS / "cost.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {path.name for path in RESULTS.glob("cost-*.png")}


def test_a_page_says_how_it_was_measured() -> None:
    options = CostOptions("137m", "cpu", "float32", 3)
    assert command_of(options) == "python -m benchmarks cost --shape 137m --device cpu --seed 3"
    shorter = replace(options, extent=CostExtent(most=2048, pace=Pace(5, 2.5)))
    assert command_of(shorter).endswith(" --most 2048 --rounds 5 --seconds 2.5")
    assert command_of(replace(options, extent=QUICK)).endswith(" --quick")


def test_what_cannot_be_measured_is_refused() -> None:
    assert "--shape 'gpt'" in refused("cost", "--shape", "gpt")
    assert "--device 'cuda:9'" in refused("cost", "--device", "cuda:9")
    assert "--dtype 'int8'" in refused("cost", "--dtype", "int8")
    assert "speed" in refused("cost", "--only", "speed")


def test_actions_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    actions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = interleaved(actions, torch.device("cpu"), Pace(2, 60.0))
    assert "".join(order) == "abc" + "abc" + "bca" and found.count == 2
    own = interleaved({"a": lambda: 2.0, "b": lambda: 4.0}, torch.device("cpu"), Pace(5, 60.0))
    assert own.ratio("a", "b").value == 0.5 and own.least(("a", "b")) == "a"


@pytest.mark.parametrize("rank", [0, 8])
def test_placing_writes_what_the_executor_writes(subject: CostSubject, rank: int) -> None:
    ring = PlaceRing(subject, PlaceCase(60, 2, rank), payload=1)
    assert ring.check()
    job, table, _ = next(iter(ring.sets))
    linked = subject.engine.session.linker.executor.run(job)
    for layer in range(len(table.layouts)):
        ours, whole = table.read(layer), linked.table.read(layer)
        assert torch.equal(ours.keys[:, 8:68], whole.keys[:, 8:68])
        assert torch.equal(ours.values[:, 8:68], whole.values[:, 8:68])


def test_a_place_row_has_its_bytes(subject: CostSubject) -> None:
    (row,) = place_table(subject, (PlaceCase(64, 1, 0),), ONCE, payload=1).records
    assert row["MB"] == pytest.approx(2 * 64 * subject.row_bytes / 1e6)
    assert not place_table(subject, (PlaceCase(64, 1, 0),), ONCE, payload=1).bars


def test_every_method_is_measured_beside_transformers(subject: CostSubject) -> None:
    found, moved = lane_seconds(subject, 96, 2, LANES, ONCE)
    # Two chunks of 24 rows; text is computed, and all but the question is known under `prefix`.
    taken = 2 * 48 * subject.row_bytes
    assert moved["blind"] == moved["full-reuse"] == taken < moved["patch-32"] and moved["prefix"] > taken
    assert set(LANES) < set(found.rounds) and min(min(rounds) for rounds in found.rounds.values()) > 0
    assert len(subject.engine.store) == 0


def test_stock_prefill_is_the_models_own(subject: CostSubject) -> None:
    from transformers import DynamicCache

    with subject.prompt(96, 2) as prompt:
        stock = subject.stock_forward(subject.embeds(prompt.prompt), prompt.prompt.positions, DynamicCache())
        ours = subject.engine.prefill(prompt.parts, "full", template=False).logits
    assert (stock - ours).abs().max() < 1e-3


def test_rows_are_computed_by_their_share(subject: CostSubject) -> None:
    rows = rows_table(subject, 96, ONCE).records
    assert rows[0]["rows computed"] == 48 and rows[-1]["rows computed"] == 96
    assert rows[0]["scattered ms"] is None and isinstance(rows[3]["scattered ms"], float)


def test_scattered_rows_are_a_share_of_each_chunk(subject: CostSubject) -> None:
    with subject.prompt(248, 2) as prompt:
        plan = ScatteredShare(0.12).plan(prompt.prompt, subject.knowledge())
    plan.validate()
    computed = plan.sources()[0] == 0
    for segment, _ in prompt.prompt.chunk_segments:
        own = computed[segment.start : segment.stop]
        assert own.sum() == 12 and not own[:12].all()
    assert computed.sum() == 24 + 48


def test_the_bar_of_a_first_token_is_of_2048_rows(subject: CostSubject) -> None:
    seconds = Seconds({"patch-25%": (0.05,), "full": (1.0,)})
    (bar,) = link_bars(subject, 2048, 8, seconds, "full")
    assert (bar.value, bar.bound, bar.holds) == (0.05, 0.06, True)
    assert not link_bars(subject, 2048, 1, seconds, "full")


def test_decoding_and_its_peer_leave_their_rows_as_they_were(subject: CostSubject) -> None:
    decoding = Decoding(subject, 40, 3)
    for _ in range(2):
        assert decoding.ours() > 0 and decoding.stock() > 0
        assert decoding.table.length == 40 and decoding.cache.get_seq_length() == 40
    assert OURS != STOCK


def test_decoding_is_measured_without_a_static_cache_that_fails(
    subject: CostSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Decoding) -> float:
        raise RuntimeError("no compiler\nmore of it")

    monkeypatch.setattr(Decoding, "static", fail)
    table = decode_table(subject, (20,), 2, DeviceRates(1e9, 1e9), ONCE, static=True)
    assert [row["who"] for row in table.records] == [OURS, STOCK]
    assert "could not be measured (RuntimeError: no compiler)" in table.note


def test_a_formed_patch_is_of_the_rows_in_context(subject: CostSubject) -> None:
    with subject.prompt(96, 2) as kept:
        prompt = true_chunks(subject, kept)
        patch = form_job(subject, prompt, 24).form()
    assert patch.rank == 24 and all(layer is not None for layer in patch.layers)
    deepest = patch.layers[-1]
    assert deepest is not None and float(deepest.values.dense(1).abs().max()) > 1e-3


def test_chunks_on_disk_are_read_from_there(subject: CostSubject, tmp_path: Path) -> None:
    table = stored_table(subject, (10, 20), 96, 2, tmp_path, ONCE, 0)
    assert [row["chunks"] for row in table.records] == [HELD, HELD, LOADED, LOADED] and not table.bars


@pytest.mark.parametrize("name", ["qwen3_vl", "kimi_k25"])
def test_other_families_are_measured_too(name: str) -> None:
    model, _ = CASES[name].build(0)
    subject = CostSubject(name, model, 0)
    found, _ = lane_seconds(subject, 96, 2, ("blind", "patch-32"), ONCE)
    assert found.median("blind") > 0 and PlaceRing(subject, PlaceCase(40, 1, 4), payload=1).check()
    assert Decoding(subject, 20, 2).stock() > 0
    prepared, tokens = subject.media(20)
    assert subject.adapter.encode(prepared).tokens == tokens


def test_shapes_are_as_published() -> None:
    from transformers import CONFIG_MAPPING

    assert set(ROW_BYTES) | {"reference", "137m"} == set(shape_names())
    for name, size in ROW_BYTES.items():
        written = json.loads((FOLDER / f"{name}.json").read_text())
        text = CONFIG_MAPPING[written["model_type"]].from_dict(written).text_config
        if name.startswith("kimi"):
            row = text.kv_lora_rank + text.qk_rope_head_dim
        else:
            width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            row = 2 * text.num_key_value_heads * width
        assert text.num_hidden_layers * row * 2 == size, name


@pytest.mark.slow
def test_every_stage_is_measured_quickly(tmp_path: Path) -> None:
    done = benchmarks("cost", "--quick", "--plain", "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert tables_in(tmp_path) == list(STAGES)
    assert (tmp_path / "cost-roofline.png").is_file() and QUICK.most == 96
