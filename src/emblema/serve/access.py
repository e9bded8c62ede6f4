"""Who may use a server: whoever gives one of its keys; on loopback anybody, as long as no key was ever made."""

from emblema.errors import EmblemaError
from emblema.serve.faults import ServeError
from emblema.serve.keys import LOCAL, KeyRing, Tenant
from emblema.serve.settings import ServeSettings
from emblema.serve.work_pools import NOBODY
from emblema.work_pool import WorkPool


class Access:
    """Tells whose a request is.

    Args:
        keys: of the server.
        open: whether no key is needed as long as there never was one.
        pool: looks keys up, so that whoever holds their file holds up no event loop.
        again: whether a server whose last key is taken back is open again, as another key than these is asked for.
    """

    def __init__(self, keys: KeyRing, open: bool, pool: WorkPool, again: bool = False) -> None:
        self._keys, self._open, self._pool, self._again = keys, open, pool, again
        self._asked = False

    async def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""
        return await self._pool.run(NOBODY, self._find, authorization)

    def _find(self, authorization: str | None) -> Tenant:
        kind, _, key = (authorization or "").partition(" ")
        if not self._is_asked:
            return LOCAL
        tenant = self._keys.tenant(key.strip()) if kind.lower() == "bearer" else None
        if tenant is None:
            raise ServeError(401, "give a key of this server: `Authorization: Bearer emb-…`", "invalid_api_key")
        return tenant

    @property
    def _is_asked(self) -> bool:
        """Whether a key is needed. Once one was, it is until the server ends, whatever becomes of the file."""
        if not self._open:
            return True
        if self._again:
            return len(self._keys) > 0
        self._asked = self._asked or self._keys.asked_for
        return self._asked


def check_open(keys: KeyRing, settings: ServeSettings) -> None:
    """Raise `EmblemaError` where others reach the server and there is no key."""
    if not settings.loopback and len(keys) == 0:
        raise EmblemaError(
            f"{settings.host} is reached by others and there is no key: make one with `emblema keys add NAME`, or "
            "serve on 127.0.0.1"
        )
