"""`python -m benchmarks …`."""

from benchmarks.cli.app import app
from emblema.cli import run

run(app, "benchmarks")
