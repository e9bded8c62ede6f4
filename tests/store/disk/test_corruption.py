"""Whatever happens to a file of the store: never a wrong record, never a crash, and it is logged."""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from emblema.errors import LoadError
from emblema.store.disk import DiskTier
from emblema.store.disk.upkeep import verify_pieces
from emblema.store.record import SHARED, Record, Terms
from tests.store.disk.damage import CONTENTS, KINDS
from tests.store.disk.records import ALICE, BOB, check, id_of, piece_files, piece_path, record, temporary_files

CAPACITY = 10**9
TARGETS = (
    "chunk", "patch", "catalogue.sqlite", "catalogue.sqlite-wal", "catalogue.sqlite-shm", "FORMAT", "lock", "stray",
)  # fmt: skip


@dataclass(frozen=True)
class Template:
    """A store's folder as a killed process leaves it: with a log that has not been brought into the catalogue."""

    folder: Path
    records: dict[str, Record]
    deleted: tuple[str, ...]


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    # In memory where there is such a folder: a thousand stores, each synced many times.
    home = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    chunks = [record(f"chunk {n}", 300 + 700 * n, [ALICE, BOB, SHARED][n % 3]) for n in range(6)]
    patches = [record(f"patch {n}", 900, ALICE, chunks=[id_of(f"chunk {3 * n}")]) for n in range(2)]
    tier = DiskTier(home / "open", CAPACITY)
    gone = record("gone", 500)
    for each in [*chunks[:4], gone]:
        tier.write(each, Terms(idle_seconds=1e9))
    tier.delete(id_of("gone"), ALICE)
    tier.close()
    tier = DiskTier(home / "open", CAPACITY)
    for each in [*chunks[4:], *patches]:
        tier.write(each, Terms(priority=2, pinned=True))
    shutil.copytree(home / "open", home / "template", copy_function=shutil.copy2)
    tier.close()
    assert (home / "template" / "catalogue.sqlite-wal").stat().st_size > 0
    yield Template(home / "template", {r.header.id: r for r in [*chunks, *patches]}, (id_of("gone"),))
    shutil.rmtree(home)


