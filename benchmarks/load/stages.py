"""The stages of load, and what serves them: an arm is one way to answer, an answer what its client saw."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.requests import TrafficShape

FULL, PREFIX, AUTO, QUERY = "full", "prefix", "auto", "query-12%"
ENGINE, SERVE, VLLM, SGLANG = "engine", "serve", "vllm", "sglang"
STOCK = "vllm-stock"
"""vLLM without the plugin."""
ENGINES = (ENGINE, SERVE, VLLM, SGLANG)
"""The embedded engine in this process, and three servers: `emblema serve`, and two engines with the plugin."""
STAGES = (
    "rag", "rag-slid", "rag-large", "agent", "agent-large", "novelty", "shown", "slid", "first", "talks", "talks-large",
)  # fmt: skip
SIDE, LARGE = 8, 16
"""Cells along a page's side, and along a larger one's: 66 rows, or 258."""
WINDOW = 6
"""Pictures in an agent's window and in a request of `novelty`."""
SIX, MPIC, FIRST, TALKS = STAGES[:6], ("shown", "slid"), "first", ("talks", "talks-large")
"""Stages of many requests, those of MPIC's evaluation, that of first tokens, and conversations, which servers have."""
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


def stages_of(names: Sequence[str], requests: int = 200, pages: int = 30, shown: int = 8) -> dict[str, TrafficShape]:
    """Return stages by name, of so many requests, half as many of `novelty`; the numbers are those of the shapes."""
    shapes = {
        "rag": TrafficShape("rag", requests, SIDE, pages, shown),
        "rag-slid": TrafficShape("rag", requests, SIDE, pages, shown, slid=True),
        "rag-large": TrafficShape("rag", requests, LARGE, pages, shown),
        "agent": TrafficShape("agent", requests, SIDE, shown=WINDOW),
        "agent-large": TrafficShape("agent", requests, LARGE, shown=WINDOW),
        "novelty": TrafficShape("novelty", max(1, requests // 2), SIDE, shown=WINDOW),
        "shown": TrafficShape("rag", requests, LARGE, 12, 10),
        "slid": TrafficShape("rag", requests, SIDE, 12, 10, slid=True),
        FIRST: TrafficShape("same", requests, LARGE, shown=8),
        "talks": TrafficShape("talk", requests, SIDE, pages, shown),
        "talks-large": TrafficShape("talk", requests, LARGE, pages, shown),
    }
    return {name: shapes[name] for name in names}


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """One request as its client saw it.

    Attributes:
        text: of the answer, and how many `tokens` it has.
        ttft: seconds from its arrival to the first token.
        ended: seconds from its arrival until nothing was left to do for it.
        prompt, computed: rows of the prompt, and rows computed before it, as the engine counts them, or None.
        ran: every row that the decoder ran, after the answer too; None where it cannot be counted.
        fell_back: whether it was computed in full because the second pass was not sure.
    """

    text: str
    ttft: float
    ended: float
    prompt: int
    computed: int | None
    tokens: int = 1
    ran: float | None = None
    fell_back: bool = False
