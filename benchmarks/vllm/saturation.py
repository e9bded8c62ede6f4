"""Answers a second where every request of a round is sent at once: vLLM without the plugin, with it idle, and `auto`.

Both servers run all the time. Round by round each arm gets the same requests, the arms in turns, the order turned by
one each round; the first round warms up and does not count. Between two arms the servers are left alone until they are
quiet, so no arm pays for what another left in the background; the processor time of that is reported. On a machine that
has other work, a round's rate says little; medians and the processor seconds of an answer are steadier.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from benchmarks.tasks.building import picture
from benchmarks.traffic.requests import Picture, TrafficShape, traffic_of
from benchmarks.vllm.client import Client, content_of
from benchmarks.vllm.load import TURNS, of_pages, server_counts

WITHOUT, IDLE, AUTO = "vllm", "full", "auto"
"""A server without the plugin; one with it whose requests ask for nothing; and its default."""
LARGE = "-large"
"""Ends the name of traffic whose pages are twice as high and wide."""
TRAFFIC = ("talks", "subsets", "windows", f"subsets{LARGE}", f"windows{LARGE}")
SIDE = 8
"""Cells along a page's side."""
PAGES, SHOWN, WINDOW = 24, 8, 6
QUIET, QUIET_SHARE, PATIENCE = 0.4, 0.05, 60.0
"""Seconds in which a quiet server uses less than this share of a processor, and how long that is waited for."""


