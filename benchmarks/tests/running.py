"""Commands of the benchmarks, run in this process."""

from benchmarks.cli.app import app
from emblema.cli import run
from tests.cli.running import Finished, finish, refusal


def benchmarks(*arguments: str) -> Finished:
    """Run `python -m benchmarks`."""
    return finish(lambda: run(app, "benchmarks"), arguments)


def refused(*arguments: str) -> str:
    """Return the one line with which `python -m benchmarks` refuses."""
    return refusal(benchmarks(*arguments))
