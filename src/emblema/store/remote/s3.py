"""Chunks and patches in a bucket of S3 or what speaks like it: one object for each, made once."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Unpack, cast
from urllib.parse import urlsplit

from emblema.errors import LoadError, StoreError
from emblema.store.format import Reader, buffers
from emblema.store.record import SHARED, Record, RecordHeader
from emblema.store.remote.calls import Caller, CallPolicy, OutageError, RestingError
from emblema.store.remote.options import Expiry, RemoteKeywords, RemoteOptions
from emblema.store.remote.parts import Buffer, PartedSource
from emblema.store.remote.server import ServerTier

_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")
_SECRET = re.compile("secret|token|key|password|credential", re.IGNORECASE)
_EXPIRES = "emblema-expires"
_IDLE = "emblema-idle"


class S3Tier(ServerTier):
    """Records in one bucket, which any number of processes may share.

    An object holds a record's file; it is created and never written over, and S3 shows no half of one. A record
    that is there already stays as it is, its terms too. S3 lets no single object expire: one whose time is up is
    deleted when it is asked for; a rule of the bucket's life cycle clears away what is never asked for. Its budget
    is the bucket's.

    Args:
        url: `s3://bucket` or `s3://bucket/path`.
        prefix: of every key.
        options: as obstore names them: `endpoint`, `region`, `access_key_id`, `secret_access_key` …; what is not given
            is taken from the usual AWS variables of the environment.
        keywords: `part_bytes`, `group`, `largest_bytes`, `policy`, `clock` as in RemoteOptions.

    Raises:
        StoreError: obstore is not installed, or the address or an option is not one. No server is asked yet.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "emblema",
        *,
        options: Mapping[str, str] | None = None,
        **keywords: Unpack[RemoteKeywords],
    ) -> None:
        shared = RemoteOptions(prefix, **keywords)
        policy = shared.policy
        named = dict(options or {})
        self._obstore: Any = import_obstore()
        self._bucket = open_bucket(url, named, policy, policy.reply_seconds)
        self._uploads = open_bucket(url, named, policy, policy.upload_seconds)
        super().__init__(shared, s3_caller(url, named, policy))

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def _find(self, id: str, owner: str) -> Reader | None:
        key = self._keys.record(owner, id)
        try:
            found, first = self._caller.call(self._get, key, 0, self._options.part_bytes)
            made = found.meta["last_modified"].timestamp()
            if self._caller.call(self._expired, id, owner, found.attributes, made):
                return None
        except RestingError:
            raise
        except FileNotFoundError:
            return None
        except self._caller.failures as error:
            # No range of an object without any bytes can be read.
            if "status code: 416" in str(error):
                raise LoadError(id, "its object is empty") from None
            raise self._caller.outage(id, error) from None
        self._caller.count("bytes_read", len(first))
        length = found.meta["size"]
        if length > self._options.largest_bytes:
            raise LoadError(
                id, f"its object has {length} bytes, more than the {self._options.largest_bytes} that are read"
            )
        fetch = partial(self._fetch, id, key, length, found.meta["e_tag"])
        source = PartedSource(id, length, self._options.part_bytes, fetch, first, self._options.group)
        return self._open(source, owner)

    def _fetch(self, id: str, key: str, length: int, tag: str | None, number: int, count: int) -> Sequence[Buffer]:
        start = number * self._options.part_bytes
        stop = min(start + count * self._options.part_bytes, length)
        try:
            found = self._caller.call(self._get, key, start, stop, tag)[1]
        except (FileNotFoundError, self._obstore.exceptions.PreconditionError):
            raise LoadError(id, "it was deleted or replaced on the server while it was read") from None
        except self._caller.failures as error:
            raise self._caller.outage(id, error) from None
        self._caller.count("bytes_read", len(found))
        return [found[at : at + self._options.part_bytes] for at in range(0, stop - start, self._options.part_bytes)]

    def _get(self, key: str, start: int, stop: int, tag: str | None = None) -> tuple[Any, memoryview]:
        options = {"range": (start, stop), **({"if_match": tag} if tag else {})}
        found = self._obstore.get(self._bucket, key, options=options)
        return found, memoryview(found.bytes())

    def _expired(self, id: str, owner: str, attributes: Mapping[str, str], made: float) -> bool:
        """Return whether a record's time is up, in which case it goes; otherwise its idle time begins again."""
        expiry, now, used = _expiry_of(attributes), self._options.clock(), f"{self._keys.record(owner, id)}/used"
        last = made
        if expiry.idle is not None:
            with suppress(FileNotFoundError):
                last = max(last, self._obstore.head(self._bucket, used)["last_modified"].timestamp())
        until = expiry.until(last)
        if until is not None and until <= now:
            self._remove(id, owner)
            return True
        if expiry.idle is not None and now - last > expiry.idle / 10:
            self._obstore.put(self._bucket, used, b"")
        return False

    def _chunk_ends(self, header: RecordHeader) -> list[float]:
        ends = []
        for chunk in dict.fromkeys(header.chunks):
            for owner in dict.fromkeys((header.owner, SHARED)):
                with suppress(FileNotFoundError):
                    key = self._keys.record(owner, chunk)
                    found = self._obstore.get(self._bucket, key, options={"head": True})
                    ends.append(_expiry_of(found.attributes).until(self._options.clock()))
        return [end for end in ends if end is not None]

    def _put(self, record: Record, length: int, expiry: Expiry) -> int:
        """Keep a record; one that is there already stays as it is."""
        header = record.header
        key = self._keys.record(header.owner, header.id)
        # Before the patch itself, so that none is ever there that its chunk does not know of.
        for chunk in dict.fromkeys(header.chunks):
            for note in (
                f"{self._keys.patches(header.owner, chunk)}/{header.id}",
                f"{self._keys.owners(chunk)}/{header.owner}",
            ):
                self._caller.store(header.id, self._obstore.put, self._bucket, note, b"")
        pieces = list(buffers(record))
        if not self._caller.store(header.id, self._create, key, pieces, expiry):
            self._clear_way(header.id, header.owner)
            self._caller.store(header.id, self._create, key, pieces, expiry)
        return length

    def _create(self, key: str, pieces: Sequence[Buffer], expiry: Expiry) -> bool:
        """Return whether it was made now; False where it is there already, as it is when an answer was lost."""
        named = ((_EXPIRES, expiry.expires), (_IDLE, expiry.idle))
        attributes = {name: repr(float(value)) for name, value in named if value is not None}
        try:
            self._obstore.put(self._uploads, key, pieces, attributes=attributes, mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def _clear_way(self, id: str, owner: str) -> None:
        """Delete a record that cannot be read and would keep its successor out; one that has expired goes too."""
        try:
            reader = self._find(id, owner)
        except OutageError as error:
            raise StoreError(str(error)) from None
        except LoadError:
            key = self._keys.record(owner, id)
            self._caller.store(id, self._drop, key)
        else:
            if reader is not None:
                reader.close()

    def _remove(self, id: str, owner: str) -> int:
        """Delete patches first, so that what a crash leaves is found again by its chunk's notes."""
        key = self._keys.record(owner, id)
        owners, notes = [owner], [f"{key}/used"]
        if owner == SHARED:
            listed = self._list(self._keys.owners(id))
            owners += [name for name in (note.rpartition("/")[2] for note in listed) if name != SHARED]
            notes += listed
        else:
            notes.append(f"{self._keys.owners(id)}/{owner}")
        patches = []
        for name in owners:
            listed = self._list(self._keys.patches(name, id))
            patches += [self._keys.record(name, note.rpartition("/")[2]) for note in listed]
            notes += listed
        count = len(patches) + self._is_here(key)
        if patches:
            self._obstore.delete(self._bucket, patches)
        self._obstore.delete(self._bucket, [key])
        self._obstore.delete(self._bucket, notes)
        return count

    def _drop(self, key: str) -> bool:
        self._obstore.delete(self._bucket, [key])
        return True

    def _list(self, folder: str) -> list[str]:
        return [entry["path"] for batch in self._obstore.list(self._bucket, folder) for entry in batch]

    def _is_here(self, key: str) -> bool:
        try:
            self._obstore.head(self._bucket, key)
        except FileNotFoundError:
            return False
        return True


def import_obstore() -> Any:
    """Return the library that speaks to buckets; StoreError where it is not installed."""
    try:
        import obstore
    except ImportError:
        raise StoreError("The S3 tier needs the obstore library: pip install emblema[s3]") from None
    return obstore


def s3_caller(url: str, options: Mapping[str, str], policy: CallPolicy) -> Caller:
    """Return what calls a bucket within its time and counts."""
    errors = (import_obstore().exceptions.BaseError, OSError)
    return Caller(url, policy, errors, _is_outage, lambda text: _scrub_options(text, options))


def open_bucket(url: str, options: Mapping[str, str], policy: CallPolicy, seconds: float) -> Any:
    """Return a bucket each of whose requests takes at most so many seconds; tries are the caller's.

    Raises:
        StoreError: the address or an option is not one.
    """
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or "@" in url or parts.query:
        raise StoreError(
            "The address of the S3 tier is not s3://bucket or s3://bucket/path: give the endpoint and the credentials "
            "in options, or in the usual AWS variables of the environment."
        )
    try:
        return S3Store.from_url(
            url,
            config=cast(Any, dict(options)),
            client_options={
                "connect_timeout": timedelta(seconds=policy.connect_seconds),
                "timeout": timedelta(seconds=seconds),
                "allow_http": _endpoint(options).startswith("http://"),
            },
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError, TypeError) as error:
        reason = _scrub_options(str(error).partition("\n\n")[0], options)
    raise StoreError(f"The S3 tier cannot use {url} with the options {sorted(options)}: {reason}")


def _endpoint(options: Mapping[str, str]) -> str:
    """Return the address that is asked, where one is named in the options or in the environment."""
    named = (options.get("endpoint"), os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_ENDPOINT"))
    return next(filter(None, named), "")


def _scrub_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message without the secrets that the options hold."""
    secrets = [value for name, value in options.items() if _SECRET.search(name) and value]
    secrets.append(urlsplit(options.get("endpoint", "")).netloc.rpartition("@")[0])
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def _is_outage(error: Exception) -> bool:
    """Return whether an error means that the server did not answer, rather than that it refused."""
    from obstore import exceptions

    no = (
        FileNotFoundError,
        exceptions.AlreadyExistsError,
        exceptions.PreconditionError,
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
    )
    return not isinstance(error, no) and _REFUSED.search(str(error)) is None


def _expiry_of(attributes: Mapping[str, str]) -> Expiry:
    """Return terms from an object's metadata; what cannot be read has expired."""
    return Expiry(*(_seconds(attributes.get(name)) for name in (_EXPIRES, _IDLE)))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
