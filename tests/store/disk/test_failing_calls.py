"""Every call by which the store reaches its files and its catalogue fails once, and from then on: no piece that was
acknowledged is lost, nothing wrong is served, and the store works again when the disk does."""

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path

import pytest

from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.store import Store
from emblema.store.disk import DiskTier
from emblema.store.disk.upkeep import collect, verify_pieces
from emblema.store.files import make_folder, write_whole
from emblema.store.record import Terms
from tests.store.disk.filelayer import FailingCalls
from tests.store.disk.records import ALICE, BOB, check, id_of, piece_files, piece_path, put, record, temporary_files
from tests.store.pieces import is_numbered, name, numbered

BUDGET = 10**9
KEPT = ("a", "b", "pinned", "patch", "shared")


@dataclass(frozen=True)
class Change:
    """A change of a store, and which pieces may be gone, or of another version, when it fails.

    Attributes:
        do: the change.
        touched: names of pieces to the versions that they may have afterwards; None: it may be gone.
    """

    do: Callable[[DiskTier], object]
    touched: dict[str, set[int | None]]


CHANGES: dict[str, Change] = {
    "write": Change(lambda tier: tier.write(record("new", 3000), Terms()), {"new": {None, 0}}),
    "write, pinned": Change(lambda tier: tier.write(record("new"), Terms(pinned=True)), {"new": {None, 0}}),
    "write a patch": Change(
        lambda tier: tier.write(record("new", chunks=[id_of("a"), id_of("b")]), Terms()), {"new": {None, 0}}
    ),
    "write again": Change(lambda tier: tier.write(record("a", version=1), Terms()), {"a": {0, 1}}),
    "write again, unpinned": Change(lambda tier: tier.write(record("pinned", version=1), Terms()), {"pinned": {0, 1}}),
    "delete": Change(lambda tier: tier.delete(id_of("a"), ALICE), {"a": {None, 0}, "patch": {None, 0}}),
    "pin": Change(lambda tier: tier.set_pin(id_of("a"), True), {}),
    "unpin": Change(lambda tier: tier.set_pin(id_of("pinned"), False), {}),
    "uses": Change(lambda tier: (tier.touch([id_of("a"), id_of("b")]), tier.record_uses()), {}),
    "evict": Change(lambda tier: tier.evict(ALICE, 1), {each: {None, 0} for each in ("a", "b", "patch")}),
    "collect": Change(collect, {"ending": {None, 0}}),
    "verify": Change(verify_pieces, {}),
    "scan": Change(lambda tier: tier.scan(), {}),
    "checkpoint": Change(lambda tier: tier.catalogue.checkpoint(), {}),
    "close": Change(lambda tier: (tier.touch([id_of("a")]), tier.close()), {}),
}


class Time:
    """A clock that a piece with a short life has outlived."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pieces, one of which has expired, a file in quarantine and one that a crashed writer left."""
    folder = tmp_path_factory.mktemp("begun") / "store"
    tier = DiskTier(folder, BUDGET, clock=Time())
    for each in ("a", "b"):
        put(tier, each)
    put(tier, "pinned", Terms(pinned=True))
    tier.write(record("patch", chunks=[id_of("a")]), Terms())
    tier.write(record("shared", owner=BOB), Terms())
    tier.write(record("ending"), Terms(seconds=1.0))
    put(tier, "damaged")
    assert tier.quarantine(id_of("damaged"), "for the test")
    tier.close()
    (folder / "temporary" / "left").write_bytes(b"half")
    return folder


def _opened(folder: Path) -> DiskTier:
    clock = Time()
    clock.now = 1100.0
    return DiskTier(folder, BUDGET, clock=clock)


