"""The command line. Every room is imported by the command that needs it."""

import sys
from collections.abc import Callable

from emblema.cli.interrupt import INTERRUPTED, ending_on_interrupt


def main() -> None:
    """Run `emblema`."""
    with ending_on_interrupt():
        from emblema.cli.app import app

        run(app, "emblema")


def run(app: Callable[[], object], name: str) -> None:
    """Run a command line: an error that Emblema raises on purpose is one line, and exit code 2."""
    from emblema.errors import EmblemaError

    try:
        app()
    except EmblemaError as error:
        print(f"{name}: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