@dataclass(frozen=True, slots=True)
class SaturationResult:
    """One arm of one kind of traffic.

    Attributes:
        traffic: of `TRAFFIC`.
        arm: `WITHOUT`, `IDLE` or `AUTO`.
        requests: of a round.
        rates: answers a second of each round that counts.
        ratios: the same over those of `WITHOUT` in the same round.
        seconds: processor seconds of the server's processes for an answer, by round, until the last one is there.
        agreeing: answers that are the text of `WITHOUT`, of all rounds that count.
        right: answers that are the right ones.
        picture_rows, linked_rows: as the plugin reports them, of all rounds that count.
        prefix_tokens: rows from vLLM's own prefix cache.
        background: processor seconds a round that the server used after its last answer.
    """

    traffic: str
    arm: str
    requests: int
    rates: tuple[float, ...]
    ratios: tuple[float, ...]
    seconds: tuple[float, ...]
    agreeing: int
    right: int
    picture_rows: int
    linked_rows: int
    prefix_tokens: int
    background: float


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A user's message in OpenAI's form, and the right answer."""

    content: Sequence[Mapping[str, Any]]
    answer: str


def rounds_of(kind: str, rounds: int, requests: int, seed: int) -> list[list[PlannedRequest]]:
    """Return the requests of each round: `talks` grow, `subsets` show 8 of 24 pages in any order, `windows` slide.

    A page takes 66 rows, one of traffic that ends with `LARGE` 258.

    The pages of `talks` are the same in every round, in new orders; the other two go on where the round before ended.
    """
    if kind == "talks":
        found = []
        for number in range(rounds):
            turns = of_pages(max(1, requests // len(TURNS)), seed, shuffle=number).turns
            found.append([PlannedRequest(content_of(turn.parts), turn.answer) for turn in turns])
        return found
    count, side = rounds * requests, 2 * SIDE if kind.endswith(LARGE) else SIDE
    if kind.removesuffix(LARGE) == "subsets":
        traffic = traffic_of(TrafficShape("rag", requests=count, side=side, pages=PAGES, shown=SHOWN), seed)
    else:
        traffic = traffic_of(TrafficShape("agent", requests=count, side=side, shown=WINDOW), seed)

    @cache
    def shown(page: int) -> list[dict[str, Any]]:
        content = picture(traffic.pages[page], False).content
        assert isinstance(content, Image.Image)
        return content_of([content])

    planned = []
    for request in traffic.requests:
        pieces = request.turns[0].pieces
        parts = [shown(piece.page) if isinstance(piece, Picture) else content_of([str(piece)]) for piece in pieces]
        planned.append(PlannedRequest([part for some in parts for part in some], request.answer))
    return [planned[start : start + requests] for start in range(0, count, requests)]


def saturate(
    clients: Mapping[str, Client],
    kind: str,
    rounds: Sequence[Sequence[PlannedRequest]],
    tokens: int,
    notify: Callable[[str], None],
) -> list[SaturationResult]:
    """Send every round to each arm at once; the first round does not count.

    Args:
        clients: by arm, of servers that run.
        kind: of traffic, for the name of the tenant.
        rounds: see `rounds_of`.
        tokens: of an answer, at most.
        notify: is told of each round in words.

    Raises:
        EmblemaError: a server refused, or broke off.
    """
    arms = list(clients)
    rates: dict[str, list[float]] = {arm: [] for arm in arms}
    used: dict[str, list[float]] = {arm: [] for arm in arms}
    texts: dict[str, list[str]] = {arm: [] for arm in arms}
    linking: dict[str, list[Mapping[str, Any]]] = {arm: [] for arm in arms}
    moved = dict.fromkeys(arms, 0.0)
    background = dict.fromkeys(arms, 0.0)
    answers: list[str] = []
    for number, requests in enumerate(rounds):
        shift = number % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            bodies = [_body(clients[arm].model, request, kind, arm, tokens) for request in requests]
            before = server_counts(clients[arm])
            port = urlsplit(clients[arm].address).port
            busy = processor_seconds(port)
            seconds, replies = _at_once(clients[arm], bodies)
            busy = processor_seconds(port) - busy
            after = server_counts(clients[arm])
            left = settle(clients[arm].address)
            if number == 0:
                continue
            rates[arm].append(len(bodies) / seconds)
            used[arm].append(busy / len(bodies))
            texts[arm] += [reply["choices"][0]["message"]["content"].strip() for reply in replies]
            linking[arm] += [(reply.get("kv_transfer_params") or {}).get("emblema") or {} for reply in replies]
            moved[arm] += after.get("prefix_cache_hits", 0) - before.get("prefix_cache_hits", 0)
            background[arm] += left / (len(rounds) - 1)
        if number:
            answers += [request.answer for request in requests]
            words = (f"{arm} {rates[arm][-1]:.1f} ({1e3 * used[arm][-1]:.0f} ms)" for arm in arms)
            notify(f"{kind}, round {number}, answers a second (processor time of one): {', '.join(words)}")
    plain = texts[WITHOUT]
    return [
        SaturationResult(
            kind,
            arm,
            len(rounds[0]),
            tuple(rates[arm]),
            tuple(rate / other for rate, other in zip(rates[arm], rates[WITHOUT], strict=True)),
            tuple(used[arm]),
            sum(text == other for text, other in zip(texts[arm], plain, strict=True)),
            sum(text == answer for text, answer in zip(texts[arm], answers, strict=True)),
            sum(int(report.get("media_tokens", 0)) for report in linking[arm]),
            sum(int(report.get("linked_tokens", 0)) for report in linking[arm]),
            int(moved[arm]),
            background[arm],
        )
        for arm in arms
    ]


def _body(model: str, request: PlannedRequest, kind: str, arm: str, tokens: int) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": list(request.content)}],
        "max_tokens": tokens,
        "temperature": 0.0,
        "cache_salt": f"{kind} under {arm}",
    }
    if arm != WITHOUT:
        body["kv_transfer_params"] = {"emblema": {"strategy": arm, "capture": arm == AUTO}}
    return json.dumps(body).encode()


def _at_once(client: Client, bodies: Sequence[bytes]) -> tuple[float, list[dict[str, Any]]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.perf_counter()
        replies = [reply for reply, _ in pool.map(client.send, bodies)]
        return time.perf_counter() - began, replies


def settle(address: str) -> float:
    """Wait until a server is quiet; return the processor seconds that it used meanwhile."""
    port = urlsplit(address).port
    begin = last = processor_seconds(port)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(QUIET)
        now = processor_seconds(port)
        if now - last < QUIET_SHARE * QUIET:
            break
        last = now
    return max(0.0, last - begin)


def processor_seconds(port: int | None) -> float:
    """Return the processor seconds of all processes of the server that was started with this port; 0 without /proc."""
    sessions: dict[int, float] = {}
    own = None
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        session = int(fields[3])
        # Of its own and of children that have ended, which a pool of processes has many of.
        ticks = sum(map(int, fields[11:15]))
        sessions[session] = sessions.get(session, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
        if b"--port" in words and str(port).encode() in words and int(folder.name) == session:
            own = session
    return 0.0 if own is None else sessions[own]
