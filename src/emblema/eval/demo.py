"""The demo: the same pages asked about in six arrangements, by four strategies, each with its own history.

Every strategy has its own engine on the same model, so that none profits from another's prompts. A round sends all
requests once, strategy by strategy for each question, and begins with empty prefixes and no patches: a prefix hit
comes from an earlier, different prompt of the same round, never from the same prompt asked before.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from emblema.engine.engine import Engine
from emblema.eval.demo_media import SITUATIONS, DemoMedia, DemoQuestion, Situation, demo_media
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk, Clip
from emblema.library.items import chunks_of
from emblema.link.plan import LinkPlan
from emblema.link.policy.policy import Policy
from emblema.models.load import load_model
from emblema.session.prompt_reader import PromptPart
from emblema.session.replies import Reply
from emblema.session.requests import Usage

STRATEGIES = ("full", "prefix", "blind", "patch-25%")
PATCHED = STRATEGIES[-1]
SECONDS = 50.0
"""The demo sends no further round if that would take it past so many seconds."""
ANSWER_TOKENS = 4


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """A question in a situation, and its place in the round."""

    situation: int
    question: DemoQuestion
    place: int


@dataclass(slots=True)
class DemoAnswer:
    """The answers to a request under one strategy, over all rounds.

    Attributes:
        text: the answer; the same in every round (greedy).
        usage: of the timed use, in the last round.
        seconds: time to first token of the timed use, one a round.
        forming_tokens, forming_seconds: rows run to form patches at the first use, and what that added to its time.
    """

    request: DemoRequest
    strategy: str
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    plan: LinkPlan = field(repr=False)
    seconds: list[float] = field(default_factory=list)
    forming_tokens: int = 0
    forming_seconds: list[float] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return self.text == self.request.question.answer

    @property
    def ttft(self) -> float:
        """Median time to first token, seconds."""
        return median(self.seconds)

    @property
    def formed(self) -> float:
        """Median time that forming added to the first use, seconds."""
        return median(self.forming_seconds) if self.forming_seconds else 0.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that was measured; `wanted` rounds were asked for, and fewer sent if time ran short."""

    model: str
    media: DemoMedia
    situations: tuple[Situation, ...]
    outcomes: tuple[DemoAnswer, ...]
    rounds: int
    wanted: int
    threads: int
    device: str
    adding_seconds: float
    chunks: int
    seconds: float

    def of(self, strategy: str, case: str | None = None) -> list[DemoAnswer]:
        """Return the answers of a strategy, in one case or in all."""
        return [
            answer
            for answer in self.outcomes
            if answer.strategy == strategy and case in (None, self.situations[answer.request.situation].case)
        ]

    def of_situation(self, index: int) -> list[DemoAnswer]:
        """Return the answers in a situation."""
        return [answer for answer in self.outcomes if answer.request.situation == index]

    @property
    def broken(self) -> list[DemoAnswer]:
        """The answers of `prefix` that differ from re-prefill's; the strategy is exact, so there must be none."""
        full = {
            (answer.request.situation, answer.request.question.text): answer.token_ids for answer in self.of("full")
        }
        return [
            answer
            for answer in self.of("prefix")
            if full[answer.request.situation, answer.request.question.text] != answer.token_ids
        ]


def run_demo(
    console: Console,
    model: str = "reference",
    rounds: int = 3,
    device: str | None = None,
    threads: int = 1,
    began: float | None = None,
    media: DemoMedia | None = None,
    situations: Sequence[Situation] = SITUATIONS,
) -> DemoResult:
    """Load the model, add the media and ask the questions; progress goes to the console.

    Args:
        rounds: how often every request is sent; fewer if the demo would take longer than `SECONDS`.
        threads: of torch, for every strategy alike. On few and shared cores, one is the fastest for tensors this small.
        began: when the demo began, by `time.perf_counter`.
        media: the package's own if left out.
        situations: the arrangements, in the order in which they are asked about.
    """
    began = time.perf_counter() if began is None else began
    torch.set_num_threads(threads)
    media = demo_media() if media is None else media
    with steps(console, "loading the model", 1) as advance:
        loaded, processor = load_model(model, device=device)
        lanes = {strategy: Engine(loaded, processor, policy=Policy.quiet()) for strategy in STRATEGIES}
        advance()
    first = lanes[STRATEGIES[0]]
    added, adding_seconds = add_media(console, first, media)
    chunks = [chunk for piece in added.values() for chunk in chunks_of(piece)]
    requests = list(requests_of(media, situations))
    outcomes: dict[tuple[str, int, str], DemoAnswer] = {}
    done = 0
    title = f"asking {len(requests)} questions, {len(lanes)} ways, {rounds} times"
    with steps(console, title, rounds * len(requests) * len(lanes)) as advance:
        for number in range(rounds):
            started = time.perf_counter()
            forget(lanes, chunks)
            for index, request in enumerate(requests):
                for turn in range(len(lanes)):
                    strategy = STRATEGIES[(turn + index + number) % len(lanes)]
                    parts = situations[request.situation].parts(media, added, request.question.text)
                    ask(lanes[strategy], strategy, request, parts, outcomes)
                    advance()
            done += 1
            took = time.perf_counter() - started
            if time.perf_counter() - began + took > SECONDS:
                break
    return DemoResult(
        model=Path(model).name,
        media=media,
        situations=tuple(situations),
        outcomes=tuple(sorted(outcomes.values(), key=_reading_order)),
        rounds=done,
        wanted=rounds,
        threads=torch.get_num_threads(),
        device=str(first.adapter.device),
        adding_seconds=adding_seconds,
        chunks=len(chunks),
        seconds=time.perf_counter() - began,
    )