def _cases(count: int, seed: int) -> Iterator[tuple[str, str, bool, random.Random]]:
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.choice(TARGETS)
        # A process whose mapped log index is cut dies by a signal, in every program that uses sqlite.
        live = chance.random() < 0.4 and kind not in ("catalogue.sqlite-shm", "FORMAT")
        yield kind, chance.choice([*CONTENTS] * 3 + [*KINDS]), live, random.Random(chance.randrange(2**63))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_wrong_record_is_ever_served(template: Template, part: int, caplog: pytest.LogCaptureFixture) -> None:
    seed = int(os.environ.get("EMBLEMA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    outcomes: Counter[str] = Counter()
    for number, (kind, damage, live, chance) in enumerate(_cases([60, 1000][part], seed)):
        where = f"seed {seed}, case {number}: {damage} {kind}{' while open' if live else ''}"
        folder = template.folder.with_name(f"case {part} {number}")
        shutil.copytree(template.folder, folder, copy_function=shutil.copy2)
        try:
            caplog.clear()
            outcomes[_one(folder, template, kind, damage, live, chance, caplog)] += 1
        except BaseException as error:
            error.add_note(where)
            raise
        shutil.rmtree(folder)
        shutil.rmtree(f"{folder}-away", ignore_errors=True)
    print(outcomes)
    assert outcomes["a record was made again"] > 0
    assert outcomes["nothing was lost"] > 0


def _one(
    folder: Path,
    template: Template,
    kind: str,
    damage: str,
    live: bool,
    chance: random.Random,
    caplog: pytest.LogCaptureFixture,
) -> str:
    if live:
        tier = DiskTier(folder, CAPACITY)
        _served(tier, template, chance.sample([*template.records], 2))
        _harm(folder, template, kind, damage, chance)
    else:
        if chance.random() < 0.5:
            _settle(folder)
        _harm(folder, template, kind, damage, chance)
        tier = DiskTier(folder, CAPACITY)
    told: list[LoadError] = []
    served = _served(tier, template, template.records, told)
    missing = template.records.keys() - served
    if missing:
        assert told or caplog.records, "a record went, no reader was told and nothing was logged"
        assert kind in ("chunk", "patch") or live, f"{len(missing)} records went with a file that is not theirs"
    # What is missing is computed again, and kept.
    for id in missing:
        tier.write(template.records[id], Terms())
    assert _served(tier, template, template.records) == template.records.keys()
    _agrees(tier, template, folder)
    tier.close()
    again = DiskTier(folder, CAPACITY)
    assert _served(again, template, template.records) == template.records.keys()
    _agrees(again, template, folder)
    again.close()
    return "a record was made again" if missing else "nothing was lost"


def _settle(folder: Path) -> None:
    """Let the catalogue know the copied files as they are now, and leave its log as a killed process does."""
    tier = DiskTier(folder, CAPACITY)
    kept = {path: path.read_bytes() for path in folder.glob("catalogue.sqlite*")}
    tier.close()
    for path, data in kept.items():
        path.write_bytes(data)


def _served(
    tier: DiskTier, template: Template, ids: "dict[str, Record] | list[str]", told: list[LoadError] | None = None
) -> set[str]:
    """Ids that are served, each of them right, to its owner only; errors of the others are added to `told`."""
    served = set()
    for id in ids:
        owner = template.records[id].header.owner
        stranger = BOB if owner != BOB else ALICE
        assert _open(tier, id, stranger) is False
        if _open(tier, id, owner, told):
            served.add(id)
    for id in template.deleted:
        assert tier.entry(id) is None
        assert _open(tier, id, ALICE) is False
    return served


def _open(tier: DiskTier, id: str, owner: str, told: list[LoadError] | None = None) -> bool:
    try:
        reader = tier.open(id, owner)
        if reader is None:
            return False
        check(reader, id, 0)
    except LoadError as error:
        if told is not None:
            told.append(error)
        return False
    return True


def _agrees(tier: DiskTier, template: Template, folder: Path) -> None:
    files = {id: size for id, size in piece_files(folder).items() if id in template.records}
    assert {entry.id: entry.bytes for entry in tier.entries()} == files
    assert tier.bytes == sum(files.values())
    assert verify_pieces(tier).damaged == ()
    assert temporary_files(folder) == []


def _harm(folder: Path, template: Template, kind: str, damage: str, chance: random.Random) -> None:
    if kind == "stray":
        _stray(folder, chance)
        return
    if kind in ("chunk", "patch"):
        ids = [id for id, each in template.records.items() if each.header.kind == kind]
        path = piece_path(folder, chance.choice(ids))
        if damage == "swap" and chance.random() < 0.5:
            # Two pieces change places.
            other = piece_path(folder, chance.choice(ids))
            shutil.move(path, folder / "swap")
            if other.exists():
                shutil.move(other, path)
            shutil.move(folder / "swap", other)
            return
    else:
        path = folder / kind
    if path.exists():
        {**CONTENTS, **KINDS}[damage](path, chance)


def _stray(folder: Path, chance: random.Random) -> None:
    """A file, folder or link that is none of the store's, at places where the store looks."""
    shard = next((folder / "pieces").iterdir())
    places = [
        folder / "notes.txt", folder / "pieces" / "notes.txt", shard / "notes.txt", shard / f"{'A' * 64}.safetensors",
        shard / f"{'zz' + 'f' * 62}.safetensors", folder / "pieces" / "not hexadecimal",
        folder / "temporary" / "left", folder / "quarantine" / "other",
        shard / f"{shard.name}{'0' * 62}.safetensors", folder / "catalogue.sqlite-journal",
    ]  # fmt: skip
    place = chance.choice(places)
    kinds = ["file", "empty", "pipe", "link"] + ([] if place.parent.name == "temporary" else ["folder"])
    match chance.choice(kinds):
        case "file":
            place.write_bytes(chance.randbytes(chance.randint(1, 5000)))
        case "empty":
            place.touch()
        case "folder":
            place.mkdir()
        case "pipe" if place.parent.name != "temporary":
            os.mkfifo(place)
        case "link":
            if place.parent.name != "temporary":
                place.symlink_to("/etc/hostname")
