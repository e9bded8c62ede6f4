"""Request and reply fields of one engine's own server: paths, names, and where reports stand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emblema.serve.beside.body_media import Form
from emblema.served.request_options import read_options


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
        options_in: field of a body that has the plugin's options, as `emblema`.
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
    options_in: str
    wants_report: Mapping[str, Any]
    report: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    remark: Callable[[dict[str, Any], str], None]


def give_options(body: dict[str, Any], api: EngineApi, options: Mapping[str, Any]) -> None:
    """Write the plugin's options into a body; what the client gave stays.

    Raises:
        EmblemaError: what the client gave is not right.
    """
    parameters = body.get(api.options_in)
    if not isinstance(parameters, dict | None):
        # The engine refuses it, in its own words.
        return
    given = read_options((parameters or {}).get("emblema"))
    if given or options:
        body[api.options_in] = {**(parameters or {}), "emblema": {**options, **given}}
