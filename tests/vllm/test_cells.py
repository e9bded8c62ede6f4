"""How a test run says in which way vLLM runs."""

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.vllm.cells import CHUNK, STARTUP, Cell, enter
from tests.vllm.matrix import PAIRS, every
from tests.vllm.startup.cpu_runners import RUNNER, SCHEDULING


def test_a_cell_is_what_the_environment_says() -> None:
    assert Cell.read({}) == Cell("v1", "sync", None)
    cell = Cell.read({RUNNER: "v2", SCHEDULING: "async", CHUNK: "96"})
    assert cell == Cell("v2", "async", 96) == Cell.read(cell.environment) and str(cell) == "v2 async 96"
    assert Cell.read(Cell().environment) == Cell()
    assert cell.options["max_num_batched_tokens"] == 96 and cell.arguments[0] == "--async-scheduling"
    assert Cell().arguments == ["--no-async-scheduling"]
    with pytest.raises(ValueError, match="give one of none, 64, 96"):
        Cell.read({CHUNK: "65"})


def test_processes_that_are_started_get_the_shims(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before, path = list(sys.meta_path), list(sys.path)
    try:
        enter(Cell("v2", "async"), environment)
    except RuntimeError:
        # vLLM is here already, run in another way; what is inherited is told all the same.
        pass
    finally:
        sys.meta_path[:], sys.path[:] = before, path
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == environment["TRITON_INTERPRET"] == "1"
    assert environment["PYTHONPATH"] == str(STARTUP)
    (tmp_path / "triton" / "backends").mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (tmp_path / "triton" / "backends" / "__init__.py").write_text("backends = {}\n")
    line = "import triton.backends; print(triton.backends.backends['cpu'].driver.is_active())"
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(STARTUP)])
    done = subprocess.run([sys.executable, "-c", line], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_each_two_choices_meet_in_the_short_matrix() -> None:
    short, whole = (Cell(), *PAIRS), every()
    assert len(whole) == len(set(whole)) == 12
    for one, two in combinations(("runner", "scheduling", "chunk"), 2):
        pairs = {(getattr(cell, one), getattr(cell, two)) for cell in whole}
        assert {(getattr(cell, one), getattr(cell, two)) for cell in short} == pairs
