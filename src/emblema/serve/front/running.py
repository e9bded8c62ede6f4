"""Running the service in front of an engine, which may be a process of this one."""

import asyncio
import signal
import socket
import sys
from typing import Any

import uvicorn

from emblema.errors import EmblemaError
from emblema.serve.faults import ServeError
from emblema.serve.front.app import make_front
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.front import Front
from emblema.serve.front.process import EngineProcess
from emblema.serve.logs import log_lines
from emblema.serve.running import collect_beside_program, give_large_blocks_back, make_config
from emblema.serve.starting import address_of

_LOOKING_SECONDS = 0.5
"""Between two looks whether the engine is ready."""


def run(listening: socket.socket, front: Front, process: EngineProcess | None = None) -> None:
    """Serve on a socket until the process is told to end, or its engine's ends.

    The address is printed once the engine answers.

    Args:
        listening: socket.
        front: what is served.
        process: of the engine, where it is one of this process.

    Raises:
        EmblemaError: the engine has ended.
    """
    log_lines("emblema", "uvicorn.error", level=front.settings.log_level)
    give_large_blocks_back()
    # In place of the default, which leaves nothing to end the engine in order.
    signal.signal(signal.SIGTERM, _leave)
    ended = asyncio.run(_serve(listening, front, process))
    if ended is not None:
        raise EmblemaError(ended)


async def _serve(listening: socket.socket, front: Front, process: EngineProcess | None) -> str | None:
    """Serve; return what is to be said of the engine's end, None where the end was this process's own."""
    server = uvicorn.Server(make_config(front.settings, make_front(front)))
    telling = asyncio.create_task(_tell_ready(listening, front))
    watching = None if process is None else asyncio.create_task(process.ended())
    if watching is not None:
        watching.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve(sockets=[listening])
        return watching.result() if watching is not None and watching.done() else None
    finally:
        telling.cancel()
        if watching is not None:
            watching.cancel()


async def _tell_ready(listening: socket.socket, front: Front) -> None:
    await _answered(front.engine)
    collect_beside_program()
    host, port = listening.getsockname()[:2]
    print(f"ready on {address_of(host, port, front.settings.ssl_certfile is not None)}", flush=True)


async def _answered(engine: EngineClient) -> None:
    while True:
        try:
            await engine.look()
            return
        except ServeError:
            await asyncio.sleep(_LOOKING_SECONDS)


def _leave(*_: Any) -> None:
    sys.exit(0)
