"""Which media a request shows, as digests that are the same on every replica and differ between tenants."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from starlette.requests import Request

from emblema.errors import EmblemaError
from emblema.serve.files import file_id
from emblema.serve.front.body_media import FORMS, lists_of_parts, reference_of
from emblema.serve.ray.placement import RoutedRequest, hash_of

MOST_MEDIA = 4_096
"""Media of a request that are looked at."""

CacheFiles = Callable[[str], Iterable[str]]
"""Returns the ids of the files in one of the tenant's caches."""


def routed_body(owner: str, path: str, body: bytes, files_of: CacheFiles) -> RoutedRequest:
    """Return what a router may know of a JSON request. What is malformed shows nothing: the replica refuses it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return RoutedRequest()
    if not isinstance(found, dict):
        return RoutedRequest()
    if path == "/v1/caches":
        found = {"messages": [found]}
    parts = (part for parts in lists_of_parts(found, FORMS.get(path, "chat")) for part in parts)
    names = (name for part in parts if isinstance(part, dict) for name in _names_of(owner, part, files_of))
    return RoutedRequest(tuple(dict.fromkeys(hash_of(owner, name) for name in islice(names, MOST_MEDIA))))


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


def _names_of(owner: str, part: dict[str, Any], files_of: CacheFiles) -> Iterable[str]:
    """Return the ids of a part's files, those that sent bytes would have, or its address; nothing where it has none."""
    try:
        match part:
            case {"type": "cache", "cache": {"cache_id": str(id)}}:
                return tuple(files_of(id))
            case {"type": "input_audio", "input_audio": {"data": str(data)}}:
                return (_sent_id(owner, data),)
        media = reference_of(part)
    except EmblemaError:
        return ()
    if media is None:
        return ()
    if media.file is not None:
        return (media.file,)
    return (_sent_id(owner, media.address) if media.address.startswith("data:") else media.address,)


def _sent_id(owner: str, text: str) -> str:
    """Return the id that bytes have as a file; that of the text itself where it cannot be decoded."""
    try:
        return file_id(owner, base64.b64decode(text.rpartition(",")[2], validate=False))
    except (binascii.Error, ValueError):
        return text
