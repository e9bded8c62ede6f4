"""`python -m benchmarks …`."""

from benchmarks.cli import app
from emblema.cli import run

run(app, "benchmarks")
