"""Real replicas behind Ray Serve: a replica that is killed under load loses nothing, and no request hangs."""

import socket
import threading
import time

import httpx
import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

import os
import signal

# Comes with Ray.
import psutil

from tests.serve.ray.replicas import body_of, running, upload

pytestmark = pytest.mark.slow

REQUESTS_UNTIL_HITS = 10
"""Requests after a kill until rows of every picture are taken again."""


@pytest.fixture(scope="module")
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_of(answer):
    return answer.json()["choices"][0]["message"]["content"]


def test_a_replica_killed_under_load(tmp_path, port, pngs):
    """Chats and uploads go on all the time; one of two replicas is killed with signal 9."""
    with (
        running(tmp_path, port, 2) as replicas,
        httpx.Client(base_url=replicas.address, timeout=120) as client,
    ):
        files = [client.post("/v1/files", files={"file": (f"{n}.png", png)}).json()["id"] for n, png in enumerate(pngs)]
        asked = [files, files[::-1], files[:1], files[-1:]]
        expected = [text_of(client.post("/v1/chat/completions", json=body_of(ids, "full", 4))) for ids in asked]
        assert any(expected)
        ended, answers, kept, failures = threading.Event(), [], {}, []

        def chat(number):
            with httpx.Client(base_url=replicas.address, timeout=60) as own:
                while not ended.is_set():
                    which = (number + len(answers)) % len(asked)
                    try:
                        answer = own.post(
                            "/v1/chat/completions", json=body_of(asked[which], "full", 4)
                        )  # fmt: skip
                    except httpx.HTTPError as error:
                        failures.append(error)
                        continue
                    answers.append((which, answer))

        def put():
            with httpx.Client(base_url=replicas.address, timeout=60) as own:
                number = 0
                while not ended.is_set():
                    number += 1
                    data = f"text of file {number}".encode()
                    answer = own.post("/v1/files", files={"file": (f"{number}.txt", data)})
                    if answer.status_code == 200:
                        kept[answer.json()["id"]] = data
                    else:
                        failures.append(answer)

        threads = [threading.Thread(target=chat, args=(number,)) for number in range(3)]
        threads.append(threading.Thread(target=put))
        for thread in threads:
            thread.start()
        wait(lambda: len(answers) > 10 and len(kept) > 3)
        named = {answer.headers["x-emblema-replica"] for _, answer in answers}
        victim = sorted(named)[0]
        os.kill(replicas.processes[victim], signal.SIGKILL)
        count = len(answers)
        wait(lambda: len(answers) > count + 30)
        wait(lambda: len(replicas.processes) == 3, 240)
        count = len(answers)
        wait(lambda: len(answers) > count + 10)
        ended.set()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "a request hangs"
        assert failures == []
        assert {answer.status_code for _, answer in answers} == {200}
        assert [(which, text_of(answer)) for which, answer in answers if text_of(answer) != expected[which]] == []
        for id, data in kept.items():
            assert client.get(f"/v1/files/{id}/content").content == data
        hits = []
        for number in range(3 * REQUESTS_UNTIL_HITS):
            answer = client.post("/v1/chat/completions", json=body_of(files[number % 2 :], "blind"))
            hits.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert all(hits[REQUESTS_UNTIL_HITS:]), hits


def test_ray_listens_on_loopback_but_for_a_port_of_each_replica(tmp_path, port):
    """That port is Ray Serve's own, guarded by Ray's token; there is one of each replica, the ingress included."""
    with running(tmp_path, port, 2) as replicas:
        tree = [psutil.Process(replicas.process.pid), *psutil.Process(replicas.process.pid).children(recursive=True)]
        listening = [
            (process.name(), place.laddr.ip)
            for process in tree
            for place in process.net_connections("tcp")
            if place.status == psutil.CONN_LISTEN
        ]
    assert len(listening) > 5
    elsewhere = [name for name, address in listening if not address.removeprefix("::ffff:").startswith("127.")]
    assert len(elsewhere) <= 3 and all(name.startswith("ray::ServeRepli") for name in elsewhere), elsewhere


def wait(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_quotas_and_deletions_hold_across_replicas(tmp_path, port):
    """Many uploads at once, of one tenant and over both replicas, never hold more than the quota; not by one file."""
    size, most = 1_000, 7
    with running(
        tmp_path, port, 2, "--set", f"quota_bytes={most * size + 999}", "--set", "deletion_seconds=1"
    ) as replicas:
        from concurrent.futures import ThreadPoolExecutor

        def put(number):
            data = f"{number:04d}".encode() * (size // 4)
            return httpx.post(f"{replicas.address}/v1/files", files={"file": ("a.txt", data)}, timeout=60)

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(put, range(24)))
        assert len({answer.headers["x-emblema-replica"] for answer in answers}) == 2
        assert sorted(answer.status_code for answer in answers) == [200] * most + [413] * (24 - most)
        with httpx.Client(base_url=replicas.address, timeout=60) as client:
            id = next(answer.json()["id"] for answer in answers if answer.status_code == 200)
            # The same bytes again are the same file, wherever they go.
            again = [put(number).json().get("id") for number in range(24)]
            assert len({name for name in again if name}) == most
            assert client.delete(f"/v1/files/{id}").status_code == 200
            assert {client.get(f"/v1/files/{id}").status_code for _ in range(20)} == {404}
            assert upload(client, 1, 28)
