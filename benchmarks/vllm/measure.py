"""Three measurements of a running server: agreement on questions, seconds to the first token, and many clients."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy
from PIL import Image

from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.page_tasks import two_page
from benchmarks.tasks.prompts import asked
from benchmarks.vllm.client import Client, ServerReply, content_of
from emblema.errors import EmblemaError

PLAIN = "full"
QUIET_SECONDS = 0.25
"""Between two looks: the server forms patches once it is quiet, which it is after 0.2 s without a step."""
PATIENCE = 60.0
AnswerPair = tuple[ServerReply, ServerReply, str]
"""A question's answer by plain prefill and by a strategy, and the right one."""


@dataclass(frozen=True, slots=True)
class AgreementResult:
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
class FirstTokenResult:
    """Seconds to the first token: median and every one, with the rows that were computed."""

    strategy: str
    median: float
    seconds: tuple[float, ...]
    prompt_tokens: int
    linked_tokens: int


def pages_of(item: TaskItem) -> list[Image.Image]:
    """Return the pictures of an item in order."""
    return [media.content for media in item.media if isinstance(media.content, Image.Image)]


def noise_pictures(rng: numpy.random.Generator, count: int, side: int) -> list[Image.Image]:
    """Return pictures of noise, `side` pixels wide."""
    return [Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=numpy.uint8)) for _ in range(count)]


def agreement(client: Client, strategies: Sequence[str], questions: int, seed: int) -> list[AgreementResult]:
    """Ask two-page questions. Each item is shown twice before it counts, as its pages and patches are made then.

    The server is to run without vLLM's prefix cache, or its exact pages would answer in place of linked ones.
    """
    found: dict[str, list[AnswerPair]] = {name: [] for name in strategies}
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
                found[name].append((plain, client.ask(content, strategy=name, capture=False), question.answer))
            done += 1
    return [_agreement(name, rows) for name, rows in found.items()]


def wilson(agreeing: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z, share = 1.96, agreeing / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5 / (1 + z * z / count)
    return centre - half, centre + half


def texts_of(item: TaskItem, index: int) -> list[str]:
    """Return a question's text, as it comes after the pages."""
    return [part for part in asked(item.form, item.questions[index]) if isinstance(part, str)]


def ready(client: Client, content: Sequence[Any], strategy: str, salt: str | None = None) -> None:
    """Show a prompt until all of its pieces are there.

    Raises:
        EmblemaError: they are not within a minute.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if client.ask(content, strategy=strategy, tokens=1, salt=salt).linking.get("stored"):
            return
        time.sleep(QUIET_SECONDS)
    raise EmblemaError(f"nothing was linked within {PATIENCE:g} s: is this a server with the emblema connector?")


def _agreement(name: str, rows: Sequence[AnswerPair]) -> AgreementResult:
    same = sum(linked.text.strip() == plain.text.strip() for plain, linked, _ in rows)
    low, high = wilson(same, len(rows))
    return AgreementResult(
        name,
        len(rows),
        same,
        low,
        high,
        sum(linked.text.strip() == answer for _, linked, answer in rows),
        sum(plain.text.strip() == answer for plain, _, answer in rows),
        sum(int(linked.linking.get("media_tokens", 0)) for _, linked, _ in rows),
        sum(int(linked.linking.get("linked_tokens", 0)) for _, linked, _ in rows),
        sum(not linked.linking.get("linked_tokens") for _, linked, _ in rows),
    )


def first_tokens(
    client: Client, strategies: Sequence[str], pictures: int, side: int, rounds: int
) -> list[FirstTokenResult]:
    """Time the first token of one prompt, plain and linked in turn, each round; every picture seen before.

    The server is to run without vLLM's prefix cache.
    """
    parts: list[str | Image.Image] = ["which land does the tent stand on ? " * 5]
    for picture in noise_pictures(numpy.random.default_rng(1), pictures, side):
        parts += [picture, "and then"]
    content = content_of([*parts, "which land does the tent stand on ?"])
    for name in strategies:
        ready(client, content, name)
    taken: dict[str, list[ServerReply]] = {name: [] for name in (PLAIN, *strategies)}
    for _ in range(rounds):
        for name in taken:
            taken[name].append(client.ask(content, strategy=name, tokens=1, capture=False))
    return [
        FirstTokenResult(
            name,
            statistics.median(reply.seconds for reply in replies),
            tuple(reply.seconds for reply in replies),
            replies[0].prompt_tokens,
            int(replies[0].linking.get("linked_tokens", 0)),
        )
        for name, replies in taken.items()
    ]


def many_clients(client: Client, strategy: str, count: int, asks: int, seed: int) -> dict[str, float]:
    """Ask a few items by many clients at once; return answers a second, and how many differ from those asked alone."""
    contents = []
    for number in range(4):
        item = two_page(seed, number, "emblema")
        contents += [content_of([*pages_of(item), *texts_of(item, index)]) for index in range(2)]
        ready(client, contents[-1], strategy)
    alone = [client.ask(content, strategy=strategy, capture=False).text for content in contents]
    places = [number % len(contents) for number in range(asks)]
    began = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(lambda place: client.ask(contents[place], strategy=strategy, capture=False), places))
    rate = asks / (time.perf_counter() - began)
    different = sum(reply.text != alone[place] for reply, place in zip(replies, places, strict=True))
    median = statistics.median(reply.seconds for reply in replies)
    return {"clients": count, "asks": asks, "a second": rate, "median": median, "different": different}
