"""Methods against re-prefill on one model: the same questions under each method, and chunks after each anchor.

Re-prefill answers greedily. A method's logits are compared at every token of that answer, which it is given.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.real.passages import PASSAGES, PassageEpisode, PassageQuestion, draw_episode
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.second_pass import margin_of
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.registry import parse
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.load import load_model
from emblema.session.requests import Prefill
from emblema.session.turn_tokenizer import AFTER_CHUNK, TurnTokenizer

ANCHORS: dict[str, tuple[int, ...] | None] = {"none": (), "head": None}
"""What chunks are captured after, as `Engine` takes it: nothing, or the head of the template."""


@dataclass(frozen=True, slots=True)
class RealOptions:
    """What is measured.

    Attributes:
        model: its name, as `Engine.load` takes it.
        episodes: how many episodes, of five questions each.
        seed: of the episodes.
        sentences: the least and the most sentences of a passage beside its fact.
        methods: strategies; of `query-R%` any margin is taken.
        others: strategies that are measured after the first anchor alone.
        every: all questions of an episode, one of each kind otherwise, and the first tokens of their answers alone.
            Re-prefill takes what it computed for the question before; its seconds say nothing then.
        anchors: see `ANCHORS`.
    """

    model: str
    episodes: int
    seed: int
    sentences: tuple[int, int] = (3, 7)
    methods: tuple[str, ...] = ("blind", "query-25%", "patch-25%")
    anchors: tuple[str, ...] = ("none", "head")
    others: tuple[str, ...] = ()
    every: bool = False

    def __post_init__(self) -> None:
        if not self.anchors or not set(self.anchors) <= set(ANCHORS):
            raise PromptError(f"anchors {', '.join(self.anchors)!r}: choose of {', '.join(ANCHORS)}")
        for method in (*self.methods, *self.others):
            parse(method)


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """One answer under a method beside re-prefill's.

    Attributes:
        first: KL from re-prefill at the answer's first token, nats.
        mean: the same, the mean over the answer's tokens.
        agree: whether the first token is re-prefill's.
        whole: whether every token is.
        rows: rows computed times layers, over those of re-prefill.
        seconds: of the processor, over those of re-prefill.
    """

    first: float
    mean: float
    agree: bool
    whole: bool
    rows: float
    seconds: float


def compare_answers(
    reference: Tensor, own: Tensor, answer: Sequence[int], rows: float, seconds: float
) -> AnswerFigures:
    """Return the figures of logits [tokens, vocab] beside those of re-prefill, whose answer both are given."""
    kl, chosen = divergences(reference, own), own.argmax(-1).tolist()
    return AnswerFigures(float(kl[0]), float(kl.mean()), chosen[0] == answer[0], chosen == answer, rows, seconds)


def measure_real(wanted: RealOptions, advance: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
    """Yield a record, as plain data, for each question under each method and anchor.

    It has the fields of `AnswerFigures`; `episode`, `kind` (of the question), `anchor` and `method`; `right`: whether
    the first token begins the answer that the passages give, False where there is none; `sure` and `margin`: how far
    apart the two likeliest first tokens of re-prefill and of the method are.
    """
    model, processor = load_model(wanted.model, "cpu")
    head = Engine(model, processor, policy=Policy.quiet(), anchor=None)
    engines = {name: Engine(model, processor, policy=Policy.quiet(), anchor=ANCHORS[name]) for name in wanted.anchors}
    for number in range(wanted.episodes):
        yield from _episode(head, engines, draw_episode(wanted.seed, number, PASSAGES, wanted.sentences), wanted)
        advance()


def _episode(
    head: Engine, engines: Mapping[str, Engine], episode: PassageEpisode, wanted: RealOptions
) -> Iterator[dict[str, Any]]:
    reference = "prefix" if wanted.every else "full"
    chunks = {name: [added(engine, text) for text in episode.passages] for name, engine in engines.items()}
    written = [head.session.prompt_reader.passage(text) for text in episode.passages]
    asked = [question for found in episode.asked.values() for question in found if question.answer]
    for question in asked if wanted.every else episode.questions:
        tail = tail_of(head, question)
        began = time.process_time()
        whole = head.prefill([head.adapter.anchor, *written, tail], reference, template=False)
        spent = time.process_time() - began
        answer, logits = answered(head, whole, 1 if wanted.every else question.length)
        gold = question.answer and head.tokenizer(f" {question.answer}", add_special_tokens=False)["input_ids"][0]
        for name, engine in engines.items():
            parts = [head.adapter.anchor, *chunks[name], tail]
            others = wanted.others if name == wanted.anchors[0] else ()
            for method in (*wanted.methods, *others):
                prefill, seconds = _linked(engine, parts, method)
                own, plan = forced(engine.adapter, prefill, answer), prefill.plan
                rows = prefill.trace.row_layers / (plan.rows * plan.layers)
                yield {
                    "episode": episode.name,
                    "kind": question.kind,
                    "anchor": name,
                    "method": method,
                    **asdict(compare_answers(logits, own, answer, rows, seconds / spent)),
                    "right": own[0].argmax().tolist() == gold,
                    "sure": margin_of(logits[0]),
                    "margin": margin_of(own[0]),
                }
    for engine in engines.values():
        for chunk in dict.fromkeys(chunk.id for made in chunks.values() for chunk in made):
            engine.store.delete(chunk)
        engine.session.linker.forget_prompts()
    head.session.linker.forget_prompts()


def added(engine: Engine, text: str) -> Chunk:
    """Return the chunk of a passage."""
    chunk = engine.add(text=text)
    assert isinstance(chunk, Chunk)
    return chunk


def tail_of(engine: Engine, question: PassageQuestion) -> tuple[int, ...]:
    """Return the token ids after the passages: the question, the end of the turn, and the beginning of the answer."""
    turn = TurnTokenizer(engine.session.prompt_reader)
    lead = tuple(engine.tokenizer(question.lead, add_special_tokens=False)["input_ids"])
    return (*turn.closing(AFTER_CHUNK, f"Question: {question.text}"), *lead)


def _linked(engine: Engine, parts: Sequence[Any], method: str) -> tuple[Prefill, float]:
    """Return a linked prompt and the processor's seconds of it, without those of forming patches."""
    strategy = parse(method)
    if isinstance(strategy, QueryStrategy):
        strategy = QueryStrategy(strategy.share, least_margin=None)
    prefill, seconds = _timed(engine, parts, strategy)
    return (prefill, seconds) if not prefill.usage.forming_tokens else _timed(engine, parts, strategy)


