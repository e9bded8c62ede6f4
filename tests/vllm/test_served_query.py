"""`query-R%` inside vLLM: the embedded engine's choices and answers within a step's budgets, or plain prefill's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.tasks.building import ItemDraw
from benchmarks.tasks.page_tasks import two_page
from emblema import Engine
from emblema.served.staging import StagedRows
from emblema.session.requests import LinkRequest
from emblema.vllm import readings
from emblema.vllm.packed_rows import NotedQuestion, PackedForward
from emblema.vllm.step_rewriter import StepRewriter
from tests.vllm.models import Given
from tests.vllm.plans import Read
from tests.vllm.row_meter import RowMeter
from tests.vllm.zeroed_rows import zeroing

FURTHER = (pytest.param(name, marks=pytest.mark.nightly) for name in ("qwen3-vl", "llava-onevision"))
SERVED = ("qwen2.5-vl", "reference", *FURTHER)
STRATEGY = "query-12%"
STANDS, FALLS_BACK = {"strategy": STRATEGY, "margin": 0}, {"strategy": STRATEGY, "margin": 1}


@dataclass
class Seen:
    """What went through a server: rows and batch of each step, and the rows that were chosen for each request."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    chosen: list[list[int]] = field(default_factory=list)

    def clear(self) -> None:
        self.steps.clear()
        self.chosen.clear()

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.steps)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    rewrite, choose = StepRewriter.rewrite, readings.chosen_rows

    def counted(own: StepRewriter, output: Any, step: Any) -> Any:
        made = rewrite(own, output, step)
        seen.steps.append((made.total_num_scheduled_tokens, len(made.num_scheduled_tokens)))
        return made

    def noted(again: Any, scores: Tensor) -> Tensor:
        rows = choose(again, scores)
        seen.chosen.append(rows.tolist())
        return rows

    monkeypatch.setattr(StepRewriter, "rewrite", counted)
    monkeypatch.setattr(readings, "chosen_rows", noted)
    return seen


@dataclass
class Wanted:
    """What the embedded engine makes of a prompt."""

    logits: Tensor
    chosen: list[int]
    full: Tensor
    blind: Tensor
    rows: int


def wanted(engine: Engine, given: Any, after: int = 0) -> Wanted:
    """Return what the embedded engine makes of a prompt whose first `after` rows are there, exact."""
    prompt = engine.prompt(given.parts([engine.add(picture) for picture in given.pictures]), template=False)

    def linked(strategy: Any) -> Any:
        return engine.session.link(LinkRequest(prompt, strategy)).linked

    def logits(table: Any) -> Tensor:
        return torch.log_softmax(table.logits, -1)

    read = linked(Read(STRATEGY, after))
    chosen = list(read.trace.selected[-1])
    text, question = len(given.texts[0]) + sum(map(len, given.texts[1:-1])), len(given.texts[-1])
    rows = text + 2 * question + len(chosen) + 1
    return Wanted(logits(read), chosen, logits(linked("full")), logits(linked("blind")), rows)


def learn(served: Any, given: Any) -> None:
    """Have every picture of a prompt stored."""
    served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    served.settle()
    served.forget_prefixes()


def error(answer: Any, logits: Tensor) -> float:
    return float((answer.logits - logits).abs().max())


@dataclass
class Subject:
    """A served model whose pictures are known, and the embedded engine on it."""

    served: Any
    engine: Engine
    prompt: Any
    bar: float

    def missed(self, given: Any, answer: Any, own: Wanted, after: int = 0) -> str | None:
        """Hold an answer to the embedded engine's; return how it misses the bar.

        It fails unless vLLM's is within the bar of float64, so that the other side's rounding decides.
        """
        off = error(answer, own.logits)
        if off > self.bar:
            precise = wanted(Engine.load(self.prompt.subject.folder, anchor=None, dtype=torch.float64), given, after)
            sides = [float((logits.double() - precise.logits).abs().max()) for logits in (answer.logits, own.logits)]
            found = f"{off:.2e} against {self.bar:.0e}; from float64: vLLM {sides[0]:.2e}, transformers {sides[1]:.2e}"
            if sides[0] > self.bar or precise.chosen != own.chosen:
                pytest.fail(found)
            return found
        return None

    def ask(self, given: Any, options: dict[str, Any], **more: Any) -> Any:
        self.served.forget_prefixes()
        return self.served.ask(given.token_ids, given.pictures, options, **more)


