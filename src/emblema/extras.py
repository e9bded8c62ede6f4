"""Packages that come with one of the project's extras: imported where they are used."""

from importlib import import_module
from typing import Any

from emblema.errors import EmblemaError


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra.

    Raises:
        EmblemaError: the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise EmblemaError(
            f"{package} is needed for this and cannot be imported ({error}): pip install 'emblema[{extra}]'."
        ) from error
