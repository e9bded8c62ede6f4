"""The page of settings has every setting of every class that it names, with the default that the code has."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from emblema import AsyncEngine, Engine, Policy, Store
from emblema.engine.request_queue import SchedulerLimits
from emblema.engine.retrieval import Retrieval
from emblema.media import MediaLimits
from emblema.serve.settings import ServeSettings
from emblema.served.settings import PluginSettings
from emblema.session.decoding import Sampling
from emblema.store import StoreSettings, Terms
from emblema.store.remote import CallPolicy
from emblema.store.remote.options import RemoteOptions
from emblema.stream.settings import StreamSettings
from emblema.window.budget import WindowBudget

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text()
Owner = type | Callable[..., Any]
OWNERS: dict[str, Owner] = {
    "Engine.load": Engine.load,
    "Engine.add": Engine.add,
    "Engine.generate": Engine.generate,
    "Engine.window": Engine.window,
    "Engine.stream": Engine.stream,
    "AsyncEngine": AsyncEngine.__init__,
    "Sampling": Sampling,
    "SchedulerLimits": SchedulerLimits,
    "Retrieval": Retrieval,
    "Policy": Policy,
    "Store": Store.__init__,
    "StoreSettings": StoreSettings,
    "Terms": Terms,
    "RemoteOptions": RemoteOptions,
    "CallPolicy": CallPolicy,
    "WindowBudget": WindowBudget,
    "StreamSettings": StreamSettings,
    "MediaLimits": MediaLimits,
    "ServeSettings": ServeSettings,
    "PluginSettings": PluginSettings,
}
_REQUIRED = (inspect.Parameter.empty, dataclasses.MISSING, PydanticUndefined)


def shown(default: object) -> str:
    """Return a default as the page writes it."""
    if default in _REQUIRED:
        return "required"
    if isinstance(default, int) and not isinstance(default, bool):
        for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
            if default >= unit and default % unit == 0:
                return f"{default // unit} {name}"
        return f"{default:,}" if default >= 10_000 else str(default)
    if isinstance(default, float):
        return "1/3" if default == 1 / 3 else f"{default:,g}"
    if isinstance(default, Path):
        return str(default)
    return "empty" if default in (frozenset(), (), {}, b"", "") else str(default)


def settings_of(owner: Owner) -> dict[str, str]:
    """Return the names and defaults of a class of settings, or of a function's arguments."""
    if dataclasses.is_dataclass(owner):
        return {field.name: shown(_default_of(field)) for field in dataclasses.fields(owner)}
    if isinstance(owner, type) and issubclass(owner, ServeSettings):
        return {name: shown(field.default) for name, field in owner.model_fields.items()}
    parameters = inspect.signature(owner).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: shown(each.default) for each in parameters if each.kind in kinds and each.name != "self"}


def _default_of(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is dataclasses.MISSING:
        return field.default
    made = field.default_factory()
    return f"{type(made).__name__}()" if dataclasses.is_dataclass(made) else made


def rows_of(heading: str) -> Mapping[str, str]:
    """Return names and defaults of the table under a heading of the page."""
    section = re.split(r"^#+ ", PAGE.partition(f"\n## `{heading}`")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\|`([^`]+)`\|`([^`]+)`\|", section, re.MULTILINE))


@pytest.mark.parametrize("heading", OWNERS)
def test_a_table_is_what_the_code_has(heading: str) -> None:
    assert rows_of(heading) == settings_of(OWNERS[heading])


def test_every_table_has_an_owner() -> None:
    headings = set(re.findall(r"^## `([^`]+)`", PAGE, re.MULTILINE))
    assert headings == {*OWNERS, "serve run", "EMBLEMA_*"}


def test_the_arguments_of_serve_run_are_those_that_the_application_takes() -> None:
    source = (ROOT / "src" / "emblema" / "serve" / "ray" / "deployment.py").read_text()
    taken = re.findall(r'own\.pop\("(\w+)", "?([\w-]+)"?\)', source)
    assert len(taken) == source.count("own.pop(") and taken
    assert rows_of("serve run") == dict(taken)


def test_the_variables_are_those_that_the_code_reads() -> None:
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r'"(EMBLEMA_[A-Z_]*[A-Z])"', source)}
    assert named and set(rows_of("EMBLEMA_*")) == {*named, "EMBLEMA_NAME"}
