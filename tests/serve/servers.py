"""Servers in a thread of the test's process, on real sockets."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from openai import OpenAI

from emblema.serve.app import make_app
from emblema.serve.running import make_config
from emblema.serve.settings import ServeSettings


class Running:
    """A server that runs, and clients of it."""

    def __init__(self, settings: ServeSettings, port: int) -> None:
        self.settings, self.address = settings, f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0)

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, **options)


@contextmanager
def started(folder: Path, **settings: Any) -> Iterator[Running]:
    """Run a server on a folder until the block ends; its model is not waited for."""
    chosen = ServeSettings.read(store=folder, port=0, **settings)
    server = uvicorn.Server(make_config(chosen, make_app(chosen), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Running(chosen, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Running]:
    """Run a server on a folder until the block ends."""
    with started(folder, **settings) as running:
        with running.http() as http:
            while (answer := http.get("/health")).status_code == 503 and "loaded" in answer.text:
                assert "could not" not in answer.text, answer.text
                time.sleep(0.05)
        yield running
