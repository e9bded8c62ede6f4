"""What questions attend, noted from a backend's own forward: as attention over all rows says, or not at all."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.attention import QuestionAttention
from emblema.vllm import internals
from emblema.vllm.pages import LayerPages, Pages
from emblema.vllm.question_notes import NotedQuestion, QuestionNotes, WatchedRun

SIZE, LAYERS, HEADS, GROUPS, WIDTH, ROWS, VOCABULARY = 4, 3, 4, 2, 8, 23, 11
BLOCKS = [5, 2, 7, 1, 4, 3]
QUESTION = (17, ROWS)


class Backend:
    """Stands for an attention backend: it takes what vLLM gives one, and computes nothing."""

    def __init__(self, scale: float) -> None:
        self.num_heads, self.scale, self.calls = HEADS, scale, 0

    def forward(self, layer, query, key, value, cache, metadata, output=None) -> Tensor:
        self.calls += 1
        return query


class Model(nn.Module):
    """Gives its hidden rows as they came, and logits of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


@dataclass
class Bench:
    layers: list
    model: Model
    pages: Pages
    keys: list[Tensor]
    queries: Tensor

    def step(
        self, runs: list[tuple[int, int]], notes: QuestionNotes, watched: list[WatchedRun], skip: int = -1
    ) -> Tensor:
        """A forward of runs of the prompt's rows, with another request before and one behind."""
        notes.begin_step(watched)
        lengths = [3, *(stop - start for start, stop in runs), 2]
        ends = [9, *(stop for _, stop in runs), 2]
        table = torch.tensor([[9, 8, 6, 0, 0, 0], *[BLOCKS] * len(runs), [10, 0, 0, 0, 0, 0]], dtype=torch.int32)
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        metadata = SimpleNamespace(query_start_loc=starts, seq_lens=torch.tensor(ends), block_table=table)
        own = torch.cat([self.queries[:, start:stop] for start, stop in runs], dim=1)
        for number, layer in enumerate(self.layers):
            if number != skip:
                filled = torch.randn(lengths[0], HEADS, WIDTH), own[number], torch.randn(lengths[-1], HEADS, WIDTH)
                layer.impl.forward(layer, torch.cat(filled), None, None, None, metadata, output=None)
        return self.model(torch.randn(sum(lengths), WIDTH))


