"""No tenant waits for what another has fetched, decoded or read; a request ends at its deadline and with its client."""

import base64
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from emblema.serve.keys import KeyRing
from tests.serve.sent import png_of, settled
from tests.serve.servers import Running, serving
from tests.serve.slow_places import pdf, slow_place

TEXT = {"type": "text", "text": "what is shown ?"}
MB = 2**20
REQUEST_BYTES = 30 * MB
DEADLINE = 3.0


class Tenants:
    """A server with two tenants."""

    def __init__(self, running: Running, keys: dict[str, str]) -> None:
        self.running, self._keys = running, keys

    def client(self, name: str, timeout: float = 60) -> httpx.Client:
        headers = {"authorization": f"Bearer {self._keys[name]}"}
        return httpx.Client(base_url=self.running.address, timeout=timeout, headers=headers)

    def chat(self, name: str, *parts: dict[str, object], timeout: float = 60) -> httpx.Response:
        body = {"model": "reference", "max_tokens": 2, "messages": [{"role": "user", "content": [*parts, TEXT]}]}
        with self.client(name, timeout) as client:
            return client.post("/v1/chat/completions", json=body)

    def gauge(self, name: str) -> float:
        with self.running.http() as http:
            found = re.search(rf"^{re.escape(name)} (\S+)$", http.get("/metrics").text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def until(self, name: str, value: float, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while self.gauge(name) != value:
            assert time.monotonic() < end, (name, self.gauge(name))
            time.sleep(0.02)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("waits")
    ring = KeyRing(folder / "serve")
    keys = {name: ring.add(name) for name in ("alice", "bob")}
    options = {"deadline": DEADLINE, "allowed_hosts": ("127.0.0.1",), "request_bytes": REQUEST_BYTES}
    with serving(folder, **options) as running:
        made = Tenants(running, keys)
        assert made.chat("bob").status_code == 200
        yield made


def at(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def inline(data: bytes, kind: str = "application/pdf") -> dict[str, object]:
    address = f"data:{kind};base64," + base64.b64encode(data).decode()
    return {"type": "file", "file": {"file_data": address}}


def picture(side: int) -> bytes:
    return png_of(Image.new("RGB", (side, side), (30, 30, 200)))


@pytest.mark.slow
def test_slow_addresses_of_one_tenant_hold_up_no_other(tenants: Tenants) -> None:
    with slow_place(60) as slow, slow_place(0) as quick, ThreadPoolExecutor(24) as pool:
        sent = [pool.submit(tenants.chat, "alice", at(slow.url(number))) for number in range(24)]
        while slow.asked < 4:
            time.sleep(0.01)
        for parts in ([], [inline(picture(32), "image/png")], [inline(pdf(1, 40))], [at(quick.url(1))]):
            assert tenants.chat("bob", *parts).status_code == 200
        with tenants.client("bob") as client:
            assert client.get("/v1/files").status_code == client.get("/v1/caches").status_code == 200
        assert slow.asked == 4, "and the tenant has no more places than its own"
        statuses = [future.result().status_code for future in sent]
    assert set(statuses) == {504}, "each ends at its deadline, though none was answered"


@pytest.mark.slow
def test_the_deadline_is_the_requests(tenants: Tenants) -> None:
    """From its arrival on, over all of its media."""
    with slow_place(1.0) as place:
        began = time.monotonic()
        answer = tenants.chat("alice", *(at(place.url(number)) for number in range(8)))
        took = time.monotonic() - began
    assert answer.status_code == 504 and took > DEADLINE - 0.5
    assert place.asked <= 5, "not one deadline each"
    # What is fetched within it leaves less of it for the rest, and is answered.
    with slow_place(0.5) as place:
        assert tenants.chat("alice", at(place.url(1)), at(place.url(2))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_left_is_read_for_no_more(tenants: Tenants, stream: bool) -> None:
    with slow_place(0.4) as place:
        with tenants.client("alice", timeout=0.6) as client, pytest.raises(httpx.TimeoutException):
            content = [*(at(place.url(number)) for number in range(20)), TEXT]
            body = {"model": "reference", "stream": stream, "messages": [{"role": "user", "content": content}]}
            client.post("/v1/chat/completions", json=body)
        tenants.until('emblema_held_bytes{what="bodies"}', 0)
        tenants.until('emblema_pool_running{pool="downloads"}', 0)
        seen = place.asked
        time.sleep(0.6)
        assert place.asked == seen <= 5
    tenants.until('emblema_held_bytes{what="decoded"}', 0)


@pytest.mark.slow
def test_what_a_request_unpacks_to_is_bounded(tenants: Tenants) -> None:
    """However it is cut: in pages, in parts, in a file that was uploaded."""
    page, large = pdf(1, 1_000), pdf(3, 1_000)
    assert tenants.chat("alice", inline(page)).status_code == 200, "12 MB, of 30"
    with tenants.client("alice") as client:
        uploaded = [client.post("/v1/files", files={"file": ("a.pdf", pdf(1, 1_000 - n))}).json() for n in range(3)]
    tenants.until('emblema_pool_running{pool="clips"}', 0)
    for parts in (
        [inline(large)],
        [inline(page), inline(pdf(1, 1_001)), inline(pdf(1, 1_002))],
        [inline(picture(2_000), "image/png"), inline(picture(1_999), "image/png"), inline(page)],
    ):
        answer = tenants.chat("alice", *parts)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "media_too_large", answer.text
    tenants.until('emblema_held_bytes{what="decoded"}', 0)
    with tenants.client("alice") as client:
        file = client.post("/v1/files", files={"file": ("large.pdf", large)}).json()["id"]
        told = settled(client, f"/v1/files/{file}")
        assert told["status"] == "error" and str(REQUEST_BYTES) in told["status_details"]
        for each in uploaded:
            client.delete(f"/v1/files/{each['id']}")


def test_uploads_wait_as_they_came(tenants: Tenants) -> None:
    """Not decoded: their turn comes one at a time, and another tenant's picture beside them."""
    side, most, ended = 500, [0.0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            most[0] = max(most[0], tenants.gauge('emblema_held_bytes{what="decoded"}'))
            time.sleep(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    with tenants.client("alice") as client:
        for number in range(8):
            data = png_of(Image.new("L", (side, side), number))
            assert client.post("/v1/files", files={"file": ("a.png", data)}).status_code == 200
        assert tenants.chat("bob", inline(picture(64), "image/png")).status_code == 200
        until = time.monotonic() + 60
        while any(file["status"] == "uploaded" for file in client.get("/v1/files").json()["data"]):
            assert time.monotonic() < until
            time.sleep(0.05)
    ended.set()
    watching.join()
    assert 0 < most[0] <= 2 * REQUEST_BYTES, "of two readings, each counted as a whole at first"


def test_keys_are_looked_up_whoever_writes_them(tenants: Tenants) -> None:
    """Another process's transaction on the file of keys holds up no look-up, and a locked file no event loop."""
    path = tenants.running.settings.folder / "keys.sqlite"
    with ThreadPoolExecutor(1) as pool, sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert tenants.chat("bob").status_code == 200
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        waiting = pool.submit(tenants.chat, "bob")
        time.sleep(0.3)
        with tenants.running.http() as http:
            assert http.get("/health").status_code == 200
        assert not waiting.done(), "the file is locked still, and the loop answered"
        other.execute("ROLLBACK")
        assert waiting.result().status_code == 200


def test_no_thread_of_a_server_is_one_that_all_share() -> None:
    """Work has a pool of its own, with turns; asyncio's default threads have none."""
    source = Path(__file__).parents[2] / "src" / "emblema"
    rooms = ("serve", "engine", "plugin", "scale", "vllm", "sglang")
    files = [path for room in rooms for path in (source / room).rglob("*.py")]
    found = [path.name for path in files if re.search(r"to_thread|run_in_executor|run_in_threadpool", path.read_text())]
    assert len(files) > 80 and found == []
