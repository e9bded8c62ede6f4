"""Packed rows in a backend's own forward: positions, slots and attention as in their prompt, or failed."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.noting import QuestionAttention
from emblema.vllm import attention, internals
from emblema.vllm.packed_rows import NotedQuestion, PackedForward, PackedRows, packed_prompt
from emblema.vllm.pages import LayerPages, Pages
from emblema.vllm.step_metadata import PlacedFeature, SidePrompt

SIZE, LAYERS, HEADS, GROUPS, WIDTH, ROWS, VOCABULARY = 4, 3, 4, 2, 8, 23, 11
BLOCKS = [5, 2, 7, 1, 4, 3]
QUESTION = (17, ROWS)
FIRST = 4
"""Rows before it were there already."""
BEFORE, BEHIND = 3, 2
"""Rows of other requests in the batch."""


class Backend:
    """Stands for an attention backend: it takes what vLLM gives one, and writes a number everywhere."""

    alibi_slopes, logits_soft_cap = None, 0

    def __init__(self, scale: float) -> None:
        self.num_heads, self.scale, self.calls = HEADS, scale, 0

    def forward(self, layer, query, key, value, cache, metadata, output) -> Tensor:
        self.calls += 1
        return output.fill_(0.5)


class Model(nn.Module):
    """Gives its hidden rows as they came, and logits of them; its layers run meanwhile."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.run = run

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        self.run()
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


@dataclass
class Step:
    """What a forward made, and what it was given, by rows of the batch."""

    hidden: Tensor
    positions: Tensor
    slots: Tensor
    outputs: list[Tensor]


