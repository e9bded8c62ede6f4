"""One tenant that does its worst: another's answers come, and the server's memory stays within what is stated."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from emblema.serve.keys import KeyRing
from emblema.serve.messages import MESSAGES
from emblema.serve.settings import ServeSettings
from tests.serve.processes import Process, process
from tests.serve.sent import png_of
from tests.serve.slow_places import SlowPlace, pdf, slow_place
from tests.serve.test_waits import TEXT, at, inline

MB = 2**20
COUNT = 40
DIFFERENT = 64
"""Pictures that an attacker has: each is another to the server."""
Attack = Callable[[httpx.Client, int], httpx.Response]


class Tenants:
    """A server in a process of its own, and two tenants of it."""

    def __init__(self, running: Process, keys: dict[str, str]) -> None:
        self.process, self._keys = running, keys

    def client(self, name: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self._keys[name]}"}
        return httpx.Client(base_url=self.process.address, timeout=300, headers=headers)

    def seconds(self, count: int = COUNT) -> list[float]:
        """Return how long chats of text alone take, the shortest first; each is answered."""
        took = []
        with self.client("bob") as client:
            for _ in range(count):
                began = time.monotonic()
                assert chat(client, TEXT).status_code == 200
                took.append(time.monotonic() - began)
        return sorted(took)

    @property
    def memory(self) -> int:
        """Bytes that the server holds."""
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


def chat(client: httpx.Client, *parts: dict[str, Any]) -> httpx.Response:
    body = {"model": "reference", "max_tokens": 2, "messages": [{"role": "user", "content": [*parts]}]}
    return client.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def place() -> Iterator[SlowPlace]:
    with slow_place(5) as made:
        yield made


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("hostile")
    ring = KeyRing(ServeSettings.read(store=folder).folder)
    keys = {name: ring.add(name) for name in ("alice", "bob")}
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    config.write_text('allowed_hosts = ["127.0.0.1"]\n')
    with process(folder, "--config", str(config)) as running:
        yield Tenants(running, keys)


@contextmanager
def attacked(tenants: Tenants, attack: Attack, many: int) -> Iterator[list[int]]:
    """Attack until the block ends; yield the memory that the server had, measured again and again."""
    memory, ended = [tenants.memory], threading.Event()

    def work(number: int) -> None:
        with tenants.client("alice") as client:
            while not ended.is_set():
                number += many
                if attack(client, number).status_code == 429:
                    ended.wait(1)

    def watch() -> None:
        while not ended.wait(0.02):
            memory.append(tenants.memory)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(many)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    try:
        time.sleep(2)
        yield memory
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@cache
def picture(number: int) -> bytes:
    """Return a picture of nine million pixels, another for each number."""
    return png_of(Image.new("L", (3_000 - number, 3_000), number), compress_level=1)


@cache
def talk() -> bytes:
    """Return a request of as many turns as are taken."""
    turns = [{"role": ("user", "assistant")[turn % 2], "content": "a"} for turn in range(MESSAGES - 1)]
    return json.dumps({"model": "reference", "messages": turns}).encode()


def upload(client: httpx.Client, number: int) -> httpx.Response:
    return client.post("/v1/files", files={"file": ("a.png", picture(number % DIFFERENT))})


def text(client: httpx.Client, number: int) -> httpx.Response:
    return chat(client, {"type": "text", "text": f"{number} where ? " * 2_000})


def turns(client: httpx.Client, number: int) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return client.post("/v1/chat/completions", content=talk(), headers=headers)


@pytest.mark.nightly
def test_slow_addresses_do_not_show(tenants: Tenants, place: SlowPlace) -> None:
    idle = tenants.seconds()
    with attacked(tenants, lambda client, number: chat(client, at(place.url(number)), TEXT), 24):
        beside = tenants.seconds()
    assert beside[-1] < 3 * idle[-1], "the slowest of forty"


ATTACKS: dict[str, Attack] = {
    "pages": lambda client, number: chat(client, inline(pdf(2, 4_000 - number)), TEXT),
    "too many pages": lambda client, number: chat(client, inline(pdf(9, 4_000 - number)), TEXT),
    "uploads": upload,
    "turns": turns,
    "text": text,
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ATTACKS)
def test_others_are_answered_and_memory_is_bounded(tenants: Tenants, kind: str) -> None:
    """What is stated: media of one tenant, its bodies, and what two pictures take while they are made smaller."""
    # What the attacker sends is made before: its own machine is not this one.
    for number in range(DIFFERENT):
        picture(number)
    talk()
    idle, settings = tenants.seconds(), ServeSettings.read(store=Path("unused"))
    before = tenants.memory
    with attacked(tenants, ATTACKS[kind], 6) as memory:
        took = tenants.seconds()
    print(f"{kind}: idle {idle[-1]:.3f} s, slowest {took[-1]:.3f} s, median {took[len(took) // 2]:.3f} s")
    assert max(memory) - before < 1.5 * settings.tenant_bytes + 1_000 * MB
    assert took[-1] < 3 * idle[-1], "the slowest of forty"
