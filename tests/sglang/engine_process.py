"""An engine of SGLang's in a process of its own, driven over a pipe.

SGLang ends the process that started an engine when one of the engine's own fails, and sets its signal handlers
and variables: pytest's process must not be that one.
"""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from signal import SIGKILL
from typing import Any

START_SECONDS = 300.0
END_SECONDS = 60.0
TOLD_LINES = 40


class EngineError(Exception):
    """What SGLang raised, or that its process ended, with the end of its log."""


class EngineProcess:
    """A process with one engine.

    Args:
        settings: of `sglang.Engine`.
        environment: variables beside this process's.
        log: file for all that it and its processes write.

    Raises:
        EngineError: it did not start.
    """

    def __init__(self, settings: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self._numbers, self._waiting, self._changed = count(), dict[int, Future[Any]](), threading.Lock()
        self._here, there = Pipe()
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(there.fileno())], stdout=written, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, env=os.environ | environment, pass_fds=[there.fileno()],
                start_new_session=True, cwd=Path(__file__).parents[2],
            )  # fmt: skip
        there.close()
        try:
            self._here.send(settings)
            if not self._here.poll(START_SECONDS):
                raise EOFError
            self._here.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise EngineError(f"the engine did not start\n{self.told()}") from error
        threading.Thread(target=self._read, daemon=True).start()

    def told(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TOLD_LINES:])

    def begin(self, method: str, **given: Any) -> "Future[Any]":
        """Call a method of `Calls` beside others."""
        number, made = next(self._numbers), Future[Any]()
        with self._changed:
            self._waiting[number] = made
        try:
            self._here.send((number, method, given))
        except OSError as error:
            raise EngineError(f"the engine has ended\n{self.told()}") from error
        return made

    def call(self, method: str, **given: Any) -> Any:
        """Call a method and wait for it."""
        return self.begin(method, **given).result(START_SECONDS)

    def close(self) -> None:
        """End it and all processes that it started."""
        with suppress(OSError):
            self._here.send(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        try:
            while True:
                number, result, error = self._here.recv()
                with self._changed:
                    made = self._waiting.pop(number)
                if error is None:
                    made.set_result(result)
                else:
                    made.set_exception(EngineError(error))
        except (EOFError, OSError):
            with self._changed:
                left, self._waiting = [*self._waiting.values()], {}
            for made in left:
                made.set_exception(EngineError(f"the engine ended\n{self.told()}"))


class Calls:
    """What is asked of an engine; all run on its loop."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._manager = engine, engine.tokenizer_manager

    async def generate(self, **given: Any) -> Any:
        """Answer."""
        return await self._engine.async_generate(**given)

    async def stream(self, **given: Any) -> Any:
        """Answer in parts; return the last."""
        parts = [part async for part in await self._engine.async_generate(stream=True, **given)]
        return parts[-1]

    async def flush(self) -> bool:
        """Empty the prefix cache; False where requests are there."""
        return bool((await self._manager.flush_cache()).success)

    async def abort(self, rid: str) -> None:
        """Abort a request."""
        self._manager.abort_request(rid=rid)

    async def update_weights(self, folder: str) -> bool:
        """Change the weights in place."""
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        return bool(
            (await self._manager.update_weights_from_disk(UpdateWeightFromDiskReqInput(model_path=folder), None))[0]
        )


async def _serve(calls: Calls, connection: Connection) -> None:
    loop, running = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def answer(number: int, method: str, given: dict[str, Any]) -> None:
        try:
            connection.send((number, await getattr(calls, method)(**given), None))
        except Exception as error:
            connection.send((number, None, f"{type(error).__name__}: {error}"))

    while (order := await loop.run_in_executor(None, connection.recv)) is not None:
        task = loop.create_task(answer(*order))
        running.add(task)
        task.add_done_callback(running.discard)


def main(descriptor: int) -> None:
    """Serve an engine until the pipe says that it is enough."""
    connection = Connection(descriptor)
    settings = connection.recv()
    import sglang

    engine = sglang.Engine(**settings)
    try:
        connection.send(None)
        with suppress(EOFError):
            engine.loop.run_until_complete(_serve(Calls(engine), connection))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