def _expected(tier: DiskTier, touched: dict[str, set[int | None]], unread: bool, collected: bool = False) -> None:
    """Everything that was there is there, but for what the change that failed may have done by then.

    Args:
        unread: files could not be read: they may be out of service, and are kept.
        collected: until the quarantine is emptied, as it was.
    """
    for each in {*KEPT, *touched}:
        versions: set[int | None] = {None} if each == "ending" else touched.get(each, {0})
        reader = tier.open(id_of(each), BOB if each == "shared" else ALICE)
        found = None if reader is None else check(reader, id_of(each))
        kept = piece_path(tier.path, id_of(each)).exists() or any(tier.path.glob(f"quarantine/{id_of(each)}*"))
        assert found in versions or (found is None and unread and (kept or collected)), (
            f"{each} is {found}, not one of {versions}"
        )
    assert tier.open(id_of("damaged"), ALICE) is None
    patch = tier.entry(id_of("patch"))
    assert patch is None or patch.chunks == (id_of("a"),)


def _works_again(tier: DiskTier, touched: dict[str, set[int | None]], unread: bool = False) -> None:
    """The disk does again what it is asked: the tier has its pieces, writes, deletes, and agrees with its files."""
    _expected(tier, touched, unread)
    _writes(tier)
    collect(tier)
    files = piece_files(tier.path)
    if not unread:
        assert {entry.id: entry.bytes for entry in tier.entries()} == files and tier.bytes == sum(files.values())
    assert temporary_files(tier.path) == []
    _expected(tier, touched, unread, collected=True)


def _unread(failing: FailingCalls) -> bool:
    """Whether a file may have been one that could not be read."""
    return failing.reads and bool({"open", "pread", "fstat", "lstat"} & set(failing.failed))


def _writes(tier: DiskTier) -> None:
    put(tier, "later")
    check(tier.open(id_of("later"), ALICE), id_of("later"), 0)
    assert tier.delete(id_of("later"), ALICE)


def _numbers(all: bool) -> Iterator[int]:
    """The calls that fail: every one, or the first 50 and about every thirtieth of the others, not always the same."""
    yield from range(1, 51)
    yield from count(51) if all else accumulate(iter(lambda: random.randint(10, 50), 0), initial=51)


ONCE, LASTING = (errno.EIO, False), (errno.ENOSPC, True)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_any_call_of_a_change_fails_from_then_on(begun: Path, tmp_path: Path, change: str) -> None:
    _fail(begun, tmp_path, change, *LASTING, all=False)


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "lasting"), [ONCE, LASTING, (errno.EIO, True), (errno.EROFS, False)])
@pytest.mark.parametrize("change", CHANGES)
def test_every_call_of_a_change_fails(begun: Path, tmp_path: Path, change: str, code: int, lasting: bool) -> None:
    _fail(begun, tmp_path, change, code, lasting, all=True)


def _fail(begun: Path, tmp_path: Path, change: str, code: int, lasting: bool, *, all: bool) -> None:
    made, failed = CHANGES[change], 0
    for number in _numbers(all):
        folder = tmp_path / str(number)
        shutil.copytree(begun, folder, copy_function=shutil.copy2)
        tier = _opened(folder)
        failing = FailingCalls(number, lasting=lasting, code=code, reading=code == errno.EIO)
        error: Exception | None = None
        with failing():
            try:
                made.do(tier)
            except (StoreError, LoadError) as raised:
                error = raised
        if not failing.failed:
            break
        unread = _unread(failing)
        try:
            if change != "close":
                _expected(tier, made.touched, unread)
                _writes(tier)
                tier.close()
            again = _opened(folder)
            _works_again(again, made.touched, unread)
            again.close()
        except (AssertionError, EmblemaError, OSError) as problem:
            raise AssertionError(f"call {number}, {failing.failed[:1]}, {error!r}: {problem!r}") from problem
        shutil.rmtree(folder)
        failed += 1
    assert failed > (0 if change == "checkpoint" else 2), "there was hardly a call to fail"


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_any_call_of_opening_fails(begun: Path, tmp_path: Path, lasting: bool) -> None:
    _fail_opening(begun, tmp_path, lasting, all=False)


@pytest.mark.nightly
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_every_call_of_opening_fails(begun: Path, tmp_path: Path, lasting: bool) -> None:
    _fail_opening(begun, tmp_path, lasting, all=True)


