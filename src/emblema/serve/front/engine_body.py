"""The body that an engine gets for a tenant's: what names media is the media, and a key is a salt."""

import json
from typing import Any

from pydantic import ValidationError

from emblema.errors import EmblemaError
from emblema.serve.cache_routes import cache_content
from emblema.serve.caches import CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.front.body_media import Form, lists_of_parts
from emblema.serve.front.engine_api import EngineApi, give_options
from emblema.serve.keys import LOCAL, Tenant, cache_salt
from emblema.serve.parts import CacheBreakpoint, CacheOptions
from emblema.served.request_options import read_options

CHOSEN = ("cache_salt", "salt", "extra_key")
"""Fields that follow from the key, so that no client may give them."""
OPERATORS = (
    "rid", "request_id", "session_id", "session_params", "input_ids", "custom_logit_processor", "bootstrap_host",
    "bootstrap_port", "bootstrap_room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
    "previous_response_id", "conversation", "prompt",
)  # fmt: skip
"""Fields that only requests without keys may have: they reach what is others', or the operator's."""
Breakpoints = tuple[tuple[list[Any], int, int], ...]
"""Lists of parts, which of them is to be kept, and for how many seconds."""


def read_body(
    raw: bytes, form: Form, tenant: Tenant, caches: CacheStore, api: EngineApi
) -> tuple[dict[str, Any], Breakpoints]:
    """Return a body with the parts of caches in their place, and its breakpoints.

    Raises:
        EmblemaError: the body is malformed, chooses a salt, or names collections or a cache that is not there.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"the body is no JSON that can be read: {error}") from error
    if not isinstance(body, dict):
        raise ServeError(400, "the body is no JSON object")
    for name in CHOSEN:
        if body.get(name) is not None:
            raise ServeError(400, f"{name} is not a client's to choose: it follows from the key", None, name)
    for name in OPERATORS:
        if tenant is not LOCAL and body.get(name) is not None:
            raise ServeError(400, f"{name} is not taken where requests need a key", None, name)
    if form != "chat":
        return body, ()
    if body.get("collections"):
        raise ServeError(400, f"collections are not looked up inside {api.name}", None, "collections")
    _expand_caches(body, tenant, caches)
    # Elsewhere they are the engine's own.
    return body, _take_breakpoints(body) if api.options_in is not None else ()


def check_options(raw: bytes, api: EngineApi) -> None:
    """Refuse a body of one of the engine's other routes whose options of the plugin are not right: `ServeError`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        # The engine refuses it, in its own words.
        return
    if isinstance(body, dict):
        _give_options(body, api, {})


def write_body(body: dict[str, Any], tenant: Tenant, api: EngineApi) -> bytes:
    """Return a body with what follows from its key, as JSON; `ServeError` where a field is not right."""
    salt = cache_salt(tenant)
    if salt is not None and api.salted:
        body["cache_salt"] = salt
    given = {name: body.pop(name) for name in ("strategy", "survivors") if body.get(name) is not None}
    if given and api.options_in is None:
        name = next(iter(given))
        raise ServeError(400, f"{name} is for vLLM and SGLang: {api.name} is neither", None, name)
    _give_options(body, api, given)
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ServeError(400, f"the body cannot be written as JSON again: {error}") from error


def _give_options(body: dict[str, Any], api: EngineApi, options: dict[str, Any]) -> None:
    try:
        give_options(body, api, read_options(options))
    except EmblemaError as error:
        raise ServeError(400, str(error), None, "emblema") from error


def _expand_caches(body: dict[str, Any], tenant: Tenant, caches: CacheStore) -> None:
    """Write a cache's parts in its place.

    Raises:
        ServeError: there is no such cache, or a part names none.
    """
    for parts in lists_of_parts(body, "chat"):
        given, parts[:] = [*parts], []
        for part in given:
            if not isinstance(part, dict) or part.get("type") != "cache":
                parts.append(part)
                continue
            named = part.get("cache")
            id = named.get("cache_id") if isinstance(named, dict) else None
            if not isinstance(id, str) or len(id) > 200:
                raise ServeError(400, "a part of type cache needs a cache_id", None, "cache_id")
            parts += cache_content(caches.entry(tenant, id))


def _take_breakpoints(body: dict[str, Any]) -> Breakpoints:
    """Take the breakpoints off the parts with media; return the places of these, and how long each is to be kept.

    Raises:
        ServeError: a breakpoint is malformed.
    """
    found: list[tuple[list[Any], int, int]] = []
    try:
        given = body.pop("prompt_cache_options", None)
        options = None if given is None else CacheOptions.model_validate(given)
        for parts in lists_of_parts(body, "chat"):
            for index, part in enumerate(parts):
                wanted = part.pop("prompt_cache_breakpoint", None) if isinstance(part, dict) else None
                if wanted is not None and part.get("type") != "text":
                    seconds = CacheBreakpoint.model_validate(wanted).seconds(options)
                    found.append((parts, index, seconds))
    except ValidationError as error:
        raise ServeError(400, f"a breakpoint is not right: {error.errors()[0]['msg']}") from error
    return tuple(found)
