"""Several processes learn pairs for one tenant in one folder: one basis, and no sighting is lost."""

import errno
import itertools
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emblema.errors import StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.pairs import ChunkPairs, PairBasis, make_basis, width_of
from emblema.plugin.request_plan import ChunkStubs, build_prompt
from emblema.session import pair_bases
from emblema.session.pair_bases import FOLDER, LOCK, KeptBasis, PairBases
from emblema.session.pair_memory import PairMemory, PairSettings
from emblema.session.pair_rows import ChunkShares, LinkedRows
from emblema.store import Store
from emblema.store.files import hold_lock
from emblema.store.keys import ArtifactKey, ArtifactKind
from tests.vllm.requests import SPEC, put, request, zeros

SPAWN = multiprocessing.get_context("spawn")
SHOWN = request(*"abcd")
ROWS = 10
SETTINGS = PairSettings(rank=4, basis_rows=(2 * ROWS, 10**6, 10**7), share=1.0)
KEY = ArtifactKind.PAIR


@dataclass(frozen=True)
class Rows:
    """What stands for `LinkedRows`, of which a memory asks no more."""

    chunks: tuple[ChunkShares, ...]
    witnesses: frozenset[str]
    values: Tensor

    def differences(self, layouts: object) -> Tensor:
        return self.values


def chunks() -> list[Chunk]:
    rows = tuple(zeros(layout, 300) for layout in SPEC.layouts)
    return [replace(chunk, rows=rows) for _, chunk in build_prompt(SHOWN, ChunkStubs(SPEC)).chunk_segments]


def memory_of(store: Store) -> PairMemory:
    tenant = store.tenant()
    assert store.disk is not None
    bases = PairBases(store.disk.path / FOLDER)
    devices = [torch.device("cpu")] * len(SPEC.layouts)
    return PairMemory(lambda: tenant, "m", SPEC.layouts, SPEC.dtype, devices, bases, tenant.owner, SETTINGS)


def sighting(*before: int, seed: int = 0) -> LinkedRows:
    """The last picture's first rows after some of the others, the last of which they attend most."""
    known = chunks()
    names = tuple(known[index].id for index in before)
    values = torch.randn(ROWS, width_of(SPEC.layouts), generator=torch.Generator().manual_seed(seed))
    shares = torch.arange(1.0, len(names) + 1)[:, None].expand(-1, ROWS) / len(names)
    own = ChunkShares(known[-1], names, torch.arange(ROWS), shares, shares)
    return Rows((own,), frozenset((*names, known[-1].id)), values)  # type: ignore[return-value]


def learn(memory: PairMemory, *sightings: LinkedRows) -> None:
    for each in sightings:
        memory.add(each)
    memory.flush()


def met(store: Store) -> dict[int, int]:
    """By number of a picture, how many prompts the file of the last one was learnt from where it came before."""
    known = chunks()
    found = store.tenant().read_artifact(ArtifactKey("m", known[-1].id, kind=KEY))
    assert isinstance(found, ChunkPairs)
    numbers = {chunk.id: number for number, chunk in enumerate(known)}
    return {numbers[name]: count for name, count in zip(found.antecedents, found.prompts.tolist(), strict=True)}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with Store(tmp_path) as one, Store(tmp_path) as other:
        put(one, SHOWN)
        one.flush()
        yield one, other


def test_two_memories_use_the_basis_that_was_made_first(stores: tuple[Store, Store]) -> None:
    one, other = (memory_of(store) for store in stores)
    learn(one, sighting(0, seed=1), sighting(0, seed=2))
    learn(other, sighting(1, seed=3), sighting(1, seed=4))
    assert one.basis is not None and other.basis is not None and one.basis.id == other.basis.id
    assert memory_of(stores[1]).basis.id == one.basis.id  # type: ignore[union-attr]
    assert met(stores[0]) == {0: 2, 1: 2}


def test_what_both_learnt_of_a_chunk_is_in_its_file_and_in_both_soon(stores: tuple[Store, Store]) -> None:
    one, other = (memory_of(store) for store in stores)
    learn(one, sighting(0, seed=1), sighting(0, seed=2))
    learn(other, sighting(0, 1, seed=3))
    # Each has its own in memory, and the other's unread.
    for step in range(3):
        learn(one, sighting(0, 1, seed=10 + step), sighting(0, seed=20 + step))
        learn(other, sighting(1, 2, seed=30 + step))
    assert met(stores[0]) == {0: 2 + 1 + 6, 1: 1 + 3 + 3, 2: 3}
    for memory in (one, other):
        memory.release()
        names = [chunk.id for chunk in chunks()]
        key = ArtifactKey("m", names[-1], (names[0], names[2]), ArtifactKind.PAIRS)
        assert memory.knows(key) and memory.find(key) is not None
    # What nobody else wrote is what one memory alone would have.
    learn(one, sighting(2, seed=50))
    assert met(stores[0])[2] == 4


def test_a_later_basis_is_taken_over_with_what_was_not_written_yet(stores: tuple[Store, Store]) -> None:
    one, other = (memory_of(store) for store in stores)
    learn(one, sighting(0, seed=1), sighting(0, seed=2))
    learn(other, sighting(1, seed=3))
    other.add(sighting(1, seed=4))
    other.settle()
    new = make_basis(torch.randn(40, width_of(SPEC.layouts), generator=torch.Generator().manual_seed(9)), 4)
    own = one.basis
    assert own is not None
    kept = KeptBasis(new, 2, own.id, own.directions @ new.directions.T)
    owner, bases = stores[0].tenant().owner, PairBases(stores[0].disk.path / FOLDER)  # type: ignore[union-attr]
    assert bases.save(owner, "m", kept) is kept
    learn(one, sighting(0, seed=5))
    learn(other, sighting(2, seed=6))
    assert one.basis.id == other.basis.id == new.id  # type: ignore[union-attr]
    assert met(stores[0]) == {0: 3, 1: 2, 2: 1}


