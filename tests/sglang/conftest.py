"""One served model at a time, as each takes three processes; what serves needs SGLang installed."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.vllm.models import Subject, bundled, tiny

SERVED_BY_SGLANG = importlib.util.find_spec("sglang") is not None
collect_ignore_glob = [] if SERVED_BY_SGLANG else ["test_served*.py"]
BUNDLED = ("reference", "reference-deepstack")


def pytest_report_header() -> list[str]:
    if not SERVED_BY_SGLANG:
        return ["sglang is not installed: its tests are not collected here; run `make test-sglang`"]
    return ["sglang runs on a CPU here, with torch's own attention: other kernels than on a GPU"]


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Models by name, each made once."""
    made: dict[str, Subject] = {}

    def find(name: str) -> Subject:
        if name not in made:
            folder = tmp_path_factory.mktemp("models") / name
            made[name] = bundled(name) if name in BUNDLED else tiny(name, folder)
        return made[name]

    return find


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Any]]:
    """Starts a server; the one before it ends first."""
    from tests.sglang.serving import Served

    running: list[Any] = []

    def start(*given: Any, **named: Any) -> Any:
        while running:
            running.pop().close()
        running.append(Served(*given, **named))
        return running[-1]

    yield start
    while running:
        running.pop().close()