@pytest.fixture(scope="module", params=SERVED)
def known(request, bench, subjects, tmp_path_factory) -> Subject:
    subject = subjects(request.param)
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)
    prompt = subject.prompt(4, seed=3)
    learn(served, prompt)
    return Subject(
        served, Engine.load(subject.folder, anchor=None), prompt, 2e-5 if request.param == "reference" else 1e-5
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1), (3, 1)])
def test_choices_and_answers_are_the_embedded_engines(known, seen, order, cell, record_property) -> None:
    given = known.prompt.only(*order)
    own = wanted(known.engine, given)
    known.served.forget_prefixes()
    seen.clear()
    answer = known.ask(given, STANDS)
    assert seen.chosen == [own.chosen]
    record_property(f"{order}", error(answer, own.logits))
    assert seen.rows == own.rows
    assert answer.report["strategy"] == STRATEGY and 0 <= answer.report["margin"] <= 1
    media = sum(
        chunk.tokens
        for _, chunk in known.engine.prompt(
            given.parts([known.engine.add(picture) for picture in given.pictures]), template=False
        ).chunk_segments
    )
    assert answer.report["linked_tokens"] == answer.cached == media - len(own.chosen)
    # Otherwise nothing was shown.
    assert min(error(answer, own.blind), error(answer, own.full)) > 100 * known.bar
    limits = known.served.llm.llm_engine.vllm_config.scheduler_config
    assert max(rows for rows, _ in seen.steps) <= limits.max_num_batched_tokens
    assert max(batch for _, batch in seen.steps) <= limits.max_num_seqs
    missed = known.missed(given, answer, own)
    if missed:
        pytest.xfail(f"missed: {missed}")


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 2))])
def test_choices_for_real_questions_are_the_embedded_engines(known, seen, number, record_property) -> None:
    if known.prompt.subject.name != "reference":
        pytest.skip("random models know no questions")
    item = two_page(ItemDraw("two-page", 11, number))
    pages = [media.content for media in item.media]

    def tokens(text: str) -> list[int]:
        return known.engine.prompt([text], template=False).token_ids.tolist()

    asks = [" ".join(part for part in each.parts if isinstance(part, str)) for each in item.questions]
    prompts = [Given(known.prompt.subject, [tokens("here are two pages ."), [], tokens(ask)], pages) for ask in asks]
    learn(known.served, prompts[0])
    missed: list[str] = []
    for given in prompts:
        own = wanted(known.engine, given)
        seen.clear()
        answer = known.ask(given, STANDS)
        assert seen.chosen == [own.chosen] and seen.rows == own.rows
        record_property(f"{number}", error(answer, own.logits))
        missed += filter(None, [known.missed(given, answer, own)])
    if missed:
        pytest.xfail(f"missed by {len(missed)} of {len(prompts)}: {'; '.join(missed)}")


def test_an_unsure_answer_is_plain_prefills(known, seen) -> None:
    given = known.prompt.only(1, 3, 0)
    plain = known.ask(given, {"strategy": "full"})
    answer = known.ask(given, FALLS_BACK)
    assert torch.equal(answer.logits, plain.logits)
    assert answer.report["strategy"] == "plain" and "likeliest first tokens" in answer.report["remark"]
    # Nothing that was read stays behind.
    after = known.served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert torch.equal(after.logits, plain.logits)
    known.ask(given, STANDS)
    after = known.served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert torch.equal(after.logits, plain.logits)


def test_decoding_goes_on_over_what_was_read(known) -> None:
    given = known.prompt.only(2, 1)
    answer = known.ask(given, STANDS, tokens=5)
    assert len(answer.tokens) == 5 and answer.report["linked_tokens"] > 0
    assert torch.equal(answer.logits, known.ask(given, STANDS).logits)


