"""Files that are there whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from emblema.store.files import write_whole


def test_a_file_is_put_in_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for buffers in ([b"first"], [b"second", memoryview(b" longer one")], []):
        write_whole(path, buffers)
        assert path.read_bytes() == b"".join(buffers) and path.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [path]


def test_what_breaks_off_leaves_everything_as_it_was(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half of it"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", broken())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", broken())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"before")]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "file", [b"it"])
