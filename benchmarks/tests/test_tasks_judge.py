"""The judge, against a real HTTP server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.tasks.judge import DIMENSIONS, OVERALL, Judge, JudgeError, read_overall
from emblema.errors import EmblemaError

GIVEN = dict(zip((*DIMENSIONS, OVERALL), (3, 4, 9, 8, 10, 7, 8), strict=True))
Reply = tuple[int, Any]


class Recorder(ThreadingHTTPServer):
    """A server that sends prepared replies in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.asked = replies, list[tuple[str, dict[str, str], Any]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """Answers every path with the next prepared reply, and /models with two names."""

    server: Recorder

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers), None))
        self.answer(200, {"data": [{"id": "small-judge"}, {"id": "other"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        replies = self.server.replies
        self.answer(*(replies.pop(0) if len(replies) > 1 else replies[0]))

    def answer(self, status: int, value: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(*replies: Reply) -> Iterator[Recorder]:
    """A server in a thread of its own."""
    with Recorder(list(replies)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def completion(text: str) -> Reply:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_scores_come_back_from_the_first_model_that_is_listed() -> None:
    with serving(completion(f"The answer is good because {{it}} is.\n{GIVEN}")) as server:
        assert Judge(server.url + "/").score("what is it ?", "a tent", "the tent") == 8
    assert [path for path, _, _ in server.asked] == ["/v1/models", "/v1/chat/completions"]
    _, headers, body = server.asked[1]
    assert "Authorization" not in headers
    assert (body["model"], body["temperature"]) == ("small-judge", 0)
    system, user = (message["content"] for message in body["messages"])
    assert all(name in system for name in (*DIMENSIONS, OVERALL))
    assert all(text in user for text in ("what is it ?", "a tent", "the tent"))


@pytest.mark.parametrize("first", [[(503, {"error": "busy"}), (429, {})], [(200, None)]])
def test_a_busy_endpoint_or_one_without_scores_is_asked_again(first: list[Reply]) -> None:
    replies = [completion("I would rather not.") if value is None else (code, value) for code, value in first]
    with serving(*replies, completion(json.dumps(GIVEN))) as server:
        assert Judge(server.url, "judge", pause=0.01).score("q", "r", "a") == 8
    assert len(server.asked) == len(first) + 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (completion("Rather not."), "no scores for all dimensions; it ends with 'Rather not.'"),
        ((401, {"error": "bad key"}), "answered 401: .*bad key"),
        ((302, b""), "answered 302"),
        ((200, b"<html>"), "sent no JSON"),
        ((200, {"choices": []}), "sent no chat completion"),
        ((500, b"broken"), "answered 500: broken"),
    ],
)
def test_what_is_no_answer_is_one_clear_error(reply: Reply, message: str) -> None:
    with serving(reply) as server, pytest.raises(JudgeError, match=message):
        Judge(server.url, "judge", pause=0.01).score("q", "r", "a")


def test_nobody_there() -> None:
    with serving(completion("")) as server:
        url = server.url
    with pytest.raises(EmblemaError, match="cannot be reached"):
        Judge(url, "judge", pause=0.01).score("q", "r", "a")


@pytest.mark.parametrize("url", ["ftp://host/v1", "host:8000", "", "file:///etc/hosts", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(JudgeError, match="no http or https address"):
        Judge(url)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (json.dumps(GIVEN, indent=1), 8),
        (str(GIVEN).replace("'", "’"), 8),
        (f"{GIVEN | {OVERALL: 2}} but on second thoughts {GIVEN}", 8),
        ("```json\n" + json.dumps({name.lower(): number for name, number in GIVEN.items()}) + "\n```", 8),
        ("", None),
        (str(GIVEN | {OVERALL: 11}), None),
        (str({OVERALL: 5}), None),
        (str(GIVEN | {"Richness": 0}), None),
    ],
)
def test_scores_are_read_in_every_usual_form_or_are_none(text: str, score: int | None) -> None:
    assert read_overall(text) == score
