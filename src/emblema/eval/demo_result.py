"""What the demo measured: every request under every strategy, over all rounds."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from emblema.eval.demo_media import Asked, DemoMedia, Situation
from emblema.link.plan import LinkPlan
from emblema.link.trace import Usage

STRATEGIES = ("full", "prefix", "blind", "patch-25%")
PATCHED = STRATEGIES[-1]


@dataclass(frozen=True, slots=True)
class Request:
    """A question in a situation, and its place in the round."""

    situation: int
    question: Asked
    place: int


@dataclass(slots=True)
class Outcome:
    """A request under one strategy, over all rounds.

    Attributes:
        text: the answer; the same in every round (greedy).
        usage: of the timed use, in the last round.
        seconds: time to first token of the timed use, one a round.
        forming_tokens, forming_seconds: rows run to form patches at the first use, and what that added to its time.
    """

    request: Request
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
    outcomes: tuple[Outcome, ...]
    rounds: int
    wanted: int
    threads: int
    device: str
    adding_seconds: float
    chunks: int
    seconds: float

    def of(self, strategy: str, case: str | None = None) -> list[Outcome]:
        """A strategy's outcomes, of one case if asked for."""
        return [
            one
            for one in self.outcomes
            if one.strategy == strategy and case in (None, self.situations[one.request.situation].case)
        ]

    def of_situation(self, index: int) -> list[Outcome]:
        """The outcomes of one situation."""
        return [one for one in self.outcomes if one.request.situation == index]

    @property
    def broken(self) -> list[Outcome]:
        """Prefix answers that differ from re-prefill's: there must be none, the strategy is exact."""
        full = {(one.request.situation, one.request.question.text): one.token_ids for one in self.of("full")}
        return [
            one for one in self.of("prefix") if full[one.request.situation, one.request.question.text] != one.token_ids
        ]


def report(result: DemoResult) -> dict[str, Any]:
    """The result as plain data."""
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
                "situation": result.situations[one.request.situation].title,
                "kind": one.request.question.kind,
                "question": one.request.question.text,
                "expected": one.request.question.answer,
                "strategy": one.strategy,
                "answer": one.text,
                "right": one.right,
                "prompt_tokens": one.usage.prompt_tokens,
                "computed_tokens": one.usage.computed_tokens,
                "cached_tokens": one.usage.cached_tokens,
                "patched_tokens": one.usage.patched_tokens,
                "ttft_seconds": one.ttft,
                "ttft_seconds_by_round": one.seconds,
                "forming_tokens": one.forming_tokens,
                "forming_seconds": one.formed,
            }
            for one in result.outcomes
        ],
    }
