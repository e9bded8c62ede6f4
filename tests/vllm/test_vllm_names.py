"""What the plugin uses of vLLM: the installed one has it, and what it lacks is named."""

import importlib.util

import pytest

from emblema.errors import EmblemaError
from emblema.served.private_names import NamesOf, missing_names
from emblema.vllm import vllm_names
from emblema.vllm.vllm_names import check_names


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_the_installed_vllm_has_all_of_them() -> None:
    check_names()


def test_what_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    present = NamesOf("pathlib", "PurePath", ("name", "parts"))
    table = (
        present,
        NamesOf("pathlib", "PurePath", ("pages",)),
        NamesOf("pathlib", "Folder", ("name",)),
        NamesOf("pathlib.gone", "Path", ("name",)),
        NamesOf("shutil", "copyfileobj", ("read", "pages")),
    )
    found = ["pathlib.PurePath.pages", "pathlib.Folder", "pathlib.gone.Path", "shutil.copyfileobj.pages"]
    assert list(missing_names(table)) == found and not list(missing_names((present,)))
    monkeypatch.setattr(vllm_names, "NAMES", table)
    with pytest.raises(EmblemaError, match="lacks pathlib.PurePath.pages, .*pathlib.gone.Path and 1 more") as raised:
        check_names()
    assert "\n" not in str(raised.value)


def test_constructors_fields_and_bases_are_seen() -> None:
    table = (NamesOf("tests.vllm.test_vllm_names", "Derived", ("field", "made", "inherited", "own", "absent")),)
    assert list(missing_names(table)) == ["tests.vllm.test_vllm_names.Derived.absent"]


class Base:
    """Has a name that its constructor sets."""

    def __init__(self) -> None:
        self.inherited = 1


class Derived(Base):
    """Has names of every kind."""

    field: int

    def __init__(self) -> None:
        super().__init__()
        self.made = 1

    def own(self) -> None:
        """Do nothing."""
