"""Bodies that clients write: null is what was not set, and nothing that was given is passed over without a word."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from emblema.serve.faults import ServeError

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
UNKNOWN = "unknown_parameter"
OTHER_ENGINE = "unsupported_parameter"
Harmless = Mapping[str, Sequence[object] | None]
"""Fields that are not read, and the values of each that change no answer; None for any."""


class ClientBody(BaseModel):
    """A body, or a part of one. A field is read, changes nothing, or is refused by name."""

    model_config = ConfigDict(allow_inf_nan=False)
    passed: ClassVar[Harmless] = {}
    elsewhere: ClassVar[Harmless] = {}
    """Fields that another engine serves."""
    told_null: ClassVar[Collection[str]] = ()
    """Fields of which null says something."""

    @model_validator(mode="before")
    @classmethod
    def _every_field_is_read(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        read, known = {}, {field.alias or name for name, field in cls.model_fields.items()}
        for name, value in given.items():
            if value is None and name not in cls.told_null:
                continue
            if name in known:
                read[name] = value
                continue
            for fields in (cls.passed, cls.elsewhere):
                if name in fields and (fields[name] is None or value in (fields[name] or ())):
                    break
            else:
                if name in cls.elsewhere:
                    said = "is not offered here: `emblema vllm-serve` serves a model with it"
                    raise PydanticCustomError(OTHER_ENGINE, said, {"field": name})  # type: ignore[arg-type]
                kind = str(given.get("type", ""))[:40]
                where = f"in a part of type {kind!r}" if kind else "here"
                said = "is not known {where}: leave it out"
                raise PydanticCustomError(UNKNOWN, said, {"field": str(name)[:80], "where": where})
        return read


def object_of(value: Any, where: str) -> dict[str, Any]:
    """Return a part of a body that has to be an object, and can be written again; `ServeError` where it is none."""
    if not isinstance(value, dict):
        raise ServeError(400, f"{where}: give an object", None, where)
    refuse_unwritable(value, where)
    return value


def refuse_unwritable(value: Any, where: str) -> None:
    """Raise `ServeError` for what is no JSON in Unicode: half a surrogate pair, NaN, or more levels than are read."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"{where} cannot be written as JSON: {error}"[:300], None, where) from error


async def known_parameters(request: Request) -> None:
    """Refuse a request with a parameter of its address, or a field of its form, that its route does not read."""
    every = _dependants(request.scope["route"].dependant)
    names = [(name, "query_params") for name in request.query_params]
    if request.headers.get("content-type", "").startswith(FORMS):
        names += [(name, "body_params") for name in await request.form()]
    for name, kind in names:
        if name not in {field.alias for each in every for field in getattr(each, kind)}:
            raise ServeError(400, f"{name[:80]}: is not known here: leave it out", UNKNOWN, name[:80])


def _dependants(dependant: Any) -> list[Any]:
    """Return what a route depends on, itself first."""
    return [dependant, *(each for child in dependant.dependencies for each in _dependants(child))]
