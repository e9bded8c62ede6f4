"""Uploaded files in Redis or Valkey, for servers with folders of their own; their bytes there too, or in a bucket."""

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from emblema.errors import EmblemaError
from emblema.serve import redis_scripts
from emblema.serve.faults import ServeError, missing
from emblema.serve.file_bytes import FileBytes, RedisFileBytes, answered
from emblema.serve.files import FileEntry, Forget, file_id, forget_nothing, over_quota
from emblema.serve.keys import Tenant
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.redis import make_caller, open_redis

_LOG = logging.getLogger("emblema.serve")
_ARRIVING_SECONDS = 3_600.0
"""Seconds after which bytes that no file names are not being written any more."""
_REFUSED, _KEPT, _WANTED = 0, 1, 2
"""What the server says to a file: it is beyond the quota, it is kept, or its bytes have to come first."""


class RedisFileStore:
    """A `FileStore` on one Redis or Valkey server (not a cluster), which any number of servers share.

    All that is known of files is changed by scripts, each of which the server runs as a whole: so a quota holds to one
    file, whoever uploads at once. Times are the server's own, so no replica's clock counts. Bytes come first, under a
    name that nobody else has, and are a file's once its entry names them; those that no entry names are listed, and
    deleted by the first server that looks for what has expired. Durable is what Redis makes durable: run it with
    `appendonly yes`.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        quota: bytes of a tenant's files together, where its key says nothing else.
        forget: deletes chunks, given their owner and the tenant's name too.
        bytes: where files' bytes are; on the same server by default.
        prefix, keywords: as of `RedisTier`.

    Raises:
        EmblemaError: the server evicts what was not told to expire, and would lose files.
        ServeError: it does not answer.
    """

    def __init__(
        self,
        url: str,
        quota: int,
        forget: Forget = forget_nothing,
        bytes: FileBytes | None = None,
        prefix: str = "emblema",
        **keywords: Unpack[RemoteKeywords],
    ) -> None:
        options = RemoteOptions(prefix, **keywords)
        self._client, address = open_redis(url, options)
        self._caller = make_caller(url, address, options)
        self._root, self._quota, self._forget = f"{prefix}/files/1", quota, forget
        self._bytes = bytes or RedisFileBytes(self._client, self._caller, f"{self._root}/bytes", options)
        self._scripts: Mapping[str, Any] = {
            name: self._client.register_script(text) for name, text in redis_scripts.SCRIPTS.items()
        }
        policy = answered(self._caller, self._eviction)
        if policy.startswith("allkeys"):
            raise EmblemaError(
                f"{address} evicts whatever it likes ({policy}) and would lose files: set maxmemory-policy noeviction"
            )

    def add(
        self, tenant: Tenant, data: bytes, name: str, purpose: str, seconds: float | None, *, renew: bool = True
    ) -> FileEntry:
        self.expire()
        owner, id, own = tenant.owner, file_id(tenant.owner, data), secrets.token_hex(8)
        values = (owner, id, tenant.name, name, purpose, len(data), "" if seconds is None else seconds, int(renew))
        quota = int(tenant.quota or self._quota)
        # Bytes that are here already are not sent again, and those beyond the quota not at all.
        answer, total, kept = self._run("add", *values, quota, "")
        if answer == _WANTED:
            place = f"{owner}/{id}/{own}"
            self._run("loosen", place)
            self._bytes.put(place, data)
            answer, total, kept = self._run("add", *values, quota, own)
            if answer == _REFUSED or kept.decode() != own:
                self._drop(place)
        if answer == _REFUSED:
            raise over_quota(total, quota)
        return self.entry(tenant, id)

    def entries(self, tenant: Tenant) -> tuple[FileEntry, ...]:
        self.expire()
        found = [_entry(_fields(pairs)) for pairs in self._run("entries", tenant.owner)]
        return tuple(sorted(found, key=lambda entry: (-entry.created, entry.id)))

    def entry(self, tenant: Tenant, id: str) -> FileEntry:
        return _entry(self._find(tenant, id))

    def read(self, tenant: Tenant, id: str) -> bytes:
        token = None
        while (now := self._find(tenant, id)["token"]) != token:
            # It may have been deleted, and uploaded again, since it was found.
            token = now
            data = self._bytes.get(f"{tenant.owner}/{id}/{token}")
            # Whatever a server or a bucket gives back: an id follows from its bytes.
            if data is not None and file_id(tenant.owner, data) == id:
                return data
        if token:
            self._run("lose", tenant.owner, id, token)
        raise ServeError(410, f"the bytes of {id!r} are lost: upload it again")

    def begin(self, tenant: Tenant, id: str, chunks: Sequence[str]) -> None:
        self._run("begin", tenant.owner, id, json.dumps([tenant.name, list(chunks)]))

    def note(
        self, tenant: Tenant, id: str, status: str, detail: str | None, kind: str | None, chunks: Sequence[str]
    ) -> bool:
        written = json.dumps(list(chunks))
        return bool(self._run("note", tenant.owner, id, status, detail or "", kind or "", written))

    def end(self, owner: str, id: str) -> None:
        self._run("end", owner, id)

    def delete(self, tenant: Tenant, entry: FileEntry) -> bool:
        return self._delete(tenant.owner, entry.id, json.dumps(list(entry.chunks)))

    def keep_until(self, tenant: Tenant, ids: Iterable[str], moment: float) -> None:
        for id in ids:
            self._run("keep_until", tenant.owner, id, moment)

    def unprocessed(self) -> list[tuple[str, str, str]]:
        found = []
        for name, tenant in self._run("unprocessed"):
            owner, _, id = name.decode().partition("/")
            found.append((owner, tenant.decode(), id))
        return found

    def expire(self) -> None:
        for name, tenant, chunks in self._run("ended"):
            owner, _, id = name.decode().partition("/")
            try:
                self._forget(owner, tenant.decode(), json.loads(chunks))
                # Its time may have been renewed meanwhile; an empty text stands for that it is over.
                self._delete(owner, id, "")
            except EmblemaError as error:
                _LOG.warning("%s has expired and is still there: %s", id, error)
        for place in self._run("loose", _ARRIVING_SECONDS):
            try:
                self._drop(place.decode())
            except EmblemaError as error:
                _LOG.warning("%s belongs to no file and is still there: %s", place.decode(), error)

    def forget_begun(self) -> None:
        for name, text in self._run("begun"):
            owner, _, id = name.decode().partition("/")
            tenant, chunks = json.loads(text)
            self._forget(owner, tenant, chunks)
            self.end(owner, id)

    def close(self) -> None:
        self._bytes.close()
        self._client.connection_pool.disconnect()

    def _find(self, tenant: Tenant, id: str) -> dict[str, str]:
        """Return the fields of a file's entry; `ServeError` where the tenant has none of this id."""
        found = _fields(self._run("entry", tenant.owner, id))
        if not found:
            raise missing("file", id)
        return found

    def _delete(self, owner: str, id: str, chunks: str) -> bool:
        """Delete a file that has these chunks still, or, without any text, one whose time is over."""
        place = self._run("delete", owner, id, chunks)
        if place:
            self._drop(place.decode())
        return bool(place)

    def _drop(self, place: str) -> None:
        """Delete bytes that no file names. Where that fails, they stay listed."""
        self._bytes.delete(place)
        self._run("dropped", place)

    def _eviction(self) -> str:
        """Return the server's policy of eviction; "noeviction" where it has room without bound, or does not tell."""
        from redis import ResponseError

        try:
            found = self._client.config_get("maxmemory*")
        except ResponseError as error:
            _LOG.warning("the server of files does not tell whether it evicts what it keeps: %s", error)
            return "noeviction"
        return str(found.get("maxmemory-policy", "noeviction")) if int(found.get("maxmemory", 0)) else "noeviction"

    def _run(self, name: str, *values: str | float) -> Any:
        return answered(self._caller, self._scripts[name], [self._root], values)


def _fields(pairs: Sequence[bytes]) -> dict[str, str]:
    """Return a hash that a script returned as names and values in turns."""
    texts = [value.decode() for value in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _entry(fields: Mapping[str, str]) -> FileEntry:
    return FileEntry(
        id=fields["id"], name=fields["name"], purpose=fields["purpose"], bytes=int(fields["bytes"]),
        created=float(fields["created"]), expires=float(fields["expires"]) if fields["expires"] else None,
        status=fields["status"], detail=fields["detail"] or None, kind=fields["kind"] or None,
        chunks=tuple(json.loads(fields["chunks"])),
    )  # fmt: skip
