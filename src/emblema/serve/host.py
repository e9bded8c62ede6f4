"""What the routes of every engine's server share: its settings, its tenants, their files."""

from collections.abc import Mapping
from typing import Annotated, Protocol

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter

from emblema.errors import EmblemaError
from emblema.serve.cache_making import CacheMaker
from emblema.serve.caches import CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import LOCAL, KeyRing, Tenant
from emblema.serve.settings import ServeSettings


class Host(Protocol):
    """A server of one engine, as the guard and the routes of files and caches see it; each engine has one.

    Attributes:
        settings: of the server.
        files, caches: of all tenants.
        cache_maker: makes and extends caches.
        requests: counts requests by path and status.
    """

    settings: ServeSettings
    files: FileStore
    caches: CacheStore
    cache_maker: CacheMaker
    requests: Counter

    def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""

    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload read behind its answer, as far as the engine does."""

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file and what was made of it; `ServeError` where there is none."""


def host_of(request: Request) -> Host:
    """Return the server that an application was made for; `ServeError` while its model is not loaded."""
    host: Host = request.app.state.host()
    return host


def tenant_of(request: Request) -> Tenant:
    """Return whose a request is."""
    return host_of(request).tenant_of(key_of(request.headers))


Hosted = Annotated[Host, Depends(host_of)]
Owner = Annotated[Tenant, Depends(tenant_of)]


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the header with a request's key, as OpenAI's or Anthropic's clients send it; names in lower case."""
    named = headers.get("x-api-key")
    return headers.get("authorization") or (None if named is None else f"Bearer {named}")


def request_counter(registry: CollectorRegistry) -> Counter:
    """Return a new counter of requests."""
    return Counter("emblema_requests", "Requests answered.", ["path", "status"], registry=registry)


def check_open(keys: KeyRing, settings: ServeSettings) -> None:
    """Raise `EmblemaError` where others reach the server and there is no key."""
    if not settings.loopback and len(keys) == 0:
        raise EmblemaError(
            f"{settings.host} is reached by others and there is no key: make one with `emblema keys add NAME`, or "
            "serve on 127.0.0.1"
        )


def authenticate(keys: KeyRing, authorization: str | None, open: bool) -> Tenant:
    """Return whose a request is, by its header; where it is `open`, no key is needed as long as there is none.

    Raises:
        ServeError: a key is needed and there is none, or it is not known.
    """
    kind, _, key = (authorization or "").partition(" ")
    if open and len(keys) == 0:
        return LOCAL
    tenant = keys.tenant(key.strip()) if kind.lower() == "bearer" else None
    if tenant is None:
        raise ServeError(401, "give a key of this server: `Authorization: Bearer emb-…`", "invalid_api_key")
    return tenant
