"""What the plugin uses of SGLang: the installed one has it, what it lacks is named, and the page lists it."""

import importlib.util
from pathlib import Path

import pytest

from emblema.errors import EmblemaError
from emblema.served.private_names import NamesOf
from emblema.sglang import sglang_names
from emblema.sglang.sglang_names import NAMES, check_names

PAGE = Path(__file__).parents[2] / "docs" / "sglang.md"


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")
def test_the_installed_sglang_has_all_of_them() -> None:
    check_names()


def test_what_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_names, "NAMES", (NamesOf("pathlib", "PurePath", ("name", "pages")),))
    with pytest.raises(EmblemaError, match="lacks pathlib.PurePath.pages, which") as raised:
        check_names()
    assert "\n" not in str(raised.value)


def test_the_page_lists_them() -> None:
    text = PAGE.read_text()
    for part in NAMES:
        for name in (part.owner, *part.names):
            assert f"`{name}`" in text, f"docs/sglang.md does not list {part.owner}.{name}"
