"""The stages of load, and what serves them: an arm is one way to answer, an answer what its client saw."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.requests import TrafficShape
from emblema.errors import PromptError

FULL, PREFIX, AUTO, QUERY, PLAIN = "full", "prefix", "auto", "query-12%", "plain"
"""Strategies, and `plain`: a server without the plugin."""
ENGINE, SERVE, VLLM, SGLANG = "engine", "serve", "vllm", "sglang"
ENGINES = (ENGINE, SERVE, VLLM, SGLANG)
"""The embedded engine in this process, and three servers: `emblema serve`, and two engines with the plugin."""
STAGES = {
    "rag": "8 of 30 pages in random order",
    "rag-slid": "8 of 30 pages in random order, legends slid",
    "rag-large": "8 of 30 larger pages in random order",
    "agent": "the last 6 screenshots, sent whole",
    "agent-large": "the last 6 larger screenshots, sent whole",
    "novelty": "6 pictures that never come again",
    "shown": "10 of 12 larger pages in random order, as in MPIC's evaluation",
    "slid": "10 of 12 pages in random order, legends slid",
    "first": "one prompt of 8 known pictures of 448 pixels, again and again",
}
"""What each stage is, in words."""
LARGER = 2
"""How many times the cells along a side the larger pages have."""
WINDOW = 6
"""Pictures in an agent's window and in a request of `novelty`."""
SIX, MPIC, FIRST = tuple(STAGES)[:6], ("shown", "slid"), "first"
"""Stages of many requests, those of MPIC's evaluation, and that of first tokens on a random model."""
METHODS = {
    ENGINE: (FULL, PREFIX, "mpic-32", "cacheblend-15", "epic-8", "patch-25%", QUERY, AUTO),
    SERVE: (FULL, PREFIX, "full-reuse", "cacheblend-15", "mpic-32", "patch-25%", AUTO),
    # An engine's pages hold rows of one forward; `full` has the engine's own prefix cache.
    VLLM: (FULL, "blind", "mpic-32", "patch-25%", AUTO),
    SGLANG: (FULL, "blind", "mpic-32", "patch-25%", AUTO),
}
KNOBS = (
    PREFIX, FULL, "full-reuse", "patch-25%", AUTO, *(f"mpic-{tokens}" for tokens in (4, 8, 16, 32, 64, 128)),
    *(f"cacheblend-{share}" for share in (5, 10, 15, 20, 30, 50)),
)  # fmt: skip
"""Methods of `MPIC` stages: every K of MPIC and every share of CacheBlend, beside `prefix`."""
FIRST_METHODS = (FULL, "blind", "mpic-32")


def methods_of(engine: str, stage: str) -> tuple[str, ...]:
    """Return the methods that are measured where none are named."""
    return FIRST_METHODS if stage == FIRST else KNOBS if stage in MPIC else METHODS[engine]


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Requests that are measured by themselves, by their name in `STAGES`."""

    name: str
    shape: TrafficShape

    @property
    def promised(self) -> bool:
        """Whether it has the size that bars were promised of: 200 requests, of `rag` 8 of 30 pages."""
        shape = self.shape
        return shape.requests >= 200 and (shape.kind != "rag" or (shape.shown, shape.pages) == (8, 30))


def stages_of(
    names: Sequence[str], requests: int = 200, pages: int = 30, shown: int = 8, side: int = 8
) -> tuple[LoadStage, ...]:
    """Return stages by name, of so many requests, half as many of `novelty`; the numbers are those of the shapes."""
    shapes = {
        "rag": TrafficShape("rag", requests, side, pages, shown),
        "rag-slid": TrafficShape("rag", requests, side, pages, shown, slid=True),
        "rag-large": TrafficShape("rag", requests, LARGER * side, pages, shown),
        "agent": TrafficShape("agent", requests, side, shown=WINDOW),
        "agent-large": TrafficShape("agent", requests, LARGER * side, shown=WINDOW),
        "novelty": TrafficShape("novelty", max(1, requests // 2), side, shown=WINDOW),
        "shown": TrafficShape("rag", requests, LARGER * side, 12, 10),
        "slid": TrafficShape("rag", requests, side, 12, 10, slid=True),
        FIRST: TrafficShape("noise", requests, 448, shown=8),
    }
    if unknown := [name for name in names if name not in shapes]:
        raise PromptError(f"unknown stage {unknown[0]!r}: choose of {', '.join(shapes)}")
    return tuple(LoadStage(name, shapes[name]) for name in names)


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """One request as its client saw it.

    Attributes:
        text: of the answer, and how many `tokens` it has.
        ttft: seconds from its arrival to the first token.
        ended: seconds from its arrival until nothing was left to do for it.
        prompt, computed: rows of the prompt, and rows computed before it, as the engine counts them, or None.
        processor: seconds of the processor; 0 where others' requests are under way too.
        ran: every row that the decoder ran, after the answer too; None where it cannot be counted.
        fell_back: whether it was computed in full because the second pass was not sure.
    """

    text: str
    ttft: float
    ended: float
    prompt: int
    computed: int | None
    tokens: int = 1
    processor: float = 0.0
    ran: float | None = None
    fell_back: bool = False
