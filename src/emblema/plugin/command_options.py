"""Options of an engine's command line."""

from collections.abc import Sequence


def value_of(options: Sequence[str], name: str) -> str | None:
    """Return the value that options give to a name such as `--host`, the last one; None without."""
    value = None
    for index, option in enumerate(options):
        if option.startswith("--") and option.partition("=")[0].replace("_", "-") == name:
            value = option.partition("=")[2] if "=" in option else next(iter(options[index + 1 : index + 2]), None)
    return value
