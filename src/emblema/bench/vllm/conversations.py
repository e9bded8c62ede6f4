"""Conversations over the same ten pictures, each in an order of its own: linking against vLLM's own prefix cache.

As in MMDU, a turn adds pictures and a question to all turns before it. An exact prefix serves the later turns of one
conversation and nothing of another, as no two begin alike; linked pictures serve both.
"""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy
from PIL import Image

from emblema.bench.vllm.client import Client, Told, content_of
from emblema.bench.vllm.measure import PLAIN, ready

PICTURES = 10
TURNS = (4, 2, 2, 2)
"""How many pictures each turn adds."""


@dataclass(frozen=True, slots=True)
class Conversing:
    """What conversations came to under one strategy, at one rate.

    Attributes:
        strategy: `full` is vLLM with its prefix cache alone; the others have it too.
        at_once: conversations under way at once.
        first_turn, later_turns: median seconds to the first token.
        turns_a_second: of all conversations together.
        prompt_tokens, cached_tokens, linked_tokens, kv_bytes: of all turns; linked tokens are among the cached.
    """

    strategy: str
    at_once: int
    first_turn: float
    later_turns: float
    turns_a_second: float
    prompt_tokens: int
    cached_tokens: int
    linked_tokens: int
    kv_bytes: int


def conversations(
    client: Client, strategies: Sequence[str], count: int, rates: Sequence[int], side: int, seed: int
) -> list[Conversing]:
    """Hold `count` conversations under each strategy at each rate; every picture has been seen before.

    Strategies have a tenant each, so that none answers from what another left behind.
    """
    rng = numpy.random.default_rng(seed)
    pool = [Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=numpy.uint8)) for _ in range(PICTURES)]
    found = []
    for name in (PLAIN, *strategies):
        salt = f"tenant of {name}"
        if name != PLAIN:
            ready(client, content_of([*pool, "which land ?"]), name, salt)
        for rate in rates:
            orders = [[pool[place] for place in rng.permutation(PICTURES)] for _ in range(count)]
            began = time.perf_counter()
            with ThreadPoolExecutor(rate) as threads:
                told = list(threads.map(lambda order, name=name, salt=salt: _hold(client, order, name, salt), orders))
            found.append(_summed(name, rate, told, time.perf_counter() - began))
    return found


def _hold(client: Client, order: Sequence[Image.Image], strategy: str, salt: str) -> list[Told]:
    """One conversation; the answers of earlier turns are taken as given, so that all strategies see the same rows."""
    content: list[dict[str, Any]] = []
    told = []
    left = iter(order)
    for number in TURNS:
        parts: list[str | Image.Image] = ["look at these pages"]
        for _ in range(number):
            parts += [next(left), "and then"]
        content = [*content, *content_of([*parts, "which land does the tent stand on ?"])]
        told.append(client.ask(content, strategy=strategy, tokens=1, salt=salt, capture=False))
        content.append({"type": "text", "text": "lake"})
    return told


def _summed(name: str, rate: int, told: Sequence[Sequence[Told]], seconds: float) -> Conversing:
    every = [one for turns in told for one in turns]
    return Conversing(
        name,
        rate,
        statistics.median(turns[0].seconds for turns in told),
        statistics.median(one.seconds for turns in told for one in turns[1:]),
        len(every) / seconds,
        sum(one.prompt_tokens for one in every),
        sum(one.cached_tokens for one in every),
        sum(int(one.linking.get("linked_tokens", 0)) for one in every),
        sum(int(one.linking.get("kv_bytes", 0)) for one in every),
    )
