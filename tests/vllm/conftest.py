"""One served model at a time: vLLM holds the process's only transfer group, so an engine is closed before the next.

A process runs vLLM in one way, which options or the environment name: see `cells`.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emblema import Engine
from emblema.vllm import kv_worker, planner
from tests.vllm.cells import CHOICES, NEED_VLLM, PATIENT_SECONDS, Cell, enter

SERVED_BY_VLLM = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if SERVED_BY_VLLM else [*NEED_VLLM]


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, choices in CHOICES.items():
        parser.addoption(_option(name), choices=choices, help=f"how the tests run vLLM; else {name}, or {choices[0]}")


def _option(name: str) -> str:
    return "--" + name.removeprefix("EMBLEMA_").lower().replace("_", "-")


def pytest_configure(config: pytest.Config) -> None:
    given = {name: config.getoption(_option(name), None) for name in CHOICES}
    try:
        cell = Cell.read(os.environ | {name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if SERVED_BY_VLLM:
        enter(cell)


def pytest_report_header() -> list[str]:
    if not SERVED_BY_VLLM:
        return ["vllm is not installed: its tests are not collected here; run `make test-vllm`"]
    return [f"vllm: {Cell.read(os.environ)}"]


@pytest.fixture(scope="session")
def cell() -> Cell:
    """How this process runs vLLM."""
    return Cell.read(os.environ)


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Wait for plans and for what is staged in this process as servers of the tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "PLANNING_SECONDS", PATIENT_SECONDS)
        patch.setattr(planner, "STAGING_SECONDS", PATIENT_SECONDS)
        patch.setattr(kv_worker, "STAGING_SECONDS", PATIENT_SECONDS)
        yield


class Bench:
    """Serves one model after another."""

    def __init__(self) -> None:
        self.current: Any = None

    def serve(self, *args: Any, **kwargs: Any) -> Any:
        from tests.vllm.serving import Served

        self.close()
        self.current = Served(*args, **kwargs)
        return self.current

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
            self.current = None


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Models by name, each made once."""
    from tests.vllm.models import bundled, tiny

    made: dict[str, Any] = {}

    def subject(name: str) -> Any:
        if name not in made:
            folder: Path = tmp_path_factory.mktemp("models") / name
            made[name] = bundled(name) if name.startswith("reference") else tiny(name, folder)
        return made[name]

    return subject


@pytest.fixture(scope="module")
def subject(subjects: Callable[[str], Any]) -> Any:
    """The model that is served where a test names no other."""
    return subjects("qwen2.5-vl")


@pytest.fixture(scope="module")
def engine(subject: Any) -> Iterator[Engine]:
    """The same model outside vLLM."""
    with Engine.load(subject.folder, anchor=None) as engine:
        yield engine
