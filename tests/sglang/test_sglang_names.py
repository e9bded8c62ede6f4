"""What the plugin uses of SGLang: the installed one has it, and what it lacks is named."""

import importlib.util

import pytest

from emblema.errors import EmblemaError
from emblema.served.private_names import NamesOf
from emblema.sglang import sglang_names
from emblema.sglang.sglang_names import check_names


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")
def test_the_installed_sglang_has_all_of_them() -> None:
    check_names()


def test_what_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_names, "NAMES", (NamesOf("pathlib", "PurePath", ("name", "pages")),))
    with pytest.raises(EmblemaError, match="lacks pathlib.PurePath.pages, which") as raised:
        check_names()
    assert "\n" not in str(raised.value)
