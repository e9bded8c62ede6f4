"""What is sent to a server under load: requests of each kind of traffic, in portions, one for each rate."""

from dataclasses import dataclass

from PIL import Image

from benchmarks.traffic.requests import Picture, TrafficRequest, TrafficShape, traffic_of
from benchmarks.vllm.load import TURNS, of_pages
from emblema.errors import PromptError

TALKS, SUBSETS, LARGE, WINDOWS, NOVELTY = "talks", "subsets", "subsets-large", "windows", "novelty"
TRAFFIC = (TALKS, SUBSETS, LARGE, WINDOWS, NOVELTY)
EMBEDDED_ALONE = (WINDOWS, NOVELTY)
"""Traffic that vLLM is not sent."""
TEN = (SUBSETS, LARGE, WINDOWS)
"""Traffic in which every request shows `SHOWN` pictures."""
PAGES, SHOWN = 30, 10
SIDE, LARGE_SIDE = 8, 16
"""Cells along a page's side: of 66 rows, and of 258."""
SLOWER = 8
"""How many times fewer requests a second of `LARGE` arrive."""
LARGE_SHARE = 2
"""How many times fewer requests of `LARGE` are sent at a rate."""
NEW_SEEDS = 1_000
"""What the seeds of pages that nobody has seen begin with, above the others'."""

Part = str | Image.Image


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A user's message, texts and pictures in order, and the right answer."""

    parts: tuple[Part, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class LoadTraffic:
    """Traffic of one kind.

    Attributes:
        name: of `TRAFFIC`.
        rates: requests a second, rising; 0 for one after another.
        portions: requests of each rate.
        pages: pictures that the server has seen before.
        files: whether the pages are uploaded, and requests name them by id; else they send pictures.
    """

    name: str
    rates: tuple[float, ...]
    portions: tuple[tuple[LoadRequest, ...], ...]
    pages: tuple[Image.Image, ...]
    files: bool


def load_traffic(name: str, rates: tuple[float, ...], requests: int, seed: int) -> LoadTraffic:
    """Return traffic of a kind; every rate has requests of its own, `novelty` the rate in the middle alone.

    Args:
        name: of `TRAFFIC`.
        rates: requests a second; `LARGE` has slower ones.
        requests: at each rate.
        seed: of pages and orders.

    Raises:
        PromptError: there is no such traffic, or there are too few requests.
    """
    if name not in TRAFFIC:
        raise PromptError(f"unknown traffic {name!r}: choose one of {', '.join(TRAFFIC)}")
    if requests < 2 * len(TURNS):
        raise PromptError(f"{requests} requests at a rate: give {2 * len(TURNS)} or more")
    talks = requests // len(TURNS)
    if name == TALKS:
        told = [of_pages(talks, seed, 1 + place) for place in range(len(rates))]
        portions = tuple(tuple(LoadRequest(turn.parts, turn.answer) for turn in each.turns) for each in told)
        return LoadTraffic(name, rates, portions, told[0].pool, files=False)
    if name == NOVELTY:
        turns = [turn for talk in range(talks) for turn in of_pages(1, seed + NEW_SEEDS + talk).turns]
        rate = rates[len(rates) // 2]
        return LoadTraffic(name, (rate,), (tuple(LoadRequest(turn.parts, turn.answer) for turn in turns),), (), False)
    if name == LARGE:
        rates, requests = tuple(rate / SLOWER for rate in rates), requests // LARGE_SHARE
    count = requests * len(rates)
    if name == WINDOWS:
        # Windows that have just begun show fewer.
        shape = TrafficShape("agent", 3 * count, SIDE, shown=SHOWN)
    else:
        shape = TrafficShape("rag", count, LARGE_SIDE if name == LARGE else SIDE, PAGES, SHOWN)
    traffic = traffic_of(shape, seed)
    pages = [page.image() for page in traffic.pages]
    shown = [request for request in traffic.requests if _pictures(request) == SHOWN]
    planned = [
        LoadRequest(
            tuple(pages[piece.page] if isinstance(piece, Picture) else str(piece) for piece in request.turns[0].pieces),
            request.answer,
        )
        for request in shown[:count]
    ]
    portions = tuple(tuple(planned[start : start + requests]) for start in range(0, count, requests))
    known = () if name == WINDOWS else tuple(pages)
    return LoadTraffic(name, rates, portions, known, files=name != WINDOWS)


def _pictures(request: TrafficRequest) -> int:
    return sum(isinstance(piece, Picture) for turn in request.turns for piece in turn.pieces)
