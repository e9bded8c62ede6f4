"""Pages whose words are written by hand and whose figures are made: each table stands between two comments.

`<!-- NAME -->` begins a block and `<!--/-->` ends it; what is between them is made of figures.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from emblema.errors import EmblemaError

BLOCK = re.compile(r"(?<=<!-- )([\w. -]+)( -->\n).*?(?=<!--/-->)", re.DOTALL)

RULE = re.compile(r"^\| [:-].*", re.MULTILINE)
"""The line of a table below its head: its spaces say nothing."""


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """Return a page with its blocks made.

    Raises:
        EmblemaError: the page has a block that there are no figures of.
    """

    def made(match: re.Match[str]) -> str:
        if match[1] not in blocks:
            raise EmblemaError(f"there are no figures of the block {match[1]!r}")
        return f"{match[1]}{match[2]}\n{RULE.sub(lambda rule: rule[0].replace(' ', ''), blocks[match[1]])}\n\n"

    return BLOCK.sub(made, text)


def write_blocks(page: Path, title: str, blocks: Mapping[str, str]) -> Path:
    """Make a page's blocks, and those that it lacks at its end, unless they are empty; returns its path."""
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# {title}\n"
    lacking = [name for name, block in blocks.items() if block and f"<!-- {name} -->" not in text]
    text += "".join(f"\n## {name}\n\n<!-- {name} -->\n<!--/-->\n" for name in lacking)
    page.write_text(filled(text, blocks), encoding="utf-8")
    return page
