"""Pieces of the command line that have rules of their own."""

from pathlib import Path

import pytest

from emblema.cli.check import ranks_of
from emblema.cli.screen import WIDTH, console, output_folder
from emblema.errors import EmblemaError, StrategyError


def test_ranks() -> None:
    assert ranks_of("4, 16,64") == (4, 16, 64)
    for wrong in ("", "4,x", "-3", "4;5", "0", "99999999"):
        with pytest.raises(StrategyError):
            ranks_of(wrong)


def test_an_output_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert output_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(EmblemaError, match="--out"):
        output_folder(tmp_path / "file")
    with pytest.raises(EmblemaError, match="--out"):
        output_folder(tmp_path / "file" / "below")


def test_a_console_without_a_terminal_is_wide_enough_for_the_tables() -> None:
    assert console().width >= WIDTH
    plain = console(plain=True)
    assert not plain.is_terminal
    assert plain.no_color
