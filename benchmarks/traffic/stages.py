"""Stages of the traffic benchmark: which traffic is measured, and what a stage's record of one method holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.traffic.methods import AUTO, FULL, STILL
from benchmarks.traffic.requests import TrafficShape

STAGES = {
    "rag": "RAG: {shown} of {pages} pages in random order, all alike",
    "rag-slid": "RAG, legends slid: {shown} of {pages} pages in random order, all alike",
    "rag-zipf": "RAG: {shown} of {pages} pages in random order, some more popular (exponent {zipf:g})",
    "rag-large": "RAG: {shown} of {pages} larger pages in random order, all alike",
    "agent": "An agent: the last {shown} screenshots sent whole, with look-backs and resets",
    "agent-large": "An agent: the last {shown} larger screenshots sent whole, with look-backs and resets",
    "rag-few": "RAG: {shown} of {pages} pages in random order, all alike",
    "rag-many": "RAG: {shown} of {pages} pages in random order, all alike",
    "learning": "What learning costs: {shown} of {pages} pages in random order, all alike",
    "growth-24": "Growth: {shown} of {pages} pages, some more popular (exponent {zipf:g})",
    "growth-100": "Growth: {shown} of {pages} pages, some more popular (exponent {zipf:g})",
    "growth-1000": "Growth: {shown} of {pages} pages, some more popular (exponent {zipf:g})",
    "talks": "Conversations over {shown} pictures that {users} users at a time draw from {pages} pages",
    "novelty": "Novelty: {shown} pictures a request that were never seen, and never come again",
}
"""What each stage is, in words."""
GROWTH = "growth-"
"""How the names begin of stages that count what is learnt."""
LARGER = 2
"""How many times the cells along a side the larger pages have."""
WINDOW, TALKED = 6, 10
"""Pictures in an agent's window and in a request of `novelty`, and in a conversation."""
FEW, MANY = 2, 16
"""Pages in a request of `rag-few` and of `rag-many`."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A traffic that is measured by itself.

    Attributes:
        name: of `STAGES`.
        shape: of its traffic.
    """

    name: str
    shape: TrafficShape

    @property
    def title(self) -> str:
        """What it is, in words."""
        shape = self.shape
        words = {"shown": shape.shown, "pages": shape.pages, "zipf": shape.zipf, "users": shape.users}
        return STAGES[self.name].format(**words)

    def methods(self, chosen: Sequence[str]) -> tuple[str, ...]:
        """Return which of the chosen methods are measured: of what is about `auto` alone, only those that it needs."""
        if self.name == "learning":
            return (FULL, AUTO, STILL)
        return (FULL, AUTO) if self.name.startswith(GROWTH) else tuple(chosen)


def stages_of(
    names: Sequence[str],
    requests: int = 200,
    *,
    pages: int = 30,
    shown: int = 8,
    zipf: float = 1.0,
    side: int = 8,
) -> tuple[Stage, ...]:
    """Return stages by name.

    Args:
        requests: of a stage; half as many of `novelty`.
        pages, shown: of `rag`, in every prompt so many of so many pages.
        zipf: exponent of `rag-zipf` and of the stages of growth.
        side: cells along a page's side; of `rag-large` and `agent-large` `LARGER` times as many.

    Raises:
        PromptError: a number is out of range.
    """
    shapes = {
        "rag": TrafficShape("rag", requests, side, pages, shown),
        "rag-slid": TrafficShape("rag", requests, side, pages, shown, slid=True),
        "rag-zipf": TrafficShape("rag", requests, side, pages, shown, zipf),
        "rag-large": TrafficShape("rag", requests, LARGER * side, pages, shown),
        "rag-few": TrafficShape("rag", requests, side, pages, FEW),
        "rag-many": TrafficShape("rag", requests, side, max(pages, MANY + 2), MANY),
        "learning": TrafficShape("rag", requests, side, pages, shown),
        **{
            f"{GROWTH}{count}": TrafficShape("rag", requests, side, max(count, shown + 2), shown, zipf)
            for count in (24, 100, 1000)
        },
        "agent": TrafficShape("agent", requests, side, shown=WINDOW),
        "agent-large": TrafficShape("agent", requests, LARGER * side, shown=WINDOW),
        "talks": TrafficShape("talks", requests, side, max(pages, TALKED + 2), TALKED),
        "novelty": TrafficShape("novelty", max(1, requests // 2), side, shown=WINDOW),
    }
    return tuple(Stage(name, shapes[name]) for name in names)


@dataclass(frozen=True, slots=True)
class MethodRun:
    """A stage as one method served it: a figure for each request, in order.

    Attributes:
        key: see `recordfile.digest`; not in the JSON file.
        load: load average of the machine before and after the stage.
        added: bytes in the store before the first request.
        group, where: see `TrafficRequest`; of re-prefill's record alone, as is `prompt`.
        prompt, computed, ran, ttft, wall, processor, kept, margin, fell_back: see `Served`.
        lane: see `Served`; of `auto` alone.
        learnt: see `Served`; where it is counted.
        pieces: how many pieces were learnt and kept, and how many of them a request took; where it is counted.
        agrees: 1 where the first token is re-prefill's; right: 1 where the answer is the right one.
    """

    key: str
    stage: Stage
    method: str
    load: tuple[float, float]
    added: int
    group: tuple[int, ...]
    where: tuple[str, ...]
    prompt: tuple[int, ...]
    computed: tuple[int, ...]
    ran: tuple[float, ...]
    ttft: tuple[float, ...]
    wall: tuple[float, ...]
    processor: tuple[float, ...]
    kept: tuple[int, ...]
    margin: tuple[float | None, ...]
    fell_back: tuple[int, ...]
    agrees: tuple[int, ...]
    right: tuple[int, ...]
    lane: tuple[str, ...]
    learnt: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