def test_several_at_once_are_answered_as_alone(known, seen) -> None:
    orders = [(0, 1, 2, 3), (2, 0), (3, 1, 0), (1, 2), (0, 3, 1)]
    prompts = [known.prompt.only(*order) for order in orders]
    alone = [known.ask(given, STANDS) for given in prompts]
    known.served.forget_prefixes()
    together = known.served.ask_all([(given.token_ids, given.pictures) for given in prompts], STANDS)
    for one, other in zip(alone, together, strict=True):
        assert other.report["linked_tokens"] == one.report["linked_tokens"] > 0
        assert error(other, one.logits) <= known.bar


def test_what_follows_an_exact_prefix_is_read(known) -> None:
    """Pictures that vLLM's prefix cache has whole are not asked for what the encoder made of them."""
    before, given = known.prompt.only(0, 1, 2), known.prompt.only(0, 1, 3, 2)
    known.ask(before, {"strategy": "full"})
    meter = RowMeter(known.served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker)
    try:
        answer = known.served.ask(given.token_ids, given.pictures, STANDS)
    finally:
        meter.detach()
    (ready,) = (first for rows in meter.requests.values() for first in rows.read)
    prompt = known.engine.prompt(given.parts([known.engine.add(each) for each in given.pictures]), template=False)
    assert ready >= prompt.chunk_segments[0][0].stop, "nothing of the encoder's is spared"
    assert answer.report["remark"] is None and answer.report["linked_tokens"] > 0
    if missed := known.missed(given, answer, wanted(known.engine, given, ready), ready):
        pytest.xfail(missed)


@pytest.fixture
def disabled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def disable() -> None:
        monkeypatch.setattr(PackedForward, "_attend", lambda *given: None)

    return disable


def test_without_the_hook_nothing_is_answered_by_reading(known, disabled) -> None:
    given = known.prompt.only(0, 2, 3)
    plain = known.ask(given, {"strategy": "full"})
    known.ask(given, STANDS)
    disabled()
    answer = known.ask(given, STANDS)
    assert torch.equal(answer.logits, plain.logits) and answer.report["linked_tokens"] == 0
    assert answer.report["remark"] == readings.LOST


@pytest.mark.parametrize("name", ["add", "readings"])
def test_an_error_of_the_reader_is_a_loss(known, monkeypatch, name) -> None:
    given = known.prompt.only(3, 2, 0)
    plain = known.ask(given, {"strategy": "full"})

    def broken(*given: Any) -> Any:
        raise RuntimeError("broken for the test")

    monkeypatch.setattr(NotedQuestion, name, broken if name == "add" else property(broken))
    answer = known.ask(given, STANDS)
    assert torch.equal(answer.logits, plain.logits) and answer.report["remark"] == readings.LOST


def test_an_error_while_rows_are_placed_or_logits_are_seen_is_a_loss(known, monkeypatch) -> None:
    given = known.prompt.only(3, 0, 1)
    plain = known.ask(given, {"strategy": "full"})
    with monkeypatch.context() as patch:
        patch.setattr(PackedForward, "last_logits", lambda own, pack: None)
        answer = known.ask(given, STANDS)
        assert torch.equal(answer.logits, plain.logits) and answer.report["remark"] == readings.LOST
    with monkeypatch.context() as patch:
        patch.setattr(known.served.kv_worker.stager, "get", lambda request_id, wait=0.0: None)
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        # As on a worker that has read nothing yet.
        patch.setattr(get_kv_transfer_group()._question_runs._positions, "_axes", 0)
        answer = known.ask(given, STANDS)
        assert torch.equal(answer.logits, plain.logits)
    assert known.ask(given, STANDS).report["linked_tokens"] > 0


def test_values_of_zero_change_the_answer(known, monkeypatch) -> None:
    given = known.prompt.only(1, 0, 3)
    own = known.ask(given, STANDS)
    monkeypatch.setattr(StagedRows, "write", zeroing("values"))
    assert error(known.ask(given, STANDS), own.logits) > 100 * known.bar


def test_a_margin_that_is_none_is_refused(known) -> None:
    given = known.prompt.only(1, 0)
    for margin in (2, -0.5, "much", True):
        answer = known.ask(given, {"strategy": STRATEGY, "margin": margin})
        assert answer.report["linked_tokens"] == 0 and "from 0 to 1" in answer.report["remark"]


