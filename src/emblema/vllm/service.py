"""The service inside vLLM's own server: `vllm.endpoint_plugins` names `ServicePlugin`."""

import asyncio
from argparse import Namespace
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY

from emblema.errors import EmblemaError
from emblema.serve.beside.engine_host import EngineHost
from emblema.serve.beside.resolving import mount
from emblema.serve.logs import log_lines
from emblema.serve.settings import ServeSettings
from emblema.served.settings import PluginSettings
from emblema.vllm.engine_api import VLLM
from emblema.vllm.metrics import SharedNames


def settings_of(args: Namespace) -> ServeSettings:
    """Return the service's settings by vLLM's options, and by `EMBLEMA_…` variables for what vLLM does not know.

    Raises:
        EmblemaError: the server has no store of the plugin, or a setting is not right.
    """
    config: Any = args.kv_transfer_config
    if config is None or config.kv_connector != "EmblemaConnector":
        raise EmblemaError("the service needs the plugin's store: start the server with `emblema vllm-serve`")
    store = PluginSettings.read(config.kv_connector_extra_config).store
    name = (args.served_model_name or [args.model])[0]
    # Where vLLM is told no host, it listens at every address.
    return ServeSettings.read(store=store, host=args.host or "0.0.0.0", model=args.model, served_name=name)


class ServicePlugin:
    """An endpoint plugin of vLLM; vLLM takes it where `VLLM_PLUGINS` names it."""

    name = "emblema_service"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add routes and middleware to vLLM's application.

        Raises:
            EmblemaError: the server's options do not fit together, or others would be let in without a key.
        """
        from vllm import envs

        args = app.state.args
        log_lines("emblema.serve")
        own_key = bool(args.api_key or envs.VLLM_API_KEY)
        host = EngineHost(settings_of(args), VLLM, own_key, shards=int(args.tensor_parallel_size))
        REGISTRY.register(SharedNames(REGISTRY))
        mount(app, host, args.allowed_origins)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Begin to look for what expires. The service asks nothing of the engine but through vLLM's own routes."""
        self._sweeping = asyncio.get_running_loop().create_task(state.host().sweep())
