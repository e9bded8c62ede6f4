"""How long the first token takes on a real model, at lengths that mean something: each way beside a full prefill.

All ways link the same passages before another question each round, one after another, so that a slow moment of the
machine is nobody's alone. Chunks and patches are there before; forming them is not counted.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.real.measure import added, rows_share, tail_of
from benchmarks.real.passages import PASSAGES, draw_episode
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.link.policy.policy import Policy
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.query import QueryStrategy
from emblema.models.load import load_model

WORDS = 16
"""Tokens of a sentence, about."""
PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What is timed.

    Attributes:
        model: its name.
        tokens: of the prompts, about.
        rounds: questions, each asked every way.
        seed: of the passages.
    """

    model: str
    tokens: tuple[int, ...] = (1000, 2000, 4000)
    rounds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.tokens, default=0) < 200 or self.rounds < 1:
            raise PromptError("give lengths of 200 tokens or more, and one round or more")


def measure_speed(wanted: SpeedOptions, advance: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
    """Yield a row, as plain data, for each length and way: seconds of the processor to the first token, medians."""
    model, processor = load_model(wanted.model, "cpu")
    ways: dict[str, str | Strategy] = {
        "full": "full",
        PREFIX: PREFIX,
        "blind": "blind",
        "patch-25%": "patch-25%",
        "query-25%": QueryStrategy(0.25, least_margin=None),
    }
    for tokens in wanted.tokens:
        engine = Engine(model, processor, policy=Policy.quiet())
        count = max(1, tokens // (PASSAGES * WORDS))
        episode = draw_episode(wanted.seed, tokens, PASSAGES, (count, count))
        head: list[Any] = [engine.adapter.anchor, *(added(engine, text) for text in episode.passages)]
        questions = [question for found in episode.asked.values() for question in found if question.answer]
        spent: dict[str, list[float]] = {name: [] for name in ways}
        rows: dict[str, float] = {}
        engine.prefill([*head, tail_of(engine, questions[-1])], "patch-25%", template=False)
        for number in range(wanted.rounds):
            parts = [*head, tail_of(engine, questions[number])]
            for name, strategy in ways.items():
                engine.session.linker.forget_prompts()
                if name == PREFIX:
                    # What an engine with prefix caching has of the passages, in this order and at this place.
                    engine.prefill([*head, tail_of(engine, questions[number - 1])], "full", template=False)
                began = time.process_time()
                prefill = engine.prefill(parts, strategy, template=False)
                spent[name].append(time.process_time() - began)
                rows[name], length = rows_share(prefill), prefill.plan.rows
            advance()
        full = statistics.median(spent["full"])
        for name in ways:
            seconds = statistics.median(spent[name])
            yield {"tokens": length, "way": name, "seconds": seconds, "share": seconds / full, "rows": rows[name]}