def add_media(console: Console, engine: Engine, media: DemoMedia) -> tuple[dict[str, Chunk | Clip], float]:
    """Add every picture and the clip; return them by name, and the seconds that took."""
    began = time.perf_counter()
    added: dict[str, Chunk | Clip] = {}
    with steps(console, "adding pictures and clip (encode and prefill, once)", len(media.pictures) + 1) as advance:
        for name in (*media.pictures, media.clip):
            added[name] = engine.add(media.folder / name, fps=media.frames_per_second)
            advance()
    return added, time.perf_counter() - began


def requests_of(media: DemoMedia, situations: Sequence[Situation]) -> Iterator[DemoRequest]:
    """Yield the requests of a round, in order."""
    for index, situation in enumerate(situations):
        for place, question in enumerate(situation.questions(media)):
            yield DemoRequest(index, question, place)


def forget(lanes: Mapping[str, Engine], chunks: list[Chunk]) -> None:
    """Drop the kept prefixes and patches of every engine; the chunks stay."""
    for engine in lanes.values():
        engine.forget_prompts()
        for chunk in chunks:
            engine.store.delete_artifacts(chunk.id)


def ask(
    engine: Engine,
    strategy: str,
    request: DemoRequest,
    parts: list[PromptPart],
    outcomes: dict[tuple[str, int, str], DemoAnswer],
) -> None:
    """Send a request; where it formed patches, send it once more, and time that as reuse."""

    def send() -> Reply:
        return engine.generate(parts, strategy, max_new_tokens=ANSWER_TOKENS)

    reply = send()
    paid: Usage | None = None
    if reply.usage.forming_tokens:
        paid = reply.usage
        reply = send()
    key = (strategy, request.situation, request.question.text)
    outcome = outcomes.setdefault(
        key, DemoAnswer(request, strategy, reply.text, reply.token_ids, reply.usage, reply.plan)
    )
    outcome.usage = reply.usage
    outcome.seconds.append(reply.usage.ttft_seconds)
    if paid is not None:
        outcome.forming_tokens = paid.forming_tokens
        outcome.forming_seconds.append(paid.ttft_seconds - reply.usage.ttft_seconds)


def _reading_order(outcome: DemoAnswer) -> tuple[int, int, int]:
    return outcome.request.situation, outcome.request.place, STRATEGIES.index(outcome.strategy)


def report(result: DemoResult) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "model": result.model,
        "device": result.device,
        "threads": result.threads,
        "rounds": result.rounds,
        "rounds_wanted": result.wanted,
        "seconds": result.seconds,
        "adding_seconds": result.adding_seconds,
        "exact": not result.broken,
        "requests": [
            {
                "situation": result.situations[answer.request.situation].title,
                "kind": answer.request.question.kind,
                "question": answer.request.question.text,
                "expected": answer.request.question.answer,
                "strategy": answer.strategy,
                "answer": answer.text,
                "right": answer.right,
                "prompt_tokens": answer.usage.prompt_tokens,
                "computed_tokens": answer.usage.computed_tokens,
                "cached_tokens": answer.usage.cached_tokens,
                "patched_tokens": answer.usage.patched_tokens,
                "ttft_seconds": answer.ttft,
                "ttft_seconds_by_round": answer.seconds,
                "forming_tokens": answer.forming_tokens,
                "forming_seconds": answer.formed,
            }
            for answer in result.outcomes
        ],
    }
