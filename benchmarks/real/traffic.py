"""Traffic of known passages under the default policy: random subsets in random orders, and chats that slide.

Every request is answered by the engine under test and by re-prefill. An engine learns from its own requests alone.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.real.measure import added, answered, compare_answers, forced, rows_share, tail_of
from benchmarks.real.passages import PASSAGES, PassageQuestion, draw_episode
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.link.policy.policy import Policy
from emblema.models.load import load_model

Shape = Literal["subsets", "chat"]
LIBRARY = 12
"""Passages that requests are about; each shows `PASSAGES` of them at most."""


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What is asked.

    Attributes:
        model: its name.
        shape: `subsets` shows passages of a library in a random order; `chat` shows the latest, and one more each turn.
        requests: how many.
        seed: of passages and requests.
        sentences: the least and the most sentences of a passage beside its fact.
    """

    model: str
    shape: Shape
    requests: int
    seed: int
    sentences: tuple[int, int] = (3, 7)

    def __post_init__(self) -> None:
        if self.shape not in ("subsets", "chat"):
            raise PromptError(f"unknown shape {self.shape!r}: choose subsets or chat")


def measure_traffic(wanted: TrafficOptions, advance: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
    """Yield a record, as plain data, for each request: the fields of `AnswerFigures`, the `lane`, and `fallback`.

    The last says why the prompt was computed in full after all; it is empty where it was not.
    """
    model, processor = load_model(wanted.model, "cpu")
    exact = Engine(model, processor, policy=Policy.quiet(), anchor=None)
    engine = Engine(model, processor, policy=Policy(), anchor=None)
    for texts, question in requests_of(wanted):
        chunks = [added(engine, text) for text in texts]
        tail, head = tail_of(exact, question), exact.adapter.anchor
        began = time.process_time()
        written: list[Any] = [exact.session.prompt_reader.passage(text) for text in texts]
        whole = exact.prefill([head, *written, tail], "full", template=False)
        spent = time.process_time() - began
        answer, logits = answered(exact, whole, question.length)
        exact.session.linker.forget_prompts()
        began = time.process_time()
        parts: list[Any] = [head, *chunks, tail]
        prefill = engine.prefill(parts, template=False)
        seconds = time.process_time() - began
        own = forced(engine.adapter, prefill, answer)
        found = compare_answers(logits, own, answer, rows_share(prefill), seconds / spent)
        yield {**asdict(found), "lane": prefill.usage.lane, "fallback": prefill.usage.fallback or ""}
        advance()


def requests_of(wanted: TrafficOptions) -> Iterator[tuple[list[str], PassageQuestion]]:
    """Yield the passages and the question of each request; what a question needs is among the passages."""
    rnd = random.Random(f"traffic {wanted.seed}")
    for number in range(wanted.requests):
        chat = wanted.shape == "chat"
        episode = draw_episode(wanted.seed, number // LIBRARY if chat else 0, LIBRARY, wanted.sentences)
        order = list(range(LIBRARY))
        if chat:
            # The passages of both kinds of fact by turns.
            order.sort(key=lambda place: (place % (LIBRARY // 2), place))
            latest = number % LIBRARY
            shown = order[max(0, latest + 1 - PASSAGES) : latest + 1]
            known = [
                question for kind in episode.asked.values() for question in kind if set(question.needs) <= set(shown)
            ]
            question = rnd.choice(known or list(episode.asked["direct"]))
        else:
            question = rnd.choice(episode.asked[rnd.choice(["two", "one", "direct", "free"])])
            rest = [place for place in order if place not in question.needs]
            shown = [*question.needs, *rnd.sample(rest, PASSAGES - len(question.needs))]
            rnd.shuffle(shown)
        yield [episode.passages[place] for place in shown], question


def traffic_rows(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row: of all requests that were measured."""
    lanes = Counter(str(record["lane"]) for record in records)

    def mean(name: str) -> float:
        return sum(float(record[name]) for record in records) / len(records)

    return [
        {
            "requests": len(records),
            **{name: mean(name) for name in ("rows", "seconds", "mean", "first", "agree", "whole")},
            "fallbacks": sum(bool(record["fallback"]) for record in records) / len(records),
            "lanes": ", ".join(f"{lane} {count}" for lane, count in lanes.most_common()),
        }
    ]
