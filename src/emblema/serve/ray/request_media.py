"""Which media a request shows, as digests that are the same on every replica and differ between tenants."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from starlette.requests import Request

from emblema.errors import EmblemaError
from emblema.serve.files import file_id
from emblema.serve.ray.placement import RoutedRequest, hash_of

MOST_MEDIA = 4_096
"""Media of a request that are looked at."""

CacheFiles = Callable[[str], Iterable[str]]
"""Returns the ids of the files in one of the tenant's caches."""


def routed_chat(owner: str, body: bytes, files_of: CacheFiles) -> RoutedRequest:
    """Return what a router may know of a JSON request. What is malformed shows nothing: the replica refuses it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return RoutedRequest()
    if not isinstance(found, dict):
        return RoutedRequest()
    digests: dict[int, None] = {}
    for name in _media_ids(owner, _parts(found), files_of):
        if len(digests) >= MOST_MEDIA:
            break
        digests[hash_of(owner, name)] = None
    return RoutedRequest(tuple(digests))


async def routed_upload(owner: str, request: Request) -> RoutedRequest:
    """Return the digest of an upload's bytes; nothing where the form is malformed."""
    try:
        async with request.form() as form:
            upload = form.get("file")
            data = b"" if upload is None or isinstance(upload, str) else await upload.read()
    except Exception:
        # Whatever a form may do to its parser, the replica's own parser says it to the client.
        return RoutedRequest()
    return RoutedRequest((hash_of(owner, file_id(owner, data)),)) if data else RoutedRequest()


def _parts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a chat's messages, or of a cache's content."""
    messages = body.get("messages")
    contents = [message.get("content") for message in _objects(messages)] or [body.get("content")]
    for content in contents:
        yield from _objects(content)


def _objects(values: object) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _media_ids(owner: str, parts: Iterator[dict[str, Any]], files_of: CacheFiles) -> Iterator[str]:
    """Yield the ids of files, those that sent bytes would have, and addresses."""
    for part in parts:
        kind = part.get("type")
        value = part.get(kind) if isinstance(kind, str) else None
        if not isinstance(value, dict):
            continue
        sent = value.get("file_id"), value.get("file_data"), value.get("url")
        named, data, address = (text if isinstance(text, str) else None for text in sent)
        if kind == "cache" and isinstance(value.get("cache_id"), str):
            try:
                yield from files_of(value["cache_id"])
            except EmblemaError:
                continue
        elif named is not None:
            yield named
        elif data is not None or (address is not None and address.startswith("data:")):
            yield _sent_id(owner, data if data is not None else address or "")
        elif address is not None:
            yield address


def _sent_id(owner: str, text: str) -> str:
    """Return the id that bytes have as a file; that of the text itself where it cannot be decoded."""
    try:
        return file_id(owner, base64.b64decode(text.rpartition(",")[2], validate=False))
    except (binascii.Error, ValueError):
        return text
