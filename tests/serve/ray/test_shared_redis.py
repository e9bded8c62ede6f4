"""Two servers with folders of their own share a Redis: what one made the other takes, and without it answers go on.

EMBLEMA_REDIS_GONE_SECONDS says for how long Redis is gone under load; 60 is what has to hold, the default is shorter.
"""

import base64
import os
import threading
import time
from statistics import median

import httpx
import openai
import pytest

from tests.serve.servers import serving
from tests.store.remote.servers import RedisServer

pytestmark = pytest.mark.slow
GONE_SECONDS = float(os.environ.get("EMBLEMA_REDIS_GONE_SECONDS", "5"))
DELETION_SECONDS = 1.0
QUESTION = {"type": "text", "text": "on which land does the moon stand ?"}


def ask(client, pngs):
    parts = [{"type": "file", "file": {"file_id": upload(client, png)}} for png in pngs]
    reply = client.chat.completions.create(
        model="reference", messages=[{"role": "user", "content": [*parts, QUESTION]}], extra_body={"strategy": "blind"}
    )
    return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens


def upload(client, png):
    file = client.files.create(file=("a.png", png), purpose="user_data")
    while client.files.retrieve(file.id).status == "uploaded":
        time.sleep(0.02)
    return file.id


class Load:
    """Chats from threads, to both servers all the time: half name files, half send the pictures themselves."""

    def __init__(self, servers, ids, pngs):
        self.answers, self._ended = [], threading.Event()
        urls = [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs]
        parts = {
            "file": [{"type": "file", "file": {"file_id": id}} for id in ids],
            "sent": [{"type": "image_url", "image_url": {"url": url}} for url in urls],
        }
        pairs = [(server, kind) for server in servers for kind in parts]
        self._threads = [
            threading.Thread(target=self._chat, args=(server, kind, parts[kind])) for server, kind in pairs
        ]
        for thread in self._threads:
            thread.start()

    def _chat(self, server, kind, parts):
        body = {"model": "reference", "strategy": "blind",
                "messages": [{"role": "user", "content": [*parts, QUESTION]}]}  # fmt: skip
        with server.http() as http:
            while not self._ended.is_set():
                began = time.monotonic()
                answer = http.post("/v1/chat/completions", json=body)
                told = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else None
                self.answers.append((began, time.monotonic() - began, kind, answer.status_code, told))

    def between(self, start, end):
        """Return what was asked and answered within a time."""
        return [answer for answer in list(self.answers) if start <= answer[0] and answer[0] + answer[1] < end]

    def end(self):
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"


@pytest.mark.nightly
def test_redis_that_is_gone_under_load_makes_slower_and_nothing_wrong(tmp_path, pngs, record_property):
    redis = RedisServer(tmp_path, "--appendonly", "yes")
    shared = {"redis": redis.url, "deletion_seconds": DELETION_SECONDS}
    try:
        with serving(tmp_path / "a", **shared) as first, serving(tmp_path / "b", **shared) as second:
            servers = (first, second)
            ids = [upload(first.client(), png) for png in pngs]
            assert [upload(second.client(), png) for png in pngs] == ids
            (expected, _), (other, _) = (ask(server.client(), pngs) for server in servers)
            assert expected == other
            load = Load(servers, ids, pngs)
            try:
                began = time.monotonic()
                wait(lambda: len(load.answers) > 20)
                gone = time.monotonic()
                redis.stop()
                time.sleep(GONE_SECONDS / 2)
                with second.http() as http:
                    assert http.delete(f"/v1/files/{ids[0]}").status_code >= 500, "who else would hear of it"
                time.sleep(max(0.0, gone + GONE_SECONDS - time.monotonic()))
                redis.start()
                back = time.monotonic()
                with second.http() as http:
                    wait(lambda: http.get(f"/v1/files/{ids[0]}").status_code == 200)
                    wait(lambda: upload(first.client(), pngs[0]) == ids[0])
                found = time.monotonic()
                wait(lambda: len(load.between(found, time.monotonic())) > 20)
            finally:
                load.end()
            phases = {
                "before": load.between(began, gone),
                "gone": load.between(gone, back),
                "back": load.between(found, 1e12),
            }
            for name, answers in phases.items():
                record_property(f"median seconds, {name}", median(answer[1] for answer in answers))
                print(f"{name}: {len(answers)} answers, {median(answer[1] for answer in answers) * 1e3:.0f} ms")
            told = {answer[4] for answer in load.answers if answer[3] == 200}
            assert told == {expected}, "no answer is wrong"
            assert {answer[3] for name in ("before", "back") for answer in phases[name]} == {200}
            assert {answer[3] for answer in load.answers} == {200}
            sent = [answer for answer in phases["gone"] if answer[2] == "sent"]
            assert len(sent) > 4 and {answer[3] for answer in sent} == {200}
            with first.http() as ours:
                # Each part of a server leaves Redis alone for a few seconds of its own after a failure.
                wait(lambda: ours.delete(f"/v1/files/{ids[0]}").status_code == 200)
    finally:
        redis.stop()


def wait(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (httpx.HTTPError, openai.APIStatusError):
            pass
        assert time.monotonic() < end
        time.sleep(0.1)
