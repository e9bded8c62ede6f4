"""Several processes measure for the same tenants: nothing is lost, and a lane that one closed stays closed for all."""

import itertools
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from emblema.errors import StoreError
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample
from emblema.session.fidelity_logs import WAIT, FidelityLogs, read_all
from emblema.store.catalogue import FILE

OWNER, OTHER = "ab" * 32, "cd" * 32
POLICY = Policy(max_kl=0.05)
GOOD, BAD = Sample(0.001, True), Sample(0.3, False)
SPAWN = multiprocessing.get_context("spawn")


def trusts(logs: FidelityLogs, owner: str = OWNER) -> bool:
    logs.refresh(owner)
    return logs.of(owner).verdict("m", "image", Lane.PATCH, POLICY).open


def measure(logs: FidelityLogs, *samples: Sample, owner: str = OWNER, kind: str = "image") -> None:
    for sample in samples:
        logs.of(owner).record("m", kind, Lane.PATCH, sample, POLICY)
        logs.save(owner)


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "policy"


def write_many(folder: Path, kind: str, count: int, barrier: Barrier) -> None:
    logs = FidelityLogs(folder)
    barrier.wait(30)
    for step in range(count):
        measure(logs, GOOD, kind=kind)
        measure(logs, GOOD, kind="text")
        logs.of(OWNER).note_accepted("m", [("page", Lane.QUERY)], True, POLICY)
        if step % 7 == 0:
            logs.save(OWNER)
    logs.close()


@pytest.mark.nightly
def test_two_processes_at_once_lose_no_measurement(tmp_path: Path) -> None:
    barrier, count = SPAWN.Barrier(2), 40
    given = [(folder_of(tmp_path), kind, count, barrier) for kind in ("image", "video")]
    processes = [SPAWN.Process(target=write_many, args=each) for each in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    log = read_all(tmp_path)[OWNER]
    assert {line.kind: line.measured for line in log.reports()} == {"image": count, "video": count, "text": 2 * count}
    told = {lane["kind"]: len(lane["rejected"]) for lane in log.to_json()["lanes"]}
    assert told == {"image": 0, "video": 0, "text": 0, "page": 2 * count}


def write_until_killed(folder: Path, kind: str, written: Connection) -> None:
    logs = FidelityLogs(folder)
    for count in itertools.count(1):
        logs.of(OWNER).record("m", kind, Lane.PATCH, GOOD, POLICY)
        logs.of(OWNER).record("m", "text", Lane.PATCH, GOOD, POLICY)
        logs.save(OWNER)
        # What found the file locked for too long is written with the next.
        written.send((count, not logs.of(OWNER).unsaved))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_killed_process_takes_no_written_measurement_with_it_nor_anothers(tmp_path: Path, seed: int) -> None:
    chance, kinds = random.Random(seed), ("image", "video")
    made, acknowledged = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    pipes = {kind: SPAWN.Pipe(duplex=False) for kind in kinds}

    def hear(kind: str) -> None:
        made[kind], written = pipes[kind][0].recv()
        acknowledged[kind] = made[kind] if written else acknowledged[kind]

    processes = {
        kind: SPAWN.Process(target=write_until_killed, args=(folder_of(tmp_path), kind, pipe[1]))
        for kind, pipe in pipes.items()
    }
    for process in processes.values():
        process.start()
    for kind in chance.sample(kinds, len(kinds)):
        # Some time after it has written, whatever it is doing then.
        more = chance.randrange(20)
        while more or not acknowledged[kind]:
            hear(kind)
            more = max(0, more - 1)
        processes[kind].kill()
        processes[kind].join(60)
        while pipes[kind][0].poll():
            hear(kind)
    found = {line.kind: line.measured for line in read_all(tmp_path)[OWNER].reports()}
    # One more may be in the file than the process came to say.
    assert all(acknowledged[kind] <= found[kind] <= made[kind] + 1 for kind in kinds)
    assert found["text"] == sum(found[kind] for kind in kinds), "each was written whole"
    measure(FidelityLogs(folder_of(tmp_path)), GOOD)


def test_what_a_killed_process_left_half_written_is_taken_back(tmp_path: Path) -> None:
    measure(FidelityLogs(folder_of(tmp_path)), GOOD)
    path, left = folder_of(tmp_path) / FILE, folder_of(tmp_path / "left")
    writer = sqlite3.connect(path, isolation_level=None)
    # So small a cache has pages written before the transaction ends.
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE logs SET data = ?", ("9" * 2**20,))
    shutil.copytree(path.parent, left)
    assert (left / f"{FILE}-wal").stat().st_size > 0
    writer.execute("ROLLBACK")
    assert [line.measured for line in read_all(left.parent)[OWNER].reports()] == [1]


def test_a_file_that_another_process_set_aside_is_written_no_more(tmp_path: Path) -> None:
    one, other = (FidelityLogs(folder_of(tmp_path)) for _ in range(2))
    measure(one, GOOD)
    measure(other, GOOD)
    path, aside = folder_of(tmp_path) / FILE, tmp_path / "aside"
    aside.mkdir()
    for each in path.parent.glob(f"{FILE}*"):
        each.rename(aside / each.name)
    before = (aside / FILE).read_bytes()
    for logs in (one, other, one, other):
        measure(logs, GOOD)
    # What was measured before went with the file.
    assert [line.measured for line in read_all(tmp_path)[OWNER].reports()] == [4]
    assert (aside / FILE).read_bytes() == before


def close_lane(folder: Path) -> None:
    measure(FidelityLogs(folder), *[BAD] * 6)


@pytest.mark.slow
def test_a_lane_that_another_process_closed_stays_closed(tmp_path: Path) -> None:
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, GOOD, GOOD)
    assert trusts(logs)
    process = SPAWN.Process(target=close_lane, args=(folder_of(tmp_path),))
    process.start()
    process.join(60)
    # This process saw the lane open, and measured something since.
    logs.of(OWNER).record("m", "image", Lane.PATCH, GOOD, POLICY)
    logs.save(OWNER)
    assert not trusts(logs) and not trusts(FidelityLogs(folder_of(tmp_path)))
    logs.close()
    (line,) = read_all(tmp_path)[OWNER].reports()
    assert not line.open and (line.measured, line.turns) == (9, 1)