@dataclass
class Bench:
    layers: list
    pages: Pages
    held: list[LayerRows]
    queries: Tensor
    monkeypatch: pytest.MonkeyPatch
    skip: int = -1

    def packing(self) -> PackedForward:
        self.model = Model(self.run)
        return PackedForward(self.model, self.layers, lambda: self.pages, SIZE)

    def pack(self, *rows: int, question: NotedQuestion | None = None, blocks: list[int] = BLOCKS) -> PackedRows:
        numbers = torch.tensor(rows)
        return PackedRows(blocks, numbers, FIRST, torch.stack([numbers, 2 * numbers, 3 * numbers]), question)

    def run(self) -> None:
        for number, layer in enumerate(self.layers):
            own = self.queries[number, self.rows]
            filled = torch.randn(BEFORE, HEADS, WIDTH), own, torch.randn(BEHIND, HEADS, WIDTH)
            query = torch.cat(filled).flatten(1)
            output = torch.zeros_like(query)
            if number != self.skip:
                layer.impl.forward(layer, query, None, None, None, self.metadata, output=output)
            self.outputs.append(output.view(-1, HEADS, WIDTH))

    def step(self, packing: PackedForward, *packs: PackedRows) -> Step:
        """A forward of the rows of a pack, with another request before and one behind."""
        packing.begin_step(packs)
        self.rows, self.outputs = packs[0].rows, []
        count = len(self.rows)
        table = torch.tensor([[9, 8, 6, 0, 0, 0], BLOCKS, [10, 0, 0, 0, 0, 0]], dtype=torch.int32)
        starts = torch.tensor([0, BEFORE, count, BEHIND]).cumsum(0).to(torch.int32)
        ends = torch.tensor([9, FIRST + count, 2])
        self.metadata = SimpleNamespace(query_start_loc=starts, seq_lens=ends, block_table=table)
        rows = BEFORE + count + BEHIND
        positions, slots = torch.zeros(3, rows, dtype=torch.int64), torch.full((rows,), -1)
        context = SimpleNamespace(
            attn_metadata={"0": self.metadata, "1": self.metadata}, slot_mapping={"0": slots, "1": slots}
        )
        self.monkeypatch.setattr(attention, "get_forward_context", lambda: context)
        hidden = self.model(torch.randn(rows, WIDTH), positions=positions)
        return Step(hidden, positions, slots, self.outputs)

    def attended(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """What a row attends [heads, width], and its weights [heads, rows], by plain sums."""
        held = self.held[layer]
        keys, values = (part.repeat_interleave(HEADS // GROUPS, 0)[:, : row + 1] for part in (held.keys, held.values))
        weights = (torch.einsum("hd,hnd->hn", self.queries[layer, row], keys) * 0.3).softmax(-1)
        return torch.einsum("hn,hnd->hd", weights, values), weights


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    torch.manual_seed(0)
    layout = LayerLayout((GROUPS, WIDTH), (GROUPS, WIDTH), None)
    caches = [torch.randn(12, SIZE, 2, GROUPS, WIDTH) for _ in range(LAYERS)]

    def write(cache: Tensor):
        def own(keys: Tensor, values: Tensor, slots: Tensor) -> None:
            cache[slots // SIZE, slots % SIZE, 0], cache[slots // SIZE, slots % SIZE, 1] = keys, values

        return own

    pages = Pages([LayerPages(cache, SIZE, write(cache)) for cache in caches], [layout] * LAYERS, SIZE, torch.float32)
    held = [LayerRows(*torch.randn(2, GROUPS, ROWS, WIDTH)) for _ in range(LAYERS)]
    for layer, rows in enumerate(held):
        pages.write(layer, pages.slots(BLOCKS, ROWS), rows)
    layers = [SimpleNamespace(impl=Backend(0.3), sliding_window=None, has_sink=False) for _ in range(LAYERS)]
    return Bench(layers, pages, held, torch.randn(LAYERS, ROWS, HEADS, WIDTH), monkeypatch)


def test_packed_rows_are_computed_as_what_they_are_and_no_others_are_touched(bench: Bench) -> None:
    packing, rows = bench.packing(), (5, 6, 11, 19, 22)
    pack = bench.pack(*rows)
    made = bench.step(packing, pack)
    own = slice(BEFORE, BEFORE + len(rows))
    assert packing.is_complete(pack)
    assert torch.equal(made.positions[:, own], torch.tensor([1, 2, 3])[:, None] * torch.tensor(rows))
    assert made.slots[own].tolist() == [BLOCKS[row // SIZE] * SIZE + row % SIZE for row in rows]
    for other in (slice(0, BEFORE), slice(own.stop, None)):
        assert not made.positions[:, other].any() and (made.slots[other] == -1).all()
        assert all((output[other] == 0.5).all() for output in made.outputs)
    for layer, output in enumerate(made.outputs):
        wanted = torch.stack([bench.attended(layer, row)[0] for row in rows])
        torch.testing.assert_close(output[own], wanted, atol=1e-6, rtol=1e-5)


def test_more_rows_than_are_worked_out_at_once_are_all_computed(bench: Bench) -> None:
    bench.monkeypatch.setattr("emblema.vllm.packed_rows.LEAST_WEIGHED", 2)
    bench.monkeypatch.setattr("emblema.vllm.packed_rows.WEIGHTS", 1)
    packing, rows = bench.packing(), (5, 9, 17, 18, 19, 20, 22)
    question = NotedQuestion((18, ROWS), LAYERS, torch.device("cpu"))
    pack = bench.pack(*rows, question=question)
    made = bench.step(packing, pack)
    for layer, output in enumerate(made.outputs):
        wanted = torch.stack([bench.attended(layer, row)[0] for row in rows])
        torch.testing.assert_close(output[BEFORE : BEFORE + len(rows)], wanted, atol=1e-6, rtol=1e-5)
    # Row 21 did not run.
    assert question.readings is None


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize("parts", [[(6, *range(*QUESTION))], [(6, 9, 17), (18, 19, 20, 21), (22,)]])
def test_readings_are_those_of_the_whole_question(bench: Bench, parts: list[tuple[int, ...]], in_runs: bool) -> None:
    if in_runs:
        # The backend's kernel writes what they attend, so nobody else does.
        bench.monkeypatch.setattr("emblema.vllm.packed_rows.in_runs", lambda *given: {"split": True})
    packing = bench.packing()
    question = NotedQuestion(QUESTION, packing.layers, torch.device("cpu"))
    for part in parts:
        assert question.readings is None
        pack = bench.pack(*part, question=question)
        made = bench.step(packing, pack)
        assert packing.is_complete(pack) and hasattr(bench.metadata, "split") == in_runs
        assert all(bool((output == 0.5).all()) == in_runs for output in made.outputs)
        packing.end_step()
    own = QuestionAttention(QUESTION[1] - QUESTION[0], ROWS, torch.device("cpu"))
    for layer in range(LAYERS):
        weights = torch.zeros(HEADS, QUESTION[1] - QUESTION[0], ROWS)
        for place, row in enumerate(range(*QUESTION)):
            weights[:, place, : row + 1] = bench.attended(layer, row)[1]
        own.add(layer, torch.arange(QUESTION[1] - QUESTION[0]), weights)
    found = question.readings
    assert found is not None
    torch.testing.assert_close(found.last, own.readings.last, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.largest, own.readings.largest, atol=1e-6, rtol=0)


def test_rows_that_a_layer_did_not_attend_are_not_complete(bench: Bench) -> None:
    packing = bench.packing()
    bench.skip = 1
    pack = bench.pack(*range(*QUESTION), question=NotedQuestion(QUESTION, packing.layers, torch.device("cpu")))
    bench.step(packing, pack)
    assert not pack.failed and not packing.is_complete(pack) and packing.last_logits(pack) is None
    assert pack.question is not None and pack.question.readings is None


def test_the_last_row_gives_the_logits(bench: Bench) -> None:
    packing, pack = bench.packing(), bench.pack(7, 9, 22)
    made = bench.step(packing, pack)
    logits = packing.last_logits(pack)
    assert logits is not None
    assert torch.equal(logits, bench.model.compute_logits(made.hidden[BEFORE + 2 : BEFORE + 3])[0])
    packing.end_step()
    assert packing.last_logits(pack) is None


def test_what_cannot_be_computed_fails_those_rows_alone(bench: Bench) -> None:
    packing = bench.packing()
    fine, strange = bench.pack(7, 9, 22), bench.pack(7, 9, 22, blocks=[6] * 6)
    other = replace_positions(bench.pack(7, 9, 22), torch.zeros(2, 3, dtype=torch.int64))
    bench.step(packing, fine, strange, other)
    assert strange.failed and packing.last_logits(strange) is None and other.failed
    assert packing.is_complete(fine) and packing.last_logits(fine) is not None


def test_rows_whose_batch_cannot_be_split_fail(bench: Bench) -> None:
    def refuse(*given: Any) -> None:
        raise EmblemaError("no")

    bench.monkeypatch.setattr("emblema.vllm.packed_rows.in_runs", refuse)
    packing, pack = bench.packing(), bench.pack(7, 9, 22)
    bench.step(packing, pack)
    assert pack.failed and packing.last_logits(pack) is None


def replace_positions(pack: PackedRows, positions: Tensor) -> PackedRows:
    pack.positions = positions
    return pack


@pytest.mark.parametrize("name, value", [("sliding_window", 8), ("has_sink", True)])
def test_layers_that_attend_otherwise_are_refused(bench: Bench, name: str, value: Any) -> None:
    setattr(bench.layers[1], name, value)
    packing, pack = bench.packing(), bench.pack(7, 9, 22)
    bench.step(packing, pack)
    assert pack.failed
    bench.layers[1].impl.alibi_slopes = [1.0]
    assert "weights that fall with distance" in (attention.unlike_attention(bench.layers[1]) or "")


def test_a_packed_prompt_has_its_rows_tokens_and_what_the_encoder_made_of_them() -> None:
    embedded = torch.tensor([False, True, True, False, True])
    features = [
        PlacedFeature("a", 4, 3, None, "A", None),
        PlacedFeature("b", 9, 2, None, "B", None),
        PlacedFeature("c", 12, 5, embedded, "C", None),
    ]
    prompt = SidePrompt(list(range(100, 120)), tuple(features), (1, 2))
    made = {
        name: torch.arange(rows)[:, None] + start for name, rows, start in (("a", 3, 0), ("b", 2, 10), ("c", 3, 20))
    }
    packed, outputs = packed_prompt(prompt, made, "n", 2, torch.tensor([3, 5, 6, 8, 12, 13, 16, 18]))
    assert packed.token_ids == [100, 101, 103, 105, 106, 108, 112, 113, 116, 118, 0] and packed.blocks == (1, 2)
    first, second = packed.features
    assert (first.start, first.rows) == (3, 2) and first.filled is not None and first.filled.all()
    assert (second.start, second.rows, second.known_as) == (6, 3, "C")
    assert second.filled is not None and second.filled.tolist() == [False, True, True]
    assert outputs[first.name].flatten().tolist() == [1, 2] and outputs[second.name].flatten().tolist() == [20, 22]
    assert len(outputs) == 2


def test_whole_forwards_in_graphs_and_other_servers_without_a_hook_are_refused() -> None:
    from vllm.config import CUDAGraphMode

    def config(**more: Any) -> Any:
        given = {
            "graphs": CUDAGraphMode.FULL_AND_PIECEWISE, "pipeline": 1, "split": False, "encodings": "ec", "mla": False,
            "pages": "auto", "both": False, **more,
        }  # fmt: skip
        return SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode=given["graphs"]),
            parallel_config=SimpleNamespace(
                pipeline_parallel_size=given["pipeline"], data_parallel_size=1, use_ubatching=given["split"]
            ),
            ec_transfer_config=given["encodings"],
            model_config=SimpleNamespace(
                use_mla=given["mla"], dtype=torch.bfloat16, is_moe=False, is_mm_prefix_lm=given["both"]
            ),
            cache_config=SimpleNamespace(cache_dtype=given["pages"]),
        )

    assert internals.unfit_to_read(config()) is None
    assert internals.unfit_to_read(config(graphs=CUDAGraphMode.PIECEWISE)) is None
    assert "replayed" in (internals.unfit_to_read(config(graphs=CUDAGraphMode.FULL)) or "")
    for more in (
        {"pipeline": 2},
        {"split": True},
        {"encodings": None},
        {"mla": True},
        {"pages": "fp8"},
        {"both": True},
    ):
        assert internals.unfit_to_read(config(**more)) is not None, more
