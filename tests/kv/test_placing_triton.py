"""The kernel of the placing pass, run by Triton's interpreter on a CPU: the same cases as torch's, in a process apart.

Whether a kernel is interpreted is decided when its module is imported.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REQUIRED = "EMBLEMA_REQUIRE_TRITON"
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None and REQUIRED not in os.environ, reason="triton is not installed"
)


@pytest.mark.slow
def test_the_kernel_places_rows_by_their_definition() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kv.interpret_kernel"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout.split()[-2]) > 24, ran.stdout