def _timed(engine: Engine, parts: Sequence[Any], strategy: Strategy) -> tuple[Prefill, float]:
    began = time.process_time()
    prefill = engine.prefill(parts, strategy, template=False)
    return prefill, time.process_time() - began


def answered(engine: Engine, prefill: Prefill, length: int) -> tuple[list[int], Tensor]:
    """Return the greedy answer after a prompt, and its logits [tokens, vocab]; the table is as it was before."""
    table, held, rows, answer = prefill.linked.table, prefill.linked.table.length, [prefill.logits], []
    for step in range(length):
        answer.append(int(rows[-1].argmax()))
        if answer[-1] in engine.end_tokens or step + 1 == length:
            break
        rows.append(_run(engine.adapter, prefill, answer[-1:], step)[0])
    table.truncate(held)
    return answer, torch.stack(rows)


def forced(adapter: Adapter, prefill: Prefill, answer: Sequence[int]) -> Tensor:
    """Return logits [tokens, vocab] at every token of a given answer; the table is as it was before."""
    table, held = prefill.linked.table, prefill.linked.table.length
    rows = [prefill.logits[None]]
    if len(answer) > 1:
        rows.append(_run(adapter, prefill, answer[:-1], 0))
    table.truncate(held)
    return torch.cat(rows)


def _run(adapter: Adapter, prefill: Prefill, ids: Sequence[int], after: int) -> Tensor:
    """Append tokens of an answer to a prompt's table; return the logits of each."""
    count, prompt = len(ids), prefill.prompt
    slots = prefill.linked.table.allocate(torch.arange(count) + prompt.tokens + after)
    positions = (torch.arange(count) + prompt.next_position + after).expand(adapter.axes, -1)
    where = torch.arange(slots.start, slots.stop) if isinstance(slots, slice | range) else slots
    batch = RowBatch(adapter.embed(torch.tensor(ids)), positions, where, torch.zeros(count, dtype=torch.bool))
    with torch.inference_mode():
        return adapter.logits(adapter.forward(batch, prefill.linked.table))


def rows_share(prefill: Prefill) -> float:
    """Return rows computed times layers, those of a second pass again, over those of a re-prefill."""
    trace, plan = prefill.trace, prefill.plan
    return (trace.row_layers / plan.layers + trace.repeated) / plan.rows


def divergences(reference: Tensor, own: Tensor) -> Tensor:
    """Return KL(reference || own) of rows of logits [rows, vocab], nats."""
    exact, other = torch.log_softmax(reference.double(), -1), torch.log_softmax(own.double(), -1)
    return (exact.exp() * (exact - other)).sum(-1)
