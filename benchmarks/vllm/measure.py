"""Three measurements of a running server: agreement on questions, seconds to the first token, and many clients."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy
from PIL import Image

from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.page_tasks import two_page
from benchmarks.tasks.prompts import asked
from benchmarks.vllm.client import Client, Told, content_of
from emblema.errors import EmblemaError

PLAIN = "full"
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a strategy answers as plain prefill does, on the same server.

    Attributes:
        strategy: as asked for.
        questions: how many.
        agreeing: how many answers are the same text.
        low, high: 95 % interval of the share.
        right: answers that are the right ones; `plain_right` those of plain prefill.
        picture_rows, linked_rows: of all prompts together.
        fallbacks: questions of which nothing was linked.
    """

    strategy: str
    questions: int
    agreeing: int
    low: float
    high: float
    right: int
    plain_right: int
    picture_rows: int
    linked_rows: int
    fallbacks: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token: median and every one, with the rows that were computed."""

    strategy: str
    median: float
    seconds: tuple[float, ...]
    prompt_tokens: int
    linked_tokens: int


def pages_of(item: TaskItem) -> list[Image.Image]:
    """The pictures of an item in order."""
    return [media.content for media in item.media if isinstance(media.content, Image.Image)]


def agreement(
    client: Client, strategies: Sequence[str], questions: int, seed: int, notify: Callable[[int], None]
) -> list[Agreement]:
    """Two-page questions through HTTP. Each item is shown twice before it counts, as its pages and patches are made.

    The server is to run without vLLM's prefix cache, or its exact pages would answer in place of linked ones.
    """
    found: dict[str, list[tuple[Told, Told, str, int]]] = {name: [] for name in strategies}
    number = done = 0
    while done < questions:
        item = two_page(seed, number, "emblema")
        number += 1
        pages = pages_of(item)
        asks = [content_of([*pages, *texts_of(item, index)]) for index in range(len(item.questions))]
        for name in strategies:
            ready(client, asks[0], name)
        for question, content in list(zip(item.questions, asks, strict=True))[: questions - done]:
            plain = client.ask(content, strategy=PLAIN, capture=False)
            for name in strategies:
                told = client.ask(content, strategy=name, capture=False)
                found[name].append((plain, told, question.answer, int(told.linking.get("media_tokens", 0))))
            done += 1
            notify(1)
    return [_agreed(name, rows) for name, rows in found.items()]


def wilson(agreeing: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, agreeing / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5 / (1 + z * z / count)
    return centre - half, centre + half


def texts_of(item: TaskItem, index: int) -> list[str]:
    """A question's text, as it stands behind the pages."""
    return [part for part in asked(item.form, item.questions[index]) if isinstance(part, str)]


def ready(client: Client, content: Sequence[Any], strategy: str, salt: str | None = None) -> None:
    """Show a prompt until all of its pieces are there.

    Raises:
        EmblemaError: they are not within a minute.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        told = client.ask(content, strategy=strategy, tokens=1, salt=salt).linking
        if told.get("stored"):
            return
        time.sleep(0.05)
    raise EmblemaError(f"nothing was linked within {PATIENCE:g} s: is this a server with the emblema connector?")


def _agreed(name: str, rows: Sequence[tuple[Told, Told, str, int]]) -> Agreement:
    same = sum(told.text.strip() == plain.text.strip() for plain, told, _, _ in rows)
    low, high = wilson(same, len(rows))
    return Agreement(
        name,
        len(rows),
        same,
        low,
        high,
        sum(told.text.strip() == answer for _, told, answer, _ in rows),
        sum(plain.text.strip() == answer for plain, _, answer, _ in rows),
        sum(media for *_, media in rows),
        sum(int(told.linking.get("linked_tokens", 0)) for _, told, _, _ in rows),
        sum(not told.linking.get("linked_tokens") for _, told, _, _ in rows),
    )


def first_tokens(client: Client, strategies: Sequence[str], pictures: int, side: int, rounds: int) -> list[FirstToken]:
    """Seconds to the first token of one prompt, plain and linked in turn, each round; every picture seen before.

    The server is to run without vLLM's prefix cache.
    """
    rng = numpy.random.default_rng(1)
    shown = [Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=numpy.uint8)) for _ in range(pictures)]
    parts: list[str | Image.Image] = ["which land does the tent stand on ? " * 5]
    for picture in shown:
        parts += [picture, "and then"]
    content = content_of([*parts, "which land does the tent stand on ?"])
    for name in strategies:
        ready(client, content, name)
    taken: dict[str, list[Told]] = {name: [] for name in (PLAIN, *strategies)}
    for _ in range(rounds):
        for name in taken:
            taken[name].append(client.ask(content, strategy=name, tokens=1, capture=False))
    return [
        FirstToken(
            name,
            statistics.median(one.seconds for one in told),
            tuple(one.seconds for one in told),
            told[0].prompt_tokens,
            int(told[0].linking.get("linked_tokens", 0)),
        )
        for name, told in taken.items()
    ]


def clients(client: Client, strategy: str, count: int, asks: int, seed: int) -> dict[str, float]:
    """Many clients at once on a few items: answers a second, and every answer as it is when asked alone."""
    contents = []
    for number in range(4):
        item = two_page(seed, number, "emblema")
        contents += [content_of([*pages_of(item), *texts_of(item, index)]) for index in range(2)]
        ready(client, contents[-1], strategy)
    alone = [client.ask(content, strategy=strategy, capture=False).text for content in contents]
    wrong, lock, seconds = [0], threading.Lock(), []

    def one(number: int) -> None:
        told = client.ask(contents[number % len(contents)], strategy=strategy, capture=False)
        with lock:
            seconds.append(told.seconds)
            wrong[0] += told.text != alone[number % len(contents)]

    began = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(asks)))
    whole = time.perf_counter() - began
    return {
        "clients": count, "asks": asks, "a second": asks / whole, "median": statistics.median(seconds),
        "different": wrong[0],
    }  # fmt: skip


def plain_data(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Frozen records for a file of figures."""
    return [asdict(one) for one in found]
