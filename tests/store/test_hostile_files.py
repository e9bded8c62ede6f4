"""Whatever a file holds: the error for a piece that cannot be had, or the piece that was asked for; nothing else."""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emblema.errors import LoadError
from emblema.store import format
from tests.store.corpus import (
    chunk,
    file_bytes,
    identity,
    join,
    json_values,
    open_bytes,
    read_all,
    refused,
    signed,
    split,
)
from tests.store.corruptions import CORRUPTIONS, corrupted

quick = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
corpus = st.integers(1, 24)


def test_seeded_corruptions_are_all_refused() -> None:
    tried: Counter[str] = Counter()
    for what, id, data in corrupted(550):
        assert refused(data, id), f"{what} was taken for the piece"
        tried[what.split()[0]] += 1
    assert set(tried) == {corruption.__name__ for corruption in CORRUPTIONS}
    assert min(tried.values()) >= 50


def test_the_corpus_itself_is_sound() -> None:
    assert not any(refused(file_bytes(seed), identity(seed)) for seed in range(1, 25))


@pytest.mark.slow
def test_every_single_byte_counts() -> None:
    """Each byte of a file changed in turn, to another and to a space: no change goes unnoticed."""
    data = file_bytes(6)
    for place in range(len(data)):
        for value in {data[place] ^ 1 << place % 8, data[place] ^ 0xFF, 0x20} - {data[place]}:
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            assert refused(changed), f"byte {place} as {value} went unnoticed"


def test_every_length_but_the_whole_is_refused() -> None:
    data = file_bytes(6)
    assert all(refused(data[:length]) for length in range(len(data)))


@quick
@given(st.binary(max_size=2000))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert refused(data)
    assert refused(join(data, b""))


@quick
@given(corpus, st.data())
def test_any_range_replaced_is_refused(seed: int, draw: st.DataObject) -> None:
    data = file_bytes(seed)
    start = draw.draw(st.integers(0, len(data)))
    stop = draw.draw(st.integers(start, min(len(data), start + 400)))
    put = draw.draw(st.binary(max_size=400))
    changed = data[:start] + put + data[stop:]
    assert changed == data or refused(changed)


@settings(quick, max_examples=150)
@given(json_values)
def test_any_json_for_a_header_is_refused(value: object) -> None:
    assert refused(join(json.dumps(value, ensure_ascii=True), b""))
    assert refused(signed(json.dumps(value), {}, b""))


def write(path: Path, seed: int) -> Path:
    path.write_bytes(file_bytes(seed))
    return path


def load(path: Path, id: str | None = None) -> None:
    with format.open_file(path, id) as reader:
        read_all(reader)


def test_files_are_refused_as_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "piece.safetensors"
    for what, id, data in corrupted(len(CORRUPTIONS) * 4, seed=1):
        path.write_bytes(data)
        with pytest.raises(LoadError):
            load(path, id)
            pytest.fail(f"{what} was taken for the piece")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    sound = write(tmp_path / "sound.safetensors", 1)
    (tmp_path / "link").symlink_to(sound)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name in ("link", "pipe", "folder", "empty", "missing", "sound.safetensors/below", "a\0b", "n" * 300):
        with pytest.raises(LoadError):
            load(tmp_path / name, identity(1))
    with pytest.raises(LoadError, match="not a plain file"):
        format.open_file(tmp_path / "pipe")
    load(sound, identity(1))


def test_a_file_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "piece", 1)
    data = file_bytes(1)
    with format.open_file(path) as reader:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        names = list(reader.header.sizes)
        reader.read(names[0])
        with pytest.raises(LoadError, match="checksum"):
            reader.read(names[-1])
        os.truncate(path, len(data) - 1)
        with pytest.raises(LoadError, match="cut short"):
            reader.read(names[-1])
        with pytest.raises(LoadError, match="checksum"):
            format.verify(open_bytes(data[:-1] + b"\xff"))


def test_a_closed_file_and_a_tensor_that_is_not_there_are_load_errors(tmp_path: Path) -> None:
    reader = format.open_file(write(tmp_path / "piece", 1))
    with pytest.raises(LoadError, match="no tensor"):
        reader.read("layers.99.keys")
    reader.close()
    reader.close()
    with pytest.raises(LoadError):
        reader.read(next(iter(reader.header.sizes)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed in /proc")
def test_no_file_stays_open_after_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "piece"
    path.write_bytes(file_bytes(1)[:100])
    with path.open("rb"):
        assert descriptors(path) == 1
    for _ in range(20):
        with pytest.raises(LoadError):
            format.open_file(path)
    assert descriptors(path) == 0


def descriptors(path: Path) -> int:
    """How often this process holds a file open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        # Another thread may close one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}") == str(path)
    return found


def test_a_source_that_fails_is_a_load_error() -> None:
    data = file_bytes(1)

    def hangs_up(offset: int, view: memoryview) -> None:
        if offset >= len(data) - len(split(data)[1]):
            raise TimeoutError("no answer")
        view[:] = data[offset : offset + view.nbytes]

    reader = format.open_source(hangs_up, len(data), identity(1))
    with pytest.raises(LoadError, match="no answer"):
        reader.read(next(iter(reader.header.sizes)))


def test_the_corpus_chunk_has_what_the_families_have() -> None:
    assert chunk(1).encoded.deepstack and bool((chunk(1).encoded.groups >= 0).any())
