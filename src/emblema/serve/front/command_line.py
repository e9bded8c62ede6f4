"""Command lines of engines: which options are the service's in front, and which the engine's own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from emblema.errors import EmblemaError

OWN = ("--host", "--port", "--api-key", "--allowed-origins", "--ssl-certfile", "--ssl-keyfile")
"""Options of engines' servers that are the service's, which listens in their place."""
_REFUSED = ("--ssl", "--enable-ssl", "--uds")
"""What options begin with that say how an engine's server listens, and that the service has not."""
FILE = "--config"
"""Option of engines that names a file of their options, a line `name: value` each."""


def split_options(options: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of the service's options, by setting, and the options that are the engine's.

    Raises:
        EmblemaError: one has no value, or too many, or says how to listen in a way that is not offered, or in a file.
    """
    own: dict[str, list[str]] = {}
    others: list[str] = []
    taking: list[str] | None = None
    for option in options:
        if not option.startswith("-") or (taking is None and not option.startswith("--")):
            (others if taking is None else taking).append(option)
            continue
        name, taking = name_of(option), None
        if name not in OWN:
            if name.startswith(_REFUSED):
                raise EmblemaError(f"{name} is not taken: the service listens itself, see {', '.join(OWN)}")
            others.append(option)
            continue
        given = own[name[2:].replace("-", "_")] = []
        if "=" in option:
            given.append(option.partition("=")[2])
        else:
            taking = given
    for setting, values in own.items():
        if not values or (len(values) > 1 and setting != "api_key"):
            raise EmblemaError(f"--{setting.replace('_', '-')} has {len(values)} values: give one")
    for name in names_in_file(others):
        if name in OWN or name.startswith(_REFUSED):
            raise EmblemaError(f"the file of {FILE} has {name[2:]}: the service listens itself, give {name} beside it")
    return own, others


def names_in_file(options: Sequence[str]) -> list[str]:
    """Return the names of options in the file that a command line names; errors as `take_file`."""
    # What is indented belongs to an option's value.
    names = (line.partition(":")[0].rstrip().strip("\"'") for line in take_file(options)[0].splitlines())
    return [name_of(f"--{name}") for name in names]


def take_file(options: Sequence[str]) -> tuple[str, list[str]]:
    """Return what is in the file of options that a command line names, empty without; and the line without that.

    Raises:
        EmblemaError: the file cannot be read.
    """
    for index, option in enumerate(options):
        if name_of(option) != FILE:
            continue
        inline = "=" in option
        path = option.partition("=")[2] if inline else "".join(options[index + 1 : index + 2])
        try:
            return Path(path).read_text(), [*options[:index], *options[index + (1 if inline else 2) :]]
        except (OSError, UnicodeDecodeError) as error:
            raise EmblemaError(f"{FILE} {path} cannot be read: {error}") from error
    return "", [*options]


def with_defaults(
    line: Sequence[str], defaults: Mapping[str, str | None], more: Sequence[str], file: str | None = None
) -> list[str]:
    """Return a command line with options that are the caller's, and defaults of those that the caller does not give.

    Args:
        line: its beginning.
        defaults: by option; None for one without a value.
        more: the caller's.
        file: option that names a file of the engine's options: what that says would be overridden by defaults.
    """
    given = {name_of(option).replace("--no-", "--", 1) for option in more if option.startswith("--")}
    made = list(line)
    for name, value in defaults.items():
        if not given & {name, file}:
            made += [name] if value is None else [name, value]
    return [*made, *more]


def name_of(option: str) -> str:
    """Return the name of an option as an engine's help has it: of `--max_model_len=8` `--max-model-len`."""
    return option.partition("=")[0].replace("_", "-")