def _fail_opening(begun: Path, tmp_path: Path, lasting: bool, *, all: bool) -> None:
    """It is refused, or opened to be read; either way all is there when the disk works again."""
    read_only = 0
    # Errors hold the frames that they passed, and so what was left open there.
    refused: list[StoreError] = []
    for number in _numbers(all):
        folder = tmp_path / str(number)
        shutil.copytree(begun, folder, copy_function=shutil.copy2)
        failing = FailingCalls(number, lasting=lasting)
        with failing():
            try:
                tier = _opened(folder)
            except StoreError as error:
                refused.append(error)
            else:
                read_only += any("cannot be written" in note for note in tier.report.notes)
                tier.close()
        again = _opened(folder)
        try:
            _works_again(again, {}, unread=_unread(failing))
        except AssertionError as problem:
            raise AssertionError(f"call {number}, {failing.failed[:1]}: {problem}") from problem
        again.close()
        shutil.rmtree(folder)
        if not failing.failed:
            break
    assert len(refused) + read_only > 5


def test_any_call_of_making_a_folder_fails(tmp_path: Path) -> None:
    for number in _numbers(all=False):
        folder = tmp_path / str(number) / "within"
        failing = FailingCalls(number)
        with failing(), suppress(StoreError):
            _opened(folder).close()
        tier = _opened(folder)
        put(tier, "a")
        check(tier.open(id_of("a"), ALICE), id_of("a"), 0)
        tier.close()
        if not failing.failed:
            break


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_any_call_of_a_flush_fails(tmp_path: Path, lasting: bool) -> None:
    """A flush that returns has made everything durable; one that raises says so, and nothing is half there."""
    number, failed = 0, True
    while failed:
        number += 1
        folder = tmp_path / str(number)
        store = Store(folder, disk_bytes=10**8)
        tenant = store.tenant(b"alice")
        tenant.put(numbered(1))
        tenant.flush()
        # The saver's own thread writes: all threads count.
        failing = FailingCalls(number, lasting=lasting)
        failing.threads = None
        with failing():
            tenant.put(numbered(2))
            try:
                tenant.flush()
                acknowledged = [1, 2]
            except StoreError:
                acknowledged = [1]
        failed = bool(failing.failed)
        store.close()
        with Store(folder, disk_bytes=10**8) as again:
            other = again.tenant(b"alice")
            for each in (1, 2):
                found = other.find(name(each))
                assert found is not None or each not in acknowledged, f"call {number}: {each} was lost"
                if found is not None:
                    with other.lease([name(each)]):
                        assert is_numbered(each, found.rows)
        shutil.rmtree(folder)
    assert number > 10


@pytest.mark.parametrize("earlier", [b"earlier", None])
def test_any_call_of_writing_a_file_whole_fails(tmp_path: Path, earlier: bytes | None) -> None:
    number, failed = 0, True
    while failed:
        number += 1
        path = tmp_path / str(number) / "new" / "file"
        make_folder(path.parent)
        if earlier is not None:
            write_whole(path, [earlier])
        failing = FailingCalls(number)
        with failing(), suppress(OSError):
            write_whole(path, [b"la", b"ter"])
        failed = bool(failing.failed)
        there = path.read_bytes() if path.exists() else None
        assert there in ((earlier, b"later") if failed else (b"later",))
    assert number > 5


@pytest.mark.slow
def test_a_catalogue_that_is_lost_is_made_again_with_any_call_failing(begun: Path, tmp_path: Path) -> None:
    """The tier may be one that is only read afterwards; opened again, it has everything."""
    for number in _numbers(all=False):
        folder = tmp_path / str(number)
        shutil.copytree(begun, folder, copy_function=shutil.copy2)
        tier = _opened(folder)
        (folder / "catalogue.sqlite").unlink()
        failing = FailingCalls(number)
        with failing(), suppress(StoreError, LoadError):
            tier.entry(id_of("a"))
            put(tier, "new")
        unread = _unread(failing)
        _expected(tier, {"new": {None, 0}}, unread)
        tier.close()
        again = _opened(folder)
        _works_again(again, {"new": {None, 0}}, unread)
        again.close()
        shutil.rmtree(folder)
        if not failing.failed:
            break
