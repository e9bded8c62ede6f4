"""Media that an `AsyncEngine` is asked about by address or path: fetched and decoded beside the model's thread."""

import asyncio
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tasks import Episode
from emblema import AsyncEngine, Engine, Store
from emblema.errors import MediaError, PromptError
from emblema.media import MediaLimits

QUESTION = "on which land does the moon stand ?"


class SlowSite(ThreadingHTTPServer):
    """A server that answers when it is told to."""

    def __init__(self, picture: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.picture = picture
        self.asked, self.answers = threading.Event(), threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/map.png"


class Handler(BaseHTTPRequestHandler):
    server: SlowSite

    def do_GET(self) -> None:
        self.server.asked.set()
        assert self.server.answers.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.picture)))
        self.end_headers()
        self.wfile.write(self.server.picture)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture(scope="module")
def picture(episode: Episode) -> bytes:
    buffer = io.BytesIO()
    episode.pages[0].image().save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def site(picture: bytes) -> Iterator[SlowSite]:
    with SlowSite(picture) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.answers.set()
        server.shutdown()


@pytest.fixture
def own(reference: Engine) -> Iterator[Engine]:
    limits = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}), download_seconds=60)
    with Store() as store:
        yield Engine(reference.adapter.model, reference.processor, store=store, limits=limits)


def _message(address: str, type: str = "image_url") -> list[dict[str, Any]]:
    content = [{"type": type, type: {"url": address}}, {"type": "text", "text": QUESTION}]
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("call", ["generate", "prefill", "encode", "add"])
def test_a_slow_download_holds_up_nobody_else(own: Engine, site: SlowSite, picture: bytes, call: str) -> None:
    async def ask() -> None:
        async with AsyncEngine(own) as engine:
            other = engine.on(engine.store.parent.tenant(b"other"))
            named = site.address if call in ("encode", "add") else _message(site.address)
            slow = asyncio.create_task(getattr(engine, call)(named))
            assert await asyncio.to_thread(site.asked.wait, 60)
            reply = await asyncio.wait_for(other.generate(QUESTION, max_new_tokens=3), 60)
            assert reply.token_ids and not slow.done()
            site.answers.set()
            await asyncio.wait_for(slow, 60)

    asyncio.run(ask())


def test_what_is_named_is_what_is_added(own: Engine, picture: bytes, tmp_path: Path, site: SlowSite) -> None:
    """By path or address, in parts or messages, the answer is that over the picture itself."""
    path = tmp_path / "map.png"
    path.write_bytes(picture)
    site.answers.set()

    async def ask() -> None:
        async with AsyncEngine(own) as engine:
            chunk = await engine.add(picture)
            expected = await engine.generate([chunk, QUESTION], max_new_tokens=4)
            message = {"role": "user", "content": [path, QUESTION]}
            typed = {"role": "user", "content": [{"type": "image", "image": picture}, QUESTION]}
            for parts in ([path, QUESTION], (path, QUESTION), [message], [typed], _message(site.address)):
                reply = await engine.generate(parts, max_new_tokens=4)
                assert reply.token_ids == expected.token_ids
            pieces = [piece async for piece in await engine.generate([path, QUESTION], stream=True, max_new_tokens=4)]
            assert "".join(pieces) == expected.text

    asyncio.run(ask())


def test_what_is_wrong_is_refused_as_ever(own: Engine, tmp_path: Path) -> None:
    async def ask() -> None:
        async with AsyncEngine(own) as engine:
            for parts, error in (
                ([tmp_path / "missing.png", QUESTION], MediaError),
                (_message("/etc/passwd"), PromptError),
                (_message("http://[::1]/"), MediaError),
                ([{"role": "user", "content": [{"type": "music", "music": "a"}]}], PromptError),
                (7, PromptError),
                ([], PromptError),
            ):
                with pytest.raises(error):
                    await engine.generate(parts)  # type: ignore[arg-type]
            assert (await engine.generate(QUESTION, max_new_tokens=2)).token_ids

    asyncio.run(ask())
