"""A griffe extension: `start, stop: rows` in a docstring is two attributes; the parser would read a name and a type."""

import re
from typing import Any

import griffe

_NAMES = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +\S.*)*)", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes):\n((?: +\S.*\n?|\n)*)", re.MULTILINE)


class SplitNames(griffe.Extension):
    """Writes a description that several names share once for each of them."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = _SECTION.sub(lambda section: _NAMES.sub(_split, section[0]), obj.docstring.value)


def _split(match: re.Match[str]) -> str:
    indent, names, text = match.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))
