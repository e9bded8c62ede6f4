"""Where the bytes of uploaded files are that several servers share: Redis, or a bucket."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, Unpack

from emblema.errors import StoreError
from emblema.serve.faults import ServeError
from emblema.store.remote.calls import Caller, RestingError, UnansweredError
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.s3 import import_obstore, open_bucket, s3_caller

_LOG = logging.getLogger("emblema.serve")


class FileBytes(Protocol):
    """Bytes under places that are written once. Every call raises `ServeError` where the server does not answer."""

    def put(self, place: str, data: bytes) -> None:
        """Keep bytes; `StoreError` where the server refuses them."""

    def get(self, place: str) -> bytes | None:
        """Return bytes; None where there are none."""

    def delete(self, place: str) -> None:
        """Delete bytes, if they are there."""

    def close(self) -> None:
        """Let go of connections."""


class RedisFileBytes:
    """Bytes in one hash each, in parts, so that no reply is longer than its deadline allows.

    Args:
        client, caller: of the server.
        root: of the keys.
        options: how long a part is, and how many are sent at a time.
    """

    def __init__(self, client: Any, caller: Caller, root: str, options: RemoteOptions) -> None:
        self._client, self._caller, self._root, self._options = client, caller, root, options

    def put(self, place: str, data: bytes) -> None:
        length, key = self._options.part_bytes, f"{self._root}/{place}"
        parts = {str(number): data[at : at + length] for number, at in enumerate(range(0, len(data), length))}
        for group in self._groups(list(parts)):
            answered(self._caller, self._client.hset, key, None, None, {name: parts[name] for name in group})

    def get(self, place: str) -> bytes | None:
        key = f"{self._root}/{place}"
        count = answered(self._caller, self._client.hlen, key)
        found: list[bytes | None] = []
        for group in self._groups([str(number) for number in range(count)]):
            found += answered(self._caller, self._client.hmget, key, group)
        parts = [part for part in found if part is not None]
        return b"".join(parts) if parts and len(parts) == len(found) else None

    def delete(self, place: str) -> None:
        answered(self._caller, self._client.unlink, f"{self._root}/{place}")

    def close(self) -> None:
        """Do nothing: the client is its maker's."""

    def _groups(self, names: list[str]) -> list[list[str]]:
        many = self._options.group
        return [names[at : at + many] for at in range(0, len(names), many)]


class S3FileBytes:
    """Bytes as objects of a bucket.

    Args:
        url, prefix, options, keywords: as of `S3Tier`.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "emblema",
        options: Mapping[str, str] | None = None,
        **keywords: Unpack[RemoteKeywords],
    ) -> None:
        shared = RemoteOptions(prefix, **keywords)
        self._objects: Any = import_obstore()
        named, seconds = dict(options or {}), shared.policy.upload_seconds
        self._bucket, self._caller = (
            open_bucket(url, named, shared.policy, seconds),
            s3_caller(url, named, shared.policy),
        )
        self._root = f"{prefix}/files/1"

    def put(self, place: str, data: bytes) -> None:
        answered(self._caller, self._objects.put, self._bucket, f"{self._root}/{place}", data)

    def get(self, place: str) -> bytes | None:
        try:
            return bytes(answered(self._caller, self._get, f"{self._root}/{place}"))
        except FileNotFoundError:
            return None

    def delete(self, place: str) -> None:
        with suppress(FileNotFoundError):
            answered(self._caller, self._objects.delete, self._bucket, f"{self._root}/{place}")

    def _get(self, key: str) -> Any:
        return self._objects.get(self._bucket, key).bytes()

    def close(self) -> None:
        """Do nothing: no connection is held."""


def answered(caller: Caller, action: Callable[..., Any], *arguments: Any) -> Any:
    """Call a server of files and return its answer.

    Raises:
        ServeError: it does not answer.
        StoreError: it refused.
        FileNotFoundError: there is no such object.
    """
    try:
        return caller.call(action, *arguments)
    except UnansweredError as error:
        # While the server is left alone, each request would say so.
        _LOG.log(logging.DEBUG if isinstance(error, RestingError) else logging.WARNING, "no files: %s", error)
        raise ServeError(503, "files cannot be reached for now: try again", "files_unavailable") from None
    except FileNotFoundError:
        raise
    except caller.errors as error:
        raise StoreError(f"the server of files refused: {caller.reason(error)}") from None
