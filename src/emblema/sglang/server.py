"""SGLang's own server with the service before its routes: `python -m emblema.sglang.server`, with SGLang's options.

As `sglang.launch_server`, but what lets requests in is there before the server listens, or the server does not start:
SGLang logs what a plugin raises, and would serve without it. SGLang's processes import this module again.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from emblema.errors import EmblemaError

OTHER_LISTENERS: Mapping[str, object] = {
    "tokenizer_worker_num": 1, "grpc_port": None, "grpc_mode": False, "smg_grpc_mode": False, "use_ray": False,
    "encoder_only": False, "sidecar": None,
}  # fmt: skip
"""Options of SGLang with the values under which this process alone listens, by HTTP."""
OTHER_VARIABLES = ("SGLANG_GRPC_PORT", "SGLANG_RUST_SERVER")


def check_listeners(options: Any, environment: Mapping[str, str]) -> None:
    """Refuse a server that also listens where no key would be asked for.

    Args:
        options: SGLang's `ServerArgs`.
        environment: of the server.

    Raises:
        EmblemaError: it does.
    """
    for name, value in OTHER_LISTENERS.items():
        given = getattr(options, name, value)
        if given != value:
            raise EmblemaError(
                f"{name} is {given!r}: others than this process would listen, and ask for no key; leave it out"
            )
    for name in OTHER_VARIABLES:
        if environment.get(name, "") not in ("", "0", "false", "False"):
            raise EmblemaError(f"{name} is set: others than this process would listen, and ask for no key; unset it")


class Sweeping:
    """Looks for what has expired while an application runs.

    Args:
        app: what is within.
        host: of the service.
    """

    def __init__(self, app: Any, host: Any) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        sweep = asyncio.get_running_loop().create_task(self._host.sweep())
        try:
            await self._app(scope, receive, send)
        finally:
            sweep.cancel()
            with suppress(asyncio.CancelledError):
                await sweep


def main() -> None:
    """Serve, by the process's arguments and environment.

    Raises:
        EmblemaError: the options do not fit together, or others would be let in without a key.
    """
    from sglang.launch_server import run_server
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from emblema.serve.beside.engine_host import EngineHost
    from emblema.serve.beside.resolving import mount
    from emblema.serve.logs import log_lines
    from emblema.serve.settings import ServeSettings
    from emblema.sglang.engine_api import SGLANG
    from emblema.sglang.plugin import OPTIONS, settings_of

    load_plugins()
    options = prepare_server_args(sys.argv[1:])
    check_listeners(options, os.environ)
    plugin = settings_of(os.environ)
    if plugin is None:
        raise EmblemaError(f"{OPTIONS} is not set: start the server with `emblema sglang-serve`")
    settings = ServeSettings.read(
        store=plugin.store, host=options.host, model=options.model_path, served_name=options.served_model_name
    )
    log_lines("emblema.serve")
    host = EngineHost(settings, SGLANG, bool(options.api_key or options.admin_api_key))
    mount(app, host)
    app.add_middleware(Sweeping, host=host)
    try:
        run_server(options)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    try:
        main()
    except EmblemaError as error:
        sys.exit(f"emblema: {error}")
