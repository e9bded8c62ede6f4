"""Time tells nothing of other tenants: their ids and pictures take as long as those that nobody has.

Each pair of requests, one for what another tenant has and one for what nobody has, is sent in an order drawn by chance.
Where there is no difference, either is the slower one half of the time, however noisy the machine: a sign test.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from math import comb
from statistics import median
from time import perf_counter
from typing import Any

import httpx
import pytest

from emblema.serve.keys import KeyRing
from tests.serve.conftest import QUESTION, asked
from tests.serve.engines import COMMANDS, served
from tests.serve.sent import noise

pytestmark = pytest.mark.nightly
CERTAIN = 1e-4
"""Chance below which a difference is one; at twelve comparisons a run fails by chance once in 800."""
IDS, REPEATS, PICTURES = 20, 12, 24
KEPT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


class Tenants:
    """A server on which one tenant has files, caches and rows, and another one asks."""

    def __init__(self, one: httpx.Client, two: httpx.Client, drawn: random.Random) -> None:
        self.one, self.two, self.drawn = one, two, drawn

    def png(self) -> bytes:
        """A picture that nobody has."""
        return noise(self.drawn.getrandbits(32), 64)

    def upload(self, http: httpx.Client, png: bytes) -> str:
        answer = http.post("/v1/files", files={"file": ("p.png", png)})
        assert answer.status_code == 200, answer.text
        id: str = answer.json()["id"]
        return id

    def compare(self, pairs: Sequence[tuple[Any, Any]], seconds: Callable[[Any], float]) -> tuple[float, float, float]:
        """Return medians of both and the chance of a difference as large by chance alone (two-sided sign test)."""
        measured = []
        for pair in pairs:
            taken = [0.0, 0.0]
            for which in self.drawn.sample((0, 1), 2):
                taken[which] = seconds(pair[which])
            measured.append(taken)
        slower, count = sum(theirs > nobodys for theirs, nobodys in measured), len(measured)
        tail = sum(comb(count, lower) for lower in range(min(slower, count - slower) + 1)) / 2**count
        return *(median(taken[which] for taken in measured) for which in (0, 1)), min(1.0, 2 * tail)  # type: ignore


@pytest.fixture(scope="module", params=COMMANDS)
def tenants(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("timing")
    ring = KeyRing(folder / "store" / "serve")
    keys = [ring.add(name) for name in ("one", "two")]
    with served(request.param, folder) as engine, engine.http(keys[0]) as one, engine.http(keys[1]) as two:
        yield Tenants(one, two, random.Random(16))


def prefixed(kind: str, id: str, drawn: random.Random) -> tuple[str, str]:
    """An id, and one of its form that nobody has."""
    return id, f"{kind}-{drawn.getrandbits(128):032x}"


def of_part(part: dict[str, Any]) -> dict[str, Any]:
    question = {"type": "text", "text": QUESTION}
    return {"model": "reference", "max_tokens": 1, "messages": [{"role": "user", "content": [part, question]}]}


def test_ids_of_others_take_as_long_as_ids_of_nobody(tenants: Tenants) -> None:
    files = [tenants.upload(tenants.one, tenants.png()) for _ in range(IDS)]
    caches = []
    for file in files:
        body = {"content": [{"type": "file", "file": {"file_id": file}}]}
        caches.append(tenants.one.post("/v1/caches?wait=true", json=body).json()["id"])
    ids = {
        "file": [prefixed("file", id, tenants.drawn) for id in files] * REPEATS,
        "cache": [prefixed("cache", id, tenants.drawn) for id in caches] * REPEATS,
    }
    asks: dict[str, tuple[str, Callable[[str], httpx.Response]]] = {
        "file": ("file", lambda id: tenants.two.get(f"/v1/files/{id}")),
        "content": ("file", lambda id: tenants.two.get(f"/v1/files/{id}/content")),
        "deletion": ("file", lambda id: tenants.two.delete(f"/v1/files/{id}")),
        "part": ("file", lambda id: tenants.two.post(
            "/v1/chat/completions", json=of_part({"type": "file", "file": {"file_id": id}}))),
        "cache": ("cache", lambda id: tenants.two.get(f"/v1/caches/{id}")),
        "longer": ("cache", lambda id: tenants.two.patch(f"/v1/caches/{id}", json={"ttl": 60})),
        "end": ("cache", lambda id: tenants.two.delete(f"/v1/caches/{id}")),
        "use": ("cache", lambda id: tenants.two.post(
            "/v1/chat/completions", json=of_part({"type": "cache", "cache": {"cache_id": id}}))),
    }  # fmt: skip
    found = {}
    for name, (kind, ask) in asks.items():

        def seconds(id: str, ask: Callable[[str], httpx.Response] = ask) -> float:
            began = perf_counter()
            answer = ask(id)
            taken = perf_counter() - began
            assert answer.status_code == 404, answer.text
            return taken

        seconds(ids[kind][0][1])
        found[name] = tenants.compare(ids[kind], seconds)
    assert {name: told for name, told in found.items() if told[2] < CERTAIN} == {}


def asking(png: bytes, **kept: Any) -> dict[str, Any]:
    body: Any = {"model": "reference", "max_tokens": 1, "messages": asked([png])}
    body["messages"][0]["content"][0] |= kept
    return body


def wall(ask: Callable[[bytes], httpx.Response | str]) -> Callable[[bytes], float]:
    """What takes the time of a call."""

    def seconds(png: bytes) -> float:
        began = perf_counter()
        ask(png)
        return perf_counter() - began

    return seconds


def test_pictures_of_others_take_as_long_as_pictures_of_nobody(tenants: Tenants) -> None:
    """To the first token, of a prompt and of a part that is to be kept; and an upload, to its answer."""

    def ask(png: bytes) -> httpx.Response:
        answer = tenants.two.post("/v1/chat/completions", json=asking(png))
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached < 8, "nothing is linked but its own opening"
        return answer

    ways: dict[str, Callable[[bytes], float]] = {
        "first token": wall(ask),
        "kept part": wall(lambda png: tenants.two.post("/v1/chat/completions", json=asking(png, **KEPT))),
        "upload": wall(lambda png: tenants.upload(tenants.two, png)),
    }
    found = {}
    for name, seconds in ways.items():
        pairs = [(tenants.png(), tenants.png()) for _ in range(PICTURES)]
        for theirs, _ in pairs:
            content = [{"type": "file", "file": {"file_id": tenants.upload(tenants.one, theirs)}}]
            assert tenants.one.post("/v1/caches?wait=true", json={"content": content}).is_success
            tenants.one.post("/v1/chat/completions", json=asking(theirs))
        seconds(tenants.png())
        found[name] = tenants.compare(pairs, seconds)
    assert {name: told for name, told in found.items() if told[2] < CERTAIN} == {}


def test_a_difference_would_be_seen(tenants: Tenants) -> None:
    """What the tenant has made itself takes less time than what nobody has: the same comparison finds that."""
    own = [tenants.png() for _ in range(IDS)]

    def keep(png: bytes) -> httpx.Response:
        return tenants.two.post("/v1/chat/completions", json=asking(png, **KEPT))

    for png in own:
        keep(png)
    # As many pairs as a busy machine asks for, where one of five may be the wrong way round.
    known, unknown, chance = tenants.compare([(png, tenants.png()) for png in own * 4], wall(keep))
    assert known < unknown and chance < CERTAIN
