"""What the application answers while its model is loaded, and about its model."""

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from emblema.engine.scheduler import Scheduler
from emblema.errors import EmblemaError
from emblema.serve.service import Service
from emblema.store.disk import DiskTier
from tests.serve.servers import Running, serving, started


def test_a_client_is_told_to_come_back_while_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    async def load(settings: Any) -> Service:
        while not end.is_set():
            await asyncio.sleep(0.01)
        raise EmblemaError("there is no such model")

    monkeypatch.setattr(Service, "open", load)
    with started(tmp_path) as server, server.http() as http:
        assert http.get("/livez").json() == {"status": "ok"}, "a process that loads its model is not to be killed"
        for path in ("/health", "/readyz", "/v1/models", "/metrics"):
            answer = http.get(path)
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading"
            assert int(answer.headers["retry-after"]) > 0
        end.set()
        while (answer := http.get("/health")).json()["error"]["code"] == "loading":
            time.sleep(0.01)
        assert answer.status_code == 503 and "there is no such model" in answer.text
        assert "retry-after" not in answer.headers


def test_a_server_whose_model_s_thread_ended_is_neither_ready_nor_alive(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ("/health", "/readyz", "/livez")
    with server.http() as http:
        assert [http.get(path).status_code for path in paths] == [200] * 3
        monkeypatch.setattr(Scheduler, "alive", False)
        for answer in map(http.get, paths):
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "failed"


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/v1/embeddings", "vllm-serve"),
        ("/v1/audio/transcriptions", "vllm-serve"),
        ("/v1/batches", "at once"),
        ("/v1/uploads/upload_1/parts", "/v1/files"),
        ("/v1/responses/resp_1", "not kept"),
        ("/v1/messages/count_tokens", "usage"),
        ("/v1/moderations", "no server"),
        ("/api/chat", "/v1"),
    ],
)
def test_a_known_route_that_is_not_here_says_what_offers_it(server: Running, path: str, word: str) -> None:
    with server.http() as http:
        answer = http.post(path, json={"model": "reference", "input": "a"})
        nothing = http.post("/v1/nothing", json={})
    assert answer.status_code == 404 and answer.json()["error"].get("code", "not_offered") == "not_offered"
    assert "not offered here" in answer.json()["error"]["message"] and word in answer.json()["error"]["message"]
    assert nothing.status_code == 404 and "openapi" in nothing.json()["error"]["message"]


def test_the_model_says_when_it_was_loaded(server: Running) -> None:
    [model] = httpx.get(f"{server.address}/v1/models").json()["data"]
    assert 0 <= time.time() - model["created"] < 3_600
    assert httpx.get(f"{server.address}/v1/models/reference").json() == model


def test_a_healthy_start_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emblema"), serving(tmp_path, several=True):
        pass
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told and not [line for level, line in told if level != "INFO" or "torchvision" in line.lower()]
    # What the server has left beside the pieces is known too.
    tier = DiskTier(tmp_path, 10**9)
    tier.close()
    assert tier.report.skipped == ()
