"""Running the service in front of an engine, which may be a process of this one."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

import uvicorn

from emblema.errors import EmblemaError
from emblema.serve.faults import ServeError
from emblema.serve.front.app import make_front
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.front import Front, check_access
from emblema.serve.front.process import EngineProcess
from emblema.serve.keys import KeyRing
from emblema.serve.running import begin, make_config, tell_ready
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import check_certificate, listen_at

_LOG = logging.getLogger("emblema.serve")
_LOOKING_SECONDS = 0.5
"""Between two looks whether the engine is ready."""


def run(
    settings: ServeSettings, engine: EngineClient, own_keys: Collection[str] = (), process: EngineProcess | None = None
) -> None:
    """Serve in front of an engine until this process is told to end, or the engine's ends.

    The address is printed once the engine answers.

    Args:
        settings: of the service.
        engine: behind it.
        own_keys: see `Front`.
        process: of the engine, where it is to be started and ended here.

    Raises:
        EmblemaError: others would be let in without a key, the address is taken, the certificate is none, or the
            engine has ended.
    """
    check_certificate(settings)
    check_access(settings, KeyRing(settings.folder), own_keys)
    # In place of the default, which leaves nothing to end the engine in order.
    signal.signal(signal.SIGTERM, _leave)
    with listen_at(settings.host, settings.port) as listening, process or nullcontext():
        begin(settings)
        ended = asyncio.run(_serve(listening, Front(settings, engine, own_keys), process))
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
    """Tell once the engine is ready; until then, whenever that changes, why it is not."""
    told = None
    while True:
        try:
            await front.engine.look()
            break
        except ServeError as error:
            if str(error) != told:
                told = str(error)
                _LOG.info("waiting for the engine: %s", told)
            await asyncio.sleep(_LOOKING_SECONDS)
    tell_ready(listening, front.settings)


def _leave(*_: Any) -> None:
    sys.exit(0)
