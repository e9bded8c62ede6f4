"""The command `emblema serve` as a process: it says where it is, ends in time, and keeps what it acknowledged."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import QUESTION, asked
from tests.serve.processes import process


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path, pngs: list[bytes]) -> None:
    with process(tmp_path) as server:
        files = [server.client.files.create(file=("p.png", png), purpose="user_data") for png in pngs]
        server.end(signal.SIGKILL)
    with process(tmp_path) as server:
        content = [{"type": "file", "file": {"file_id": file.id}} for file in files[::-1]]
        made = httpx.post(f"{server.address}/v1/caches?wait=true", json={"content": content, "ttl": 3_600}, timeout=60)
        cache = made.json()
        server.end(signal.SIGKILL)
    with process(tmp_path) as server:
        assert httpx.get(f"{server.address}/v1/caches/{cache['id']}").json() == cache
        used = [{"type": "cache", "cache": {"cache_id": cache["id"]}}, {"type": "text", "text": QUESTION}]
        hit = server.client.chat.completions.create(
            model="reference",
            messages=[{"role": "user", "content": used}],  # type: ignore[list-item]
        )
        report = hit.model_extra["emblema"]  # type: ignore[index]
        # The first page leads and needs no patch.
        assert report["patched_tokens"] == cache["tokens"] * (len(files) - 1) // len(files), (
            "rows and patches are found"
        )
        assert hit.usage.prompt_tokens_details.cached_tokens >= cache["tokens"]  # type: ignore[union-attr]
        assert {file.id for file in server.client.files.list()} == {file.id for file in files}
        for file in files:
            for _ in range(600):
                if server.client.files.retrieve(file.id).status == "processed":
                    break
                time.sleep(0.05)
            else:
                pytest.fail("a file of before was not prefilled")
        parts = [{"type": "file", "file": {"file_id": file.id}} for file in files]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
        reply = server.client.chat.completions.create(model="reference", messages=messages)  # type: ignore[arg-type]
        assert reply.usage.prompt_tokens_details.cached_tokens > 0  # type: ignore[union-attr]
        assert server.end() in (0, -signal.SIGTERM)
    with process(tmp_path) as server:
        again = server.client.chat.completions.create(model="reference", messages=messages)  # type: ignore[arg-type]
        assert again.choices[0].message.content == reply.choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens > 0  # type: ignore[union-attr]


@pytest.mark.nightly
def test_it_ends_within_its_grace(tmp_path: Path, pngs: list[bytes]) -> None:
    with process(tmp_path, "--set", "grace=1") as server:
        long = {"temperature": 2, "seed": 1, "max_tokens": 3_000, "stream": True}
        stream = server.client.chat.completions.create(model="reference", messages=asked(pngs), **long)  # type: ignore[call-overload]
        next(iter(stream))
        began = time.monotonic()
        server.end()
        assert time.monotonic() - began < 15
        lines = [line for line in server.log if "Traceback" in line]
        assert not lines, server.log


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "word"), [(["--host", "0.0.0.0"], "keys add"), (["no/such/model"], "no/such/model")]
)
def test_what_cannot_start_says_why(tmp_path: Path, options: list[str], word: str) -> None:
    command = [sys.executable, "-m", "emblema.cli", "serve", "--port", "0", "--store", str(tmp_path), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2 and word in done.stderr, done.stderr
