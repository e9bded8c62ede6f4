"""The demo: the same pages asked about in several arrangements, by four strategies, each with its own history.

Every strategy has its own engine on the same model, so that none profits from another's prompts. A round sends all
requests once, strategy by strategy for each question, and begins with empty prefixes and no patches: a prefix hit
comes from an earlier, different prompt of the same round, never from the same prompt asked before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from emblema.engine.engine import Engine
from emblema.eval.demo_media import SITUATIONS, DemoMedia, DemoQuestion, Situation, demo_media
from emblema.eval.page_demo import PageMedia
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk, Clip
from emblema.library.items import chunks_of
from emblema.link.policy.policy import Policy
from emblema.models.load import load_model
from emblema.session.prompt_reader import PromptPart
from emblema.session.replies import Reply
from emblema.session.requests import Usage

Shown = DemoMedia | PageMedia
"""Media that the demo asks about."""
STRATEGIES = ("full", "prefix", "blind", "patch-25%")
PATCHED = STRATEGIES[-1]
SECONDS = 50.0
"""The demo sends no further round if that would take it past so many seconds."""


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """The answers to a question in a situation under one strategy, over all rounds.

    Attributes:
        situation: its index.
        place: of the question in the situation.
        replies: the timed ones, one a round.
        forming: of each round in which the first use formed patches, what it took, and the second, which is timed.
    """

    situation: int
    place: int
    question: DemoQuestion
    strategy: str
    replies: list[Reply] = field(default_factory=list)
    forming: list[tuple[Usage, Usage]] = field(default_factory=list)

    def ask(self, engine: Engine, parts: list[PromptPart], media: Shown) -> None:
        """Send the question; where it formed patches, send it once more, and time that as reuse."""
        send = partial(engine.generate, parts, self.strategy, template=media.template)
        reply = send(max_new_tokens=media.answer_tokens)
        if reply.usage.forming_tokens:
            first, reply = reply, send(max_new_tokens=media.answer_tokens)
            self.forming.append((first.usage, reply.usage))
        self.replies.append(reply)

    @property
    def reply(self) -> Reply:
        """The last round's: its answer is that of every round (greedy)."""
        return self.replies[-1]

    @property
    def usage(self) -> Usage:
        return self.reply.usage

    @property
    def right(self) -> bool:
        return self.question.accepts(self.reply.text)

    @property
    def seconds(self) -> list[float]:
        """Time to first token, one a round."""
        return [reply.usage.ttft_seconds for reply in self.replies]

    @property
    def ttft(self) -> float:
        """Median time to first token, seconds."""
        return median(self.seconds)

    @property
    def forming_tokens(self) -> int:
        """Rows run to form patches at the first use."""
        return self.forming[0][0].forming_tokens if self.forming else 0

    @property
    def formed(self) -> float:
        """Median time that forming added to the first use, seconds."""
        return median(first.ttft_seconds - later.ttft_seconds for first, later in self.forming) if self.forming else 0.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that was measured; `wanted` rounds were asked for, and fewer sent if time ran short."""

    model: str
    media: Shown
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
        found = [answer for answer in self.outcomes if answer.strategy == strategy]
        return [answer for answer in found if case in (None, self.situations[answer.situation].case)]

    def of_situation(self, index: int) -> list[DemoAnswer]:
        """Return the answers in a situation."""
        return [answer for answer in self.outcomes if answer.situation == index]

    @property
    def broken(self) -> list[DemoAnswer]:
        """The answers of `prefix` that differ from re-prefill's; the strategy is exact, so there must be none."""
        pairs = zip(self.of("full"), self.of("prefix"), strict=True)
        return [own for full, own in pairs if full.reply.token_ids != own.reply.token_ids]


def run_demo(
    console: Console,
    model: str = "reference",
    rounds: int = 3,
    device: str | None = None,
    threads: int = 1,
    began: float | None = None,
    media: Shown | Callable[[Engine], Shown] | None = None,
    situations: Sequence[Situation] = SITUATIONS,
) -> DemoResult:
    """Load the model, add the media and ask the questions; progress goes to the console.

    Args:
        rounds: how often every request is sent; fewer if the demo would take longer than `SECONDS`.
        threads: of torch, for every strategy alike. On few and shared cores, one is the fastest for tensors this small.
        began: when the demo began, by `time.perf_counter`.
        media: the package's own if left out; or what makes them for an engine.
        situations: the arrangements, in the order in which they are asked about.
    """
    began = time.perf_counter() if began is None else began
    torch.set_num_threads(threads)
    with steps(console, "loading the model", 1) as advance:
        loaded, processor = load_model(model, device=device)
        engines = {strategy: Engine(loaded, processor, policy=Policy.quiet()) for strategy in STRATEGIES}
        advance()
    first = engines[STRATEGIES[0]]
    shown = demo_media() if media is None else media(first) if callable(media) else media
    adding = time.perf_counter()
    added: dict[str, Chunk | Clip] = {}
    with steps(console, f"adding {shown.described} (encode and prefill, once)", len(shown.files)) as advance:
        for name in shown.files:
            added[name] = first.add(shown.folder / name, fps=shown.frames_per_second)
            advance()
    adding = time.perf_counter() - adding
    requests = [
        [DemoAnswer(index, place, question, strategy) for strategy in STRATEGIES]
        for index, situation in enumerate(situations)
        for place, question in enumerate(shown.questions(situation))
    ]
    done = _ask_all(console, engines, shown, situations, added, requests, rounds, began)
    return DemoResult(
        model=Path(model).name,
        media=shown,
        situations=tuple(situations),
        outcomes=tuple(answer for answers in requests for answer in answers),
        rounds=done,
        wanted=rounds,
        threads=torch.get_num_threads(),
        device=str(first.adapter.device),
        adding_seconds=adding,
        chunks=sum(len(chunks_of(piece)) for piece in added.values()),
        seconds=time.perf_counter() - began,
    )


def _ask_all(
    console: Console,
    engines: Mapping[str, Engine],
    shown: Shown,
    situations: Sequence[Situation],
    added: Mapping[str, Chunk | Clip],
    requests: Sequence[Sequence[DemoAnswer]],
    rounds: int,
    began: float,
) -> int:
    """Send every request once a round, each strategy first in turn; return how many rounds there was time for."""
    title = f"asking {len(requests)} questions, {len(engines)} ways, {rounds} times"
    done = 0
    with steps(console, title, rounds * len(requests) * len(engines)) as advance:
        while done < rounds:
            started = time.perf_counter()
            for engine in engines.values():
                engine.forget_prompts()
                for piece in added.values():
                    for chunk in chunks_of(piece):
                        engine.store.delete_artifacts(chunk.id)
            for index, answers in enumerate(requests):
                for turn in range(len(answers)):
                    answer = answers[(turn + index + done) % len(answers)]
                    parts = shown.parts(situations[answer.situation], added, answer.question)
                    answer.ask(engines[answer.strategy], parts, shown)
                    advance()
            done += 1
            now = time.perf_counter()
            if now - began + now - started > SECONDS:
                break
    return done


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
                "situation": result.situations[answer.situation].title,
                "kind": answer.question.kind,
                "question": answer.question.text,
                "expected": answer.question.answer,
                "strategy": answer.strategy,
                "answer": answer.reply.text,
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
