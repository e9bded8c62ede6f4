"""Chunks and patches in a bucket of S3, Google Cloud or Azure, or in a folder: one object for each."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Unpack
from urllib.parse import urlsplit

from emblema.errors import StoreError
from emblema.store.remote.calls import Caller, CallPolicy
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.tier import Buffer, Found, Note, ServerTier

_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "file"})
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")
_EMPTY = re.compile(r"status code: 416|StartTooLarge")
_SECRET = re.compile("secret|token|key|password|credential|signature", re.IGNORECASE)


class BucketTier(ServerTier):
    """Records in one bucket, which any number of processes may share.

    No bucket lets a single object expire: one whose time is up is deleted when it is asked for; a rule of the
    bucket's life cycle clears away what is never asked for. Its budget is the bucket's.

    Args:
        url: `s3://bucket/path`, `gs://…`, `az://…` or another that obstore takes, or `file:///folder`.
        prefix: of every key.
        options: as obstore names them: `endpoint`, `region`, `access_key_id`, `secret_access_key` …; what is not given
            is taken from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`).
        keywords: `part_bytes`, `largest_bytes`, `policy`, `clock` as in RemoteOptions.

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
        super().__init__(BucketServer(url, options or {}, shared.policy), shared)


class BucketServer:
    """One bucket and what calls it; a ValueServer. A name that is noted is an empty object.

    Args:
        url, options: as of `BucketTier`.
        policy: time-outs and tries.

    Raises:
        StoreError: as of `BucketTier`.
    """

    def __init__(self, url: str, options: Mapping[str, str], policy: CallPolicy) -> None:
        try:
            import obstore
        except ImportError:
            raise StoreError("The tier in a bucket needs the obstore library: pip install emblema[s3]") from None
        self._obstore: Any = obstore
        self._bucket = _open_bucket(url, options, policy, policy.reply_seconds)
        self._uploads = _open_bucket(url, options, policy, policy.upload_seconds)
        errors = (obstore.exceptions.BaseError, OSError)
        self.caller = Caller(url, policy, errors, _is_outage, lambda text: _scrub_options(text, options))

    def get(self, key: str, start: int, stop: int) -> Found | None:
        try:
            found = self._obstore.get(self._bucket, key, options={"range": (start, stop)})
            return Found(memoryview(found.bytes()), found.meta["size"])
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError as error:
            # No range of an object without any bytes can be read.
            if _EMPTY.search(str(error)):
                return Found(memoryview(b""), 0)
            raise

    def put(self, key: str, value: Sequence[Buffer], until: float | None, notes: Sequence[Note]) -> None:
        for folder, name in notes:
            self._obstore.put(self._bucket, f"{folder}/{name}", b"")
        self._obstore.put(self._uploads, key, value)

    def used(self, key: str) -> float | None:
        moments = []
        for name in (key, f"{key}.used"):
            with suppress(FileNotFoundError):
                moments.append(self._obstore.head(self._bucket, name)["last_modified"].timestamp())
        return max(moments, default=0.0)

    def touch(self, key: str, until: float) -> None:
        self._obstore.put(self._bucket, f"{key}.used", b"")

    def delete(self, keys: Sequence[str]) -> int:
        deleted = 0
        for key in keys:
            with suppress(FileNotFoundError):
                self._obstore.head(self._bucket, key)
                deleted += 1
            self._drop(key)
            self._drop(f"{key}.used")
        return deleted

    def noted(self, folder: str) -> Sequence[str]:
        listed = self._obstore.list(self._bucket, folder)
        return [entry["path"].rpartition("/")[2] for batch in listed for entry in batch]

    def forget(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self._drop(f"{folder}/{name}")

    def _drop(self, key: str) -> None:
        # A folder, unlike a bucket, says where a file is not there.
        with suppress(FileNotFoundError):
            self._obstore.delete(self._bucket, [key])

    def close(self) -> None:
        """Do nothing: no connection is held."""


def _open_bucket(url: str, options: Mapping[str, str], policy: CallPolicy, seconds: float) -> Any:
    """Return a bucket each of whose requests takes at most so many seconds."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or parts.password or parts.query:
        raise StoreError(
            "The address of the bucket is not s3://bucket/path, gs://…, az://… or file:///folder: give the endpoint "
            "and the credentials in options, or in the usual variables of the environment (AWS_…, GOOGLE_…, AZURE_…)."
        )
    network: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=policy.connect_seconds),
            "timeout": timedelta(seconds=seconds),
            # Where the endpoint that was given says so.
            "allow_http": True,
        },
        "retry_config": {
            "max_retries": policy.retries,
            "retry_timeout": timedelta(seconds=policy.total_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=policy.pause_seconds),
                "max_backoff": timedelta(seconds=policy.longest_pause_seconds),
                "base": 2,
            },
        },
    }
    try:
        return from_url(url, **({} if parts.scheme == "file" else {"config": dict(options), **network}))
    except (BaseError, ValueError, TypeError) as error:
        reason = _scrub_options(str(error).partition("\n\n")[0], options)
    raise StoreError(f"The bucket {url} cannot be used with the options {sorted(options)}: {reason}")


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

    no = (FileNotFoundError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    return not isinstance(error, no) and _REFUSED.search(str(error)) is None
