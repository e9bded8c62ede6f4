"""The command line of an engine's own server that the plugin runs in, and who it lets in. Nothing here needs torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.serve.beside.engine_api import EngineApi
from emblema.serve.keys import KeyRing, check_open
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import check_address


def value_of(options: Sequence[str], name: str) -> str | None:
    """Return the value that options give to a name such as `--host`, the last one; None without."""
    value = None
    for index, option in enumerate(options):
        if option.startswith("--") and name_of(option) == name:
            value = option.partition("=")[2] if "=" in option else next(iter(options[index + 1 : index + 2]), None)
    return value


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


def check_start(
    store: Path,
    options: Sequence[str],
    own_key: bool,
    api: EngineApi,
    place: tuple[str, int],
    elsewhere: Sequence[str],
) -> None:
    """Refuse what a server would refuse once it has loaded its model.

    Args:
        store: folder of the store.
        options: of the engine.
        own_key: whether the engine itself asks for a key.
        api: of the engine.
        place: host and port where it listens by default.
        elsewhere: options with which it listens at no port, or at one that is named in a file.

    Raises:
        EmblemaError: others would be let in without a key, two kinds of keys would be asked for, or the port is taken.
    """
    settings = ServeSettings.read(store=store, host=value_of(options, "--host") or place[0])
    check_access(settings, KeyRing(settings.folder), own_key, api)
    given = value_of(options, "--port")
    if given is None and any(value_of(options, name) for name in elsewhere):
        return
    # What is no number is refused by the engine, in its own words.
    if given is None or given.isdecimal():
        check_address(settings.host, int(given or place[1]))


def check_access(settings: ServeSettings, keys: KeyRing, own_key: bool, api: EngineApi) -> None:
    """Refuse to let others in without a key, and to ask for two.

    Raises:
        EmblemaError: others reach the address and there is no key, or there are keys of both kinds.
    """
    if not own_key:
        check_open(keys, settings)
    elif len(keys):
        raise EmblemaError(
            f"{settings.store} has keys of tenants: leave {api.engine}'s {api.key_option} out, or revoke them"
        )
