"""The service on an engine's own application."""

from collections.abc import Iterable

from fastapi import FastAPI

from emblema.errors import EmblemaError
from emblema.plugin.engine_host import EngineHost
from emblema.plugin.resolving import Resolving
from emblema.serve.cache_routes import cache_routes
from emblema.serve.faults import answer_error
from emblema.serve.file_routes import file_routes
from emblema.serve.guard import Guard


def mount(app: FastAPI, host: EngineHost, origins: Iterable[str] = (), resolving: type[Resolving] = Resolving) -> None:
    """Add files, caches and keys to an engine's application, which has not started yet.

    Args:
        app: the application.
        host: of the service.
        origins: whose pages may use the server, beside its own.
        resolving: what stands before the engine's routes.
    """
    app.state.host = lambda: host
    for routes in (file_routes(), cache_routes()):
        app.include_router(routes)
    app.add_exception_handler(EmblemaError, answer_error)
    app.add_middleware(resolving, host=host, application=app)
    app.add_middleware(Guard, settings=host.settings, origins=frozenset(origins) - {"*"})