@pytest.fixture(scope="module")
def small(bench, subjects, tmp_path_factory) -> Iterator[Subject]:
    """A server of 20 pages, six places and 96 tokens a step."""
    subject = subjects("qwen2.5-vl")
    served = bench.serve(
        subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary, max_num_seqs=6,
        num_gpu_blocks_override=20, max_model_len=576, max_num_batched_tokens=96, enable_chunked_prefill=True,
    )  # fmt: skip
    prompt = subject.prompt(4, seed=3)
    learn(served, prompt)
    return Subject(served, Engine.load(subject.folder, anchor=None), prompt, 1e-5)


def free(served: Any) -> int:
    return served.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def test_few_pages_and_places_are_no_deadlock(small, seen) -> None:
    small.served.settle()
    before = free(small.served)
    orders = [(0, 1), (2, 0), (3, 1), (1, 2), (0, 3), (3, 2), (1, 0), (2, 3)]
    prompts = [small.prompt.only(*order) for order in orders]
    alone = [small.ask(given, STANDS) for given in prompts]
    small.served.forget_prefixes()
    seen.clear()
    together = small.served.ask_all([(given.token_ids, given.pictures) for given in prompts], STANDS)
    for one, other in zip(alone, together, strict=True):
        assert other.report["linked_tokens"] == one.report["linked_tokens"] > 0
        assert error(other, one.logits) <= small.bar
    assert max(batch for _, batch in seen.steps) <= 6
    small.served.settle()
    assert free(small.served) == before


@pytest.mark.parametrize(
    "steps", [1, 4, *(pytest.param(steps, marks=pytest.mark.nightly) for steps in (0, 2, 3, 5, 6))]
)
def test_an_abort_at_any_time_gives_the_pages_back(small, steps) -> None:
    served = small.served
    served.settle()
    before = free(served)
    given, other = small.prompt.only(2, 1), small.prompt.only(0, 1)
    alone = small.ask(other, STANDS)
    served.forget_prefixes()
    engine = served.llm.llm_engine
    shown = {"prompt_token_ids": given.token_ids, "multi_modal_data": {"image": given.pictures}}
    engine.add_request("leaving", shown, served.params(STANDS, 3))
    for _ in range(steps):
        engine.step()
    engine.abort_request(["leaving"])
    answer = served.ask(other.token_ids, other.pictures, STANDS)
    assert error(answer, alone.logits) <= small.bar
    served.settle()
    assert free(served) == before


def test_what_is_read_does_not_wait_for_all_prefills(small) -> None:
    served, given = small.served, small.prompt.only(2, 0)
    alone = small.ask(given, STANDS)
    served.forget_prefixes()
    engine, subject = served.llm.llm_engine, small.prompt.subject
    shown = {"prompt_token_ids": given.token_ids, "multi_modal_data": {"image": given.pictures}}
    for number in range(16):
        if number == 2:
            engine.add_request("read", shown, served.params(STANDS, 1))
        engine.add_request(f"plain {number}", {"prompt_token_ids": subject.text(90, number)}, served.params({}, 1))
    answered: list[str] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            answered.append(output.request_id)
            if output.request_id == "read":
                assert error(served._answer(output), alone.logits) <= small.bar
    # Seventeen requests: otherwise it is the last.
    assert answered.index("read") < 13, answered


def test_pieces_that_are_lost_meanwhile_are_computed(small, monkeypatch) -> None:
    given = small.prompt.only(3, 0)
    plain = small.ask(given, {"strategy": "full"})
    stager = small.served.kv_worker.stager
    read = type(stager)._read

    def lost(own: Any, order: Any, held: Any) -> Any:
        raise OSError("gone, for the test")

    monkeypatch.setattr(type(stager), "_read", lost)
    answer = small.ask(given, STANDS)
    assert torch.equal(answer.logits, plain.logits) and answer.report["linked_tokens"] == 0
    monkeypatch.setattr(type(stager), "_read", read)
    assert small.ask(given, STANDS).report["linked_tokens"] > 0
