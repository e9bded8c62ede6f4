"""The console that commands write to, and folders that they write into."""

from pathlib import Path

import pytest

from emblema.cli.screen import WIDTH, console, output_folder
from emblema.errors import EmblemaError


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
