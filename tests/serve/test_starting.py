"""What a server finds out before it loads its model: in little time, and without torch."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emblema.errors import EmblemaError
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import address_of, check_start, listen_at
from tests.serve.processes import process

LIGHT = "import sys; sys.modules.update(torch=None, transformers=None); from emblema.cli import main; main()"
"""A command line that cannot import what is heavy."""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another process listens."""
    with listen_at("127.0.0.1", 0) as other:
        yield other.getsockname()[1]


def refused_early(where: Path, *arguments: str) -> str:
    """Return the one line with which a command refuses that cannot import torch."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    command = [sys.executable, "-c", LIGHT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=where, env=environment)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    return line


def test_serve_refuses_before_torch_is_imported(tmp_path: Path, taken: int) -> None:
    assert f"127.0.0.1:{taken} cannot be listened at" in refused_early(tmp_path, "serve", "--port", str(taken))
    assert "emblema keys add" in refused_early(tmp_path, "serve", "--host", "0.0.0.0")
    assert "did you mean reference" in refused_early(tmp_path, "serve", "refrence")


def test_serve_refuses_a_strategy_and_a_level_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="nosuch"):
        check_start(ServeSettings.read(store=tmp_path, strategy="nosuch"))
    check_start(ServeSettings.read(store=tmp_path, strategy="patch-25%"))
    assert "log_level" in refused_early(tmp_path, "serve", "--log-level", "loud")


def test_other_commands_refuse_a_model_s_name_before_torch_is_imported(tmp_path: Path) -> None:
    for arguments in (("ask", "--model", "refrence", "what ?"), ("check", "refrence")):
        assert "did you mean reference" in refused_early(tmp_path, *arguments)


def test_an_address_that_is_not_this_machine_s_is_named() -> None:
    with pytest.raises(EmblemaError, match="http://192.0.2.1:80 cannot be listened at"):
        listen_at("192.0.2.1", 80)
    assert address_of("::1", 80) == "http://[::1]:80"


@pytest.mark.slow
def test_the_address_is_told_once_it_answers(tmp_path: Path) -> None:
    # The server is asked for its health as soon as it has told its address, and once.
    with process(tmp_path) as server:
        assert server.said == [f"ready on {server.address}"] and server.log[0] == "loading reference …\n"


def test_small_pieces_of_a_reply_leave_at_once() -> None:
    """Otherwise each waits some 40 ms for the client to acknowledge the one before."""
    found = list[int]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def ask(listening: socket.socket) -> None:
        async with await asyncio.start_server(answer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            await reader.read()
            writer.close()

    with listen_at("127.0.0.1", 0) as listening:
        asyncio.run(ask(listening))
    assert found and found[0]
