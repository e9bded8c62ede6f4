"""The fidelity logs of tenants in Redis, for servers with folders of their own: what one measures counts for all."""

import json
import logging
import time
from typing import Any, Unpack

from emblema.errors import StoreError
from emblema.link.policy.fidelity import FidelityLog
from emblema.session.fidelity_logs import LARGEST, FidelityLogs
from emblema.store.remote.calls import CallPolicy
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.redis import make_caller, open_redis

log = logging.getLogger(__name__)
READ_SECONDS = 1.0
"""Between two readings of a tenant's log: prompts do not wait for each other's measurements."""
QUICK = CallPolicy(connect_seconds=0.5, reply_seconds=0.5, retries=0, total_seconds=0.5, failures=1)
"""Prompts wait for these calls, and no answer depends on them."""
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= (ARGV[1] ~= '' and ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
_TRIES = 32


class RedisFidelityLogs(FidelityLogs):
    """Logs on one server, a text for each tenant. Without the server each process goes on with what it has.

    What was measured meanwhile is added once it is back.

    Args:
        url, prefix, keywords: as of `RedisTier`.
    """

    def __init__(self, url: str, prefix: str = "emblema", **keywords: Unpack[RemoteKeywords]) -> None:
        super().__init__(None, shared=True)
        keywords.setdefault("policy", QUICK)
        options = RemoteOptions(prefix, **keywords)
        self._client, address = open_redis(url, options)
        self._caller, self._root = make_caller(url, address, options), f"{prefix}/measurements/1"
        self._replace = self._client.register_script(_REPLACE)
        self._seen: dict[str, bytes] = {}
        self._sent: dict[str, tuple[bytes, int]] = {}
        self._read_at: dict[str, float] = {}

    def refresh(self, owner: str) -> None:
        """Take over what other servers have written of a tenant since, at most once a second."""
        with self._lock:
            if time.monotonic() - self._read_at.get(owner, -READ_SECONDS) < READ_SECONDS:
                return
            self._read_at[owner] = time.monotonic()
            try:
                found = self._stored(owner)
            except StoreError as error:
                log.debug("the measurements of %s are not read: %s", owner[:12], error)
                return
            if found != self._seen.get(owner):
                self._take(owner, found)

    def save(self, owner: str) -> None:
        """Add what was measured since to a tenant's log; a failure is only reported, as no answer depends on it."""
        with self._lock:
            try:
                for _ in range(_TRIES):
                    found = self._stored(owner)
                    last = self._take(owner, found)
                    text = json.dumps(self.of(owner).to_json()).encode()
                    # Where the answer is lost, the next reading tells whether it was carried out.
                    self._sent[owner] = text, last
                    if self._call(self._replace, [f"{self._root}/{owner}"], [found, text]):
                        self._seen[owner] = text
                        self.of(owner).forget(last)
                        return
                log.warning("the measurements of %s are changed all the time: added with the next", owner[:12])
            except StoreError as error:
                log.debug("the measurements of %s are not saved: %s", owner[:12], error)

    def forget(self, owner: str) -> None:
        with self._lock:
            super().forget(owner)
            if owner not in self._logs:
                self._seen.pop(owner, None)
                self._read_at.pop(owner, None)
                self._sent.pop(owner, None)

    def close(self) -> None:
        """Write what is not written yet, and let go of the connections."""
        super().close()
        self._client.connection_pool.disconnect()

    def _stored(self, owner: str) -> bytes:
        """Return the text of a log; none for an empty one. `StoreError` where the server does not answer."""
        found = self._call(self._client.get, f"{self._root}/{owner}") or b""
        if len(found) > LARGEST:
            log.warning("the measurements of %s have %d bytes and are set aside", owner[:12], len(found))
        return bytes(found)

    def _take(self, owner: str, text: bytes) -> int:
        """Take a stored log over; one that is damaged, or too long, counts as empty and is replaced by the next."""
        own = self._logs.setdefault(owner, FidelityLog(shared=True))
        sent, changes = self._sent.pop(owner, (b"", 0))
        if sent and sent == text:
            own.forget(changes)
        try:
            last = own.merge(json.loads(text) if 0 < len(text) <= LARGEST else None)
        except (StoreError, ValueError, RecursionError) as error:
            log.warning("the measurements of %s are set aside: %s", owner[:12], error)
            last = own.merge(None)
        self._seen[owner] = text
        return last

    def _call(self, action: Any, *arguments: Any) -> Any:
        return self._caller.store("measurements", action, *arguments)