def test_who_holds_the_folder_too_long_delays_a_write_and_loses_none(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("emblema.session.pair_bases.LOCK_SECONDS", 0.01)
    memory = memory_of(stores[0])
    learn(memory, sighting(0, seed=1), sighting(0, seed=2))
    path = stores[0].disk.path / FOLDER / LOCK  # type: ignore[union-attr]
    with path.open("r+b") as file, hold_lock(file.fileno(), path):
        learn(memory, sighting(0, seed=3))
        assert met(stores[0]) == {0: 2} and "not written" in caplog.text
    memory.flush()
    assert met(stores[0]) == {0: 3}


def test_a_basis_that_cannot_be_read_for_a_moment_is_neither_removed_nor_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = PairBases(tmp_path)
    basis = make_basis(torch.randn(40, width_of(SPEC.layouts), generator=torch.Generator().manual_seed(9)), 4)
    bases.save("a" * 64, "m", KeptBasis(basis, 3))
    (path,) = tmp_path.glob("*.basis")
    there = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", raise_busy)
        assert bases.load("a" * 64, "m", basis.directions.shape[1]) is None
        later = KeptBasis(basis, 4)
        assert bases.save("a" * 64, "m", later) is later
    assert path.read_bytes() == there


def raise_busy(path: Path) -> bytes:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("content", [b"", b"\xff" * 999, "link"])
def test_a_damaged_basis_is_made_again_by_who_still_knows_it(
    stores: tuple[Store, Store], content: bytes | str, caplog: pytest.LogCaptureFixture
) -> None:
    one = memory_of(stores[0])
    learn(one, sighting(0, seed=1), sighting(0, seed=2))
    (path,) = (stores[0].disk.path / FOLDER).glob("*.basis")  # type: ignore[union-attr]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.unlink()
        path.symlink_to(path.parent / LOCK)
    other = memory_of(stores[1])
    assert other.basis is None and "made again" in caplog.text
    learn(one, sighting(0, seed=3))
    learn(other, sighting(1, seed=4), sighting(1, seed=5))
    assert isinstance(one.basis, PairBasis) and one.basis.id == other.basis.id  # type: ignore[union-attr]
    assert met(stores[0]) == {0: 3, 1: 2}


def learn_until_killed(folder: Path, number: int, told: Connection) -> None:
    # What it says is written, however busy the machine is.
    pair_bases.LOCK_SECONDS = 60.0
    with Store(folder) as store:
        memory = memory_of(store)
        for count in itertools.count(1):
            # Before there is a basis nothing is written.
            learn(memory, sighting(0, number, seed=1000 * number + count))
            if memory.basis is not None:
                told.send(count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_killed_process_takes_no_sighting_with_it_that_was_written(
    stores: tuple[Store, Store], tmp_path: Path, seed: int
) -> None:
    chance, told = random.Random(seed), {number: SPAWN.Pipe(duplex=False) for number in (1, 2)}
    processes = {
        number: SPAWN.Process(target=learn_until_killed, args=(tmp_path, number, pipe[1]))
        for number, pipe in told.items()
    }
    last: dict[int, int] = {}
    for process in processes.values():
        process.start()
    for number in chance.sample(sorted(told), 2):
        for _ in range(1 + chance.randrange(20)):
            assert told[number][0].poll(120)
            last[number] = told[number][0].recv()
        processes[number].kill()
        processes[number].join(60)
        while told[number][0].poll():
            last[number] = told[number][0].recv()
    found = met(stores[0])
    # One more may be in the file than the process came to say.
    assert all(found[number] - count in (0, 1) for number, count in last.items()), (found, last)
    assert found[0] == found[1] + found[2]
    memory = memory_of(stores[0])
    learn(memory, sighting(0, seed=1))
    assert met(stores[0])[0] == found[0] + 1


def test_who_deleted_a_picture_takes_nothing_of_it_from_another_s_file(stores: tuple[Store, Store]) -> None:
    one, other = (memory_of(store) for store in stores)
    learn(one, sighting(0, seed=1), sighting(1, seed=2))
    learn(other, sighting(0, seed=3), sighting(2, seed=4))
    gone = chunks()[0].id
    assert stores[0].tenant().delete(gone)
    learn(one, sighting(1, seed=5))
    # The file went with all that it held; what is in memory without that picture is written again.
    assert met(stores[0]) == {1: 2}
    # A process that has the picture in memory does not know of its deletion yet; who deleted it takes nothing of it.
    learn(other, sighting(0, seed=6), sighting(2, seed=7))
    assert 0 in met(stores[0])
    learn(one, sighting(1, seed=8))
    assert met(stores[0]) == {1: 3, 2: 1}


def test_a_failure_of_other_pieces_counts_no_sighting_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        put(store, SHOWN)
        memory = memory_of(store)
        learn(memory, sighting(0, seed=1), sighting(0, seed=2))
        before = met(store)
        tenant = memory._store()
        assert tenant is not None
        flush = tenant.flush

        def failing() -> None:
            flush()
            raise StoreError("another piece could not be written")

        with monkeypatch.context() as patch:
            patch.setattr(tenant, "flush", failing)
            learn(memory, sighting(0, seed=3))
            for _ in range(3):
                memory.flush()
        learn(memory, sighting(1, seed=4))
        assert met(store) == {0: before[0] + 1, 1: 1}
