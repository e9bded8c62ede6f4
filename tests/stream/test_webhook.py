"""Webhooks, sent to servers on this machine: right ones, failing ones, and ones that hang."""

import json
import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from emblema.errors import MediaError, StreamError
from emblema.media import MediaLimits
from emblema.stream.webhook import Webhook
from tests.stream.servers import LocalServer, running

LOCAL = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}))


class Receiver(LocalServer):
    """Answers with the statuses given, then 200; None never answers."""

    def __init__(self, statuses: list[int | None]) -> None:
        super().__init__(Handler)
        self.statuses, self.bodies = statuses, list[Any]()
        self.types: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alerts?key=1"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status is None:
            self.server.ended.wait(30)
            return
        self.server.bodies.append((status, body))
        self.server.types.append(self.headers["Content-Type"])
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/other")
        self.send_header("Content-Length", "0")
        self.end_headers()


def receiver(*statuses: int | None) -> AbstractContextManager[Receiver]:
    return running(Receiver(list(statuses)))


def test_messages_arrive_in_order() -> None:
    with receiver() as server:
        hook = Webhook(server.url, LOCAL)
        for number in range(5):
            hook.send({"number": number})
        hook.close()
        assert server.bodies == [(200, {"number": number}) for number in range(5)]
        assert set(server.types) == {"application/json"}
        assert (hook.delivered, hook.failed, hook.dropped) == (5, 0, 0)
        with pytest.raises(StreamError, match="closed"):
            hook.send({})


def test_what_fails_is_sent_again_and_what_is_refused_is_not() -> None:
    with receiver(500, 503, 429, 200, 400, 302) as server:
        hook = Webhook(server.url, LOCAL, pause=0.01)
        for number in range(4):
            hook.send({"number": number})
        hook.close()
        assert [(status, body["number"]) for status, body in server.bodies] == [
            (500, 0), (503, 0), (429, 0), (200, 0), (400, 1), (302, 2), (200, 3),
        ]  # fmt: skip
        assert (hook.delivered, hook.failed, hook.last_error) == (2, 2, "it answered 302")


def test_tries_have_an_end() -> None:
    with receiver(*[500] * 3) as server:
        hook = Webhook(server.url, LOCAL, tries=3, pause=0.01)
        hook.send({"number": 0})
        hook.send({"number": 1})
        hook.close()
        assert (hook.delivered, hook.failed) == (1, 1)


@pytest.mark.slow
def test_a_receiver_that_hangs_makes_nobody_wait() -> None:
    """Sending returns at once, the queue stays bounded, and what hung is sent again when the receiver is back."""
    with receiver(None) as server:
        hook = Webhook(server.url, LOCAL, seconds=4.0, pause=0.01, waiting=3)
        began = time.monotonic()
        hook.send({"number": 0})
        while server.statuses and time.monotonic() < began + 60:
            time.sleep(0.005)
        assert not server.statuses, "the first message was not sent"
        before = time.monotonic()
        for number in range(1, 101):
            hook.send({"number": number})
        assert time.monotonic() - before < 3
        assert hook.dropped == 97
        hook.close(60)
        assert [body["number"] for _, body in server.bodies] == [0, 98, 99, 100]
        assert (hook.delivered, hook.failed, "took longer than 4 s" in hook.last_error) == (4, 0, True)


def test_closing_does_not_wait_for_a_receiver_that_hangs() -> None:
    with receiver(None, None) as server:
        hook = Webhook(server.url, LOCAL, seconds=20.0)
        hook.send({"number": 0})
        hook.send({"number": 1})
        began = time.monotonic()
        hook.close(0.2)
        assert time.monotonic() - began < 10
        # The one that hangs and the one that waits; neither is counted again when it ends later.
        counts = (hook.delivered, hook.failed, hook.dropped, hook.last_error)
        assert counts == (0, 2, 0, "it did not answer in time")
        server.ended.set()
        hook.close(60)
        assert (hook.delivered, hook.failed, hook.dropped) == (0, 2, 0)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/x", "http://localhost:9/x", "http://169.254.169.254/x", "ftp://example.com/x", "file:///x",
     "http://user:word@example.com/", "http://"],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(MediaError):
        Webhook(url)


def test_numbers_that_are_refused() -> None:
    for wrong in ({"seconds": 0}, {"tries": 0}, {"waiting": 0}, {"pause": -1}):
        with pytest.raises(StreamError):
            Webhook("http://127.0.0.1:9/", LOCAL, **wrong)  # type: ignore[arg-type]
