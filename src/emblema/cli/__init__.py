"""The command line. Every room is imported by the command that needs it."""

import sys


def main() -> None:
    """Entry point of `emblema`: an error that Emblema raises on purpose is one line, and exit code 2."""
    from emblema.cli.app import app
    from emblema.errors import EmblemaError

    try:
        app()
    except EmblemaError as error:
        print("emblema: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("emblema: interrupted", file=sys.stderr)
        sys.exit(130)
