"""How a test run says in which way vLLM runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.cells import CHUNK, STARTUP, Cell, enter
from tests.vllm.matrix import SECOND, every
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


def test_the_two_ways_of_every_commit_differ_in_everything_and_the_whole_matrix_has_all() -> None:
    one, two = Cell(), SECOND
    assert (one.runner, one.scheduling) != (two.runner, two.scheduling) and {one.runner, two.runner} == {"v1", "v2"}
    assert {one.scheduling, two.scheduling} == {"sync", "async"} and one.chunk is None and two.chunk
    assert len(every()) == len(set(every())) == 12 and {one, two} <= set(every())
