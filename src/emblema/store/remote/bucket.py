"""What obstore is asked and told: addresses, options without secrets, errors, terms beside an object."""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

from emblema.errors import StoreError
from emblema.store.remote.calls import CallPolicy
from emblema.store.remote.parts import Lasting

_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")
_SECRET = re.compile("secret|token|key|password|credential", re.IGNORECASE)
_EXPIRES = "emblema-expires"
_IDLE = "emblema-idle"


def open_bucket(url: str, options: Mapping[str, str], policy: CallPolicy, seconds: float) -> Any:
    """A bucket each of whose requests takes at most so many seconds; tries are the caller's.

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
                "allow_http": options.get("endpoint", "").startswith("http://"),
            },
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError, TypeError) as error:
        reason = scrub_options(str(error).partition("\n\n")[0], options)
    raise StoreError(f"The S3 tier cannot use {url} with the options {sorted(options)}: {reason}")


def scrub_options(text: str, options: Mapping[str, str]) -> str:
    """A message without the secrets that the options hold."""
    secrets = [value for name, value in options.items() if _SECRET.search(name) and value]
    secrets.append(urlsplit(options.get("endpoint", "")).netloc.rpartition("@")[0])
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def is_outage(error: Exception) -> bool:
    """Whether an error means that the server said nothing, rather than that it said no."""
    from obstore import exceptions

    no = (
        FileNotFoundError,
        exceptions.AlreadyExistsError,
        exceptions.PreconditionError,
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
    )
    return not isinstance(error, no) and _REFUSED.search(str(error)) is None


def is_empty(error: Exception) -> bool:
    """Whether an object has no bytes at all, so that no range of it can be had."""
    return "status code: 416" in str(error)


def lasting_attributes(lasting: Lasting) -> dict[str, str]:
    """Terms as an object's own metadata."""
    named = ((_EXPIRES, lasting.expires), (_IDLE, lasting.idle))
    return {name: repr(float(value)) for name, value in named if value is not None}


def lasting_of(attributes: Mapping[str, str]) -> Lasting:
    """Terms from an object's metadata; what cannot be read has expired."""
    return Lasting(*(_seconds(attributes.get(name)) for name in (_EXPIRES, _IDLE)))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