@pytest.fixture
def bench() -> Bench:
    torch.manual_seed(0)
    layout = LayerLayout((GROUPS, WIDTH), (GROUPS, WIDTH), None)
    caches = [torch.randn(12, SIZE, 2, GROUPS, WIDTH) for _ in range(LAYERS)]

    def write(cache: Tensor):
        def own(keys: Tensor, values: Tensor, slots: Tensor) -> None:
            cache[slots // SIZE, slots % SIZE, 0], cache[slots // SIZE, slots % SIZE, 1] = keys, values

        return own

    pages = Pages([LayerPages(cache, SIZE, write(cache)) for cache in caches], [layout] * LAYERS, SIZE, torch.float32)
    keys = [torch.randn(GROUPS, ROWS, WIDTH) for _ in range(LAYERS)]
    for layer, own in enumerate(keys):
        pages.write(layer, pages.slots(BLOCKS, ROWS), LayerRows(own, torch.full_like(own, float("nan"))))
    layers = [SimpleNamespace(impl=Backend(0.3)) for _ in range(LAYERS)]
    return Bench(layers, Model(), pages, keys, torch.randn(LAYERS, ROWS, HEADS, WIDTH))


def wanted(bench: Bench) -> QuestionAttention:
    """The same from all of the question at once, by the embedded engine's own sums."""
    attention = QuestionAttention(QUESTION[1] - QUESTION[0], ROWS, torch.device("cpu"))
    hidden = torch.arange(ROWS)[None] > torch.arange(*QUESTION)[:, None]
    for layer in range(LAYERS):
        keys = bench.keys[layer].repeat_interleave(HEADS // GROUPS, 0)
        scores = torch.einsum("qhd,hnd->hqn", bench.queries[layer, slice(*QUESTION)], keys) * 0.3
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        attention.add(layer, torch.arange(QUESTION[1] - QUESTION[0]), weights)
    return attention


@pytest.mark.parametrize("parts", [[QUESTION], [(17, 18), (18, 22), (22, 23)]])
def test_readings_are_those_of_the_whole_question(bench: Bench, parts: list[tuple[int, int]]) -> None:
    notes = QuestionNotes(bench.model, bench.layers, lambda: bench.pages, SIZE)
    question = NotedQuestion(QUESTION, notes.layers, torch.device("cpu"))
    for part in parts:
        assert question.readings is None
        run = WatchedRun(BLOCKS, part, question)
        bench.step([(2, 5), part], notes, [run])
        assert not run.failed
        notes.end_step()
    found, own = question.readings, wanted(bench).readings
    assert found is not None
    torch.testing.assert_close(found.last, own.last, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.largest, own.largest, atol=1e-6, rtol=0)


def test_a_layer_that_was_not_seen_leaves_no_readings(bench: Bench) -> None:
    notes = QuestionNotes(bench.model, bench.layers, lambda: bench.pages, SIZE)
    question = NotedQuestion(QUESTION, notes.layers, torch.device("cpu"))
    bench.step([QUESTION], notes, [WatchedRun(BLOCKS, QUESTION, question)], skip=1)
    assert question.readings is None


def test_the_last_row_gives_the_logits(bench: Bench) -> None:
    notes = QuestionNotes(bench.model, bench.layers, lambda: bench.pages, SIZE)
    run = WatchedRun(BLOCKS, QUESTION)
    hidden = bench.step([(4, 6), QUESTION], notes, [run])
    logits = notes.last_logits(run)
    assert logits is not None
    # Three rows of another request, two of this one, then the question.
    assert torch.equal(logits, bench.model.compute_logits(hidden[10:11])[0])
    notes.end_step()
    assert notes.last_logits(run) is None


def test_what_cannot_be_noted_fails_that_run_alone(bench: Bench) -> None:
    notes = QuestionNotes(bench.model, bench.layers, lambda: bench.pages, SIZE)
    question, other = (NotedQuestion(QUESTION, notes.layers, torch.device("cpu")) for _ in range(2))
    strange, fine = WatchedRun([6] * 6, QUESTION, other), WatchedRun(BLOCKS, QUESTION, question)
    bench.step([QUESTION], notes, [strange, fine])
    assert strange.failed and notes.last_logits(strange) is None
    assert not fine.failed and question.readings is not None and other.readings is None


def test_nothing_is_watched_any_more_once_closed(bench: Bench) -> None:
    notes = QuestionNotes(bench.model, bench.layers, lambda: bench.pages, SIZE)
    question = NotedQuestion(QUESTION, notes.layers, torch.device("cpu"))
    notes.close()
    bench.step([QUESTION], notes, [WatchedRun(BLOCKS, QUESTION, question)])
    assert question.readings is None
    assert all(layer.impl.calls == 1 and "forward" not in vars(layer.impl) for layer in bench.layers)


def test_whole_forwards_in_graphs_and_other_servers_without_a_hook_are_refused() -> None:
    from vllm.config import CUDAGraphMode

    def config(**more: Any) -> Any:
        given = {
            "graphs": CUDAGraphMode.FULL_AND_PIECEWISE, "pipeline": 1, "split": False, "encodings": "ec", "mla": False,
            "pages": "auto", **more,
        }  # fmt: skip
        return SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode=given["graphs"]),
            parallel_config=SimpleNamespace(
                pipeline_parallel_size=given["pipeline"], data_parallel_size=1, use_ubatching=given["split"]
            ),
            ec_transfer_config=given["encodings"],
            model_config=SimpleNamespace(use_mla=given["mla"], dtype=torch.bfloat16, is_moe=False),
            cache_config=SimpleNamespace(cache_dtype=given["pages"]),
        )

    assert internals.unfit_to_read(config()) is None
    assert internals.unfit_to_read(config(graphs=CUDAGraphMode.PIECEWISE)) is None
    assert "replayed" in (internals.unfit_to_read(config(graphs=CUDAGraphMode.FULL)) or "")
    for more in ({"pipeline": 2}, {"split": True}, {"encodings": None}, {"mla": True}, {"pages": "fp8"}):
        assert internals.unfit_to_read(config(**more)) is not None, more