def test_what_others_wrote_is_taken_over_before_it_is_asked(tmp_path: Path) -> None:
    one, other = (FidelityLogs(folder_of(tmp_path)) for _ in range(2))
    assert trusts(one) and trusts(other)
    measure(one, *[BAD] * 6)
    one.of(OWNER).set_plateau("m", 16)
    one.save(OWNER)
    assert not trusts(other) and other.of(OWNER).plateaus() == {"m": 16}
    assert trusts(other, OTHER), "the tenants' logs are apart"
    measure(other, BAD, owner=OTHER)
    assert set(read_all(tmp_path)) == {OWNER, OTHER}


def test_what_could_not_be_written_is_written_with_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emblema.session.fidelity_logs.WAIT", WAIT / 100)
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, GOOD)
    blocker = sqlite3.connect(folder_of(tmp_path) / FILE, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    measure(FidelityLogs(folder_of(tmp_path)), GOOD)
    logs.of(OWNER).record("m", "image", Lane.PATCH, BAD, POLICY)
    logs.save(OWNER)
    assert "locked" in caplog.text
    blocker.execute("ROLLBACK")
    measure(logs, GOOD)
    assert [line.measured for line in read_all(tmp_path)[OWNER].reports()] == [3]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe" * 900, b"SQLite format 3\x00" + bytes(5000), "link", "folder"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes | str, caplog: pytest.LogCaptureFixture) -> None:
    path = folder_of(tmp_path) / FILE
    path.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    if content == "link":
        elsewhere.write_bytes(b"")
        path.symlink_to(elsewhere)
    elif content == "folder":
        path.mkdir()
    else:
        assert isinstance(content, bytes)
        path.write_bytes(content)
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, GOOD)
    measure(logs, GOOD)
    logs.close()
    assert [line.measured for line in read_all(tmp_path)[OWNER].reports()] == [2]
    assert ("is made again" in caplog.text) is bool(content), "an empty file is a database without tables"
    assert not elsewhere.exists() or elsewhere.read_bytes() == b""


@pytest.mark.parametrize(
    "data", ["[" * 100_000, "{}", '{"version": 99}', json.dumps({"version": 1, "standings": 3}), "9" * (17 * 2**20)]
)
def test_a_malformed_log_is_set_aside_and_the_others_stay(
    tmp_path: Path, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, GOOD)
    measure(logs, GOOD, owner=OTHER)
    logs.close()
    with sqlite3.connect(folder_of(tmp_path) / FILE) as connection:
        connection.execute("UPDATE logs SET data = ? WHERE owner = ?", (data, OWNER))
    connection.close()
    with pytest.raises(StoreError):
        read_all(tmp_path)
    logs = FidelityLogs(folder_of(tmp_path))
    assert logs.of(OWNER).reports() == [] and "set aside" in caplog.text
    assert [line.measured for line in logs.of(OTHER).reports()] == [1]
    measure(logs, GOOD)
    assert {owner: log.reports()[0].measured for owner, log in read_all(tmp_path).items()} == {OWNER: 1, OTHER: 1}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "policy").write_text("a file in the way")
    logs = FidelityLogs(tmp_path / "policy")
    measure(logs, *[BAD] * 6)
    assert not trusts(logs) and len(caplog.records) == 1, "said once"
    logs.close()


def test_the_file_is_the_owners_alone_and_a_fork_opens_its_own(tmp_path: Path) -> None:
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, GOOD)
    assert (folder_of(tmp_path) / FILE).stat().st_mode & 0o777 == 0o600
    child = os.fork()
    if child == 0:
        measure(logs, GOOD)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    measure(logs, GOOD)
    assert [line.measured for line in read_all(tmp_path)[OWNER].reports()] == [3]


def test_a_log_that_is_forgotten_is_read_again(tmp_path: Path) -> None:
    logs = FidelityLogs(folder_of(tmp_path))
    measure(logs, *[BAD] * 6)
    held = logs.of(OWNER)
    logs.forget(OWNER)
    logs.forget("nobody")
    assert logs.of(OWNER) is not held and not trusts(logs)
    logs.close()


def test_a_log_with_what_is_not_written_is_not_forgotten() -> None:
    logs = FidelityLogs(None)
    measure(logs, *[BAD] * 6)
    held = logs.of(OWNER)
    logs.forget(OWNER)
    assert held.unsaved == (logs.of(OWNER) is held)
