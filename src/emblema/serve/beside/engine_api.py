"""Request and reply fields of one engine's own server: paths, names, and where reports stand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emblema.serve.beside.body_media import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineApi:
    """How requests to one engine's server are written, and its replies read.

    Attributes:
        engine: its name, in errors.
        key_option: its option for a key of its own.
        open: paths that need no key.
        forms: the form of a body by its path.
        unsalted: those paths whose requests know no salt, so that tenants are not offered them.
        chosen: fields that follow from the key, so that no client may give them.
        operator: fields that only requests without keys may have: they reach what is others', or the operator's.
        media_name: a media part with its name, as the engine's caches of media in memory go by it.
        give_options: writes the plugin's options into a chat body; what the client gave under them stays.
        wants_report: fields of a chat request whose reply has the plugin's report.
        report: returns that report; empty without.
        remark: writes what was not done as asked into the last choice of a reply or of an event.
    """

    engine: str
    key_option: str
    open: tuple[str, ...]
    forms: Mapping[str, Form]
    unsalted: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ("cache_salt", "salt")
    operator: tuple[str, ...] = ()
    media_name: Callable[[dict[str, Any], str, str], dict[str, Any]]
    give_options: Callable[[dict[str, Any], Mapping[str, Any]], None]
    wants_report: Mapping[str, Any]
    report: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    remark: Callable[[dict[str, Any], str], None]


def options_under(body: dict[str, Any], field: str, options: Mapping[str, Any]) -> None:
    """Write options as `emblema` of an object of a body; where a client's own value is no object, it is left."""
    parameters = body.get(field)
    if not isinstance(parameters, dict | None):
        return
    given = (parameters or {}).get("emblema")
    if isinstance(given, dict | None):
        body[field] = {**(parameters or {}), "emblema": {**options, **(given or {})}}
