"""Collections: versions, snapshots that stay, updates that happen whole or not at all, and who may make them."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emblema.errors import MediaError, StoreError
from emblema.kv.chunk import Clip
from emblema.library.dynamic import DynamicLibrary
from emblema.library.items import LibraryItem
from emblema.library.libraries import Libraries
from emblema.library.static import StaticLibrary
from emblema.store.store import Store
from tests.library.shelves import Landmarks, Workbench, administrator, photo, png, tenant


class Hotels:
    """A collection with an administrator's door and a reader's."""

    def __init__(self, folder: Path | None = None) -> None:
        self.store, self.libraries = Store(), Libraries(folder)
        self.bench: Workbench = administrator(self.store)
        self.admin = DynamicLibrary(self.libraries, "hotels", self.bench.tenant, Landmarks())
        self.reader = DynamicLibrary(self.libraries, "hotels", tenant(self.store).tenant, Landmarks())

    def pinned(self, id: str) -> bool:
        """Whether a chunk is pinned, as eviction sees it."""
        return any(piece.terms.pinned for piece in self.store.cache.table if piece.id == id)


@pytest.fixture
def hotels() -> Hotels:
    return Hotels()


def test_items_come_one_by_one_and_are_read_by_every_tenant(hotels: Hotels) -> None:
    assert hotels.admin.version == 0 and len(hotels.admin) == 0
    assert hotels.admin.put("ritz", photo(1)) == 1
    assert hotels.admin.put("inn", png(2), pages=2) == 2
    assert list(hotels.reader) == ["ritz", "inn"] and hotels.reader.version == 2 and len(hotels.reader) == 2
    assert hotels.reader["ritz"].id == hotels.bench.made[0] and isinstance(hotels.reader["inn"], Clip)
    assert hotels.admin.remove("ritz") == 3
    assert "ritz" not in hotels.reader and hotels.bench.made[0] not in hotels.bench.view
    with pytest.raises(StoreError, match="no item 'ritz' in version 3"):
        hotels.reader["ritz"]


def test_the_whole_is_replaced_in_one_version(hotels: Hotels) -> None:
    hotels.admin.replace({"ritz": photo(1), "inn": photo(2)})
    version = hotels.admin.replace({"inn": photo(2), "lodge": LibraryItem(png(3), {"pages": 2})})
    assert version == 2 and set(hotels.reader) == {"inn", "lodge"}
    assert hotels.bench.made[0] not in hotels.bench.view and hotels.bench.made[1] in hotels.bench.view
    assert hotels.admin.replace({}) == 3 and len(hotels.reader) == 0


def test_nothing_new_is_no_new_version(hotels: Hotels) -> None:
    hotels.admin.put("ritz", photo(1))
    assert hotels.admin.put("ritz", photo(1)) == 1 and hotels.admin.update({}) == 1


def test_a_snapshot_keeps_the_version_it_began_with(hotels: Hotels) -> None:
    hotels.admin.replace({"ritz": photo(1), "inn": photo(2)})
    old = hotels.bench.made[0]
    with hotels.reader.snapshot() as request:
        hotels.admin.put("ritz", photo(3))
        hotels.admin.remove("inn")
        assert (request.version, hotels.admin.version) == (1, 3)
        assert set(request) == {"ritz", "inn"} and len(request) == 2 and request["ritz"].id == old
        assert request["inn"].rows[0].tokens > 0
        assert {hit.name for hit in request.search("word1", 5)} == {"ritz", "inn"}
        assert list(hotels.reader) == ["ritz"] and hotels.reader["ritz"].id == hotels.bench.made[2]
        assert old in hotels.bench.view and hotels.pinned(old)
    assert old not in hotels.bench.view and hotels.bench.made[1] not in hotels.bench.view
    assert hotels.pinned(hotels.bench.made[2])


def test_chunks_stay_until_the_last_snapshot_goes(hotels: Hotels) -> None:
    hotels.admin.put("ritz", photo(1))
    (old,) = hotels.bench.made
    first, second = hotels.reader.snapshot(), hotels.reader.snapshot()
    hotels.admin.put("ritz", photo(2))
    later = hotels.reader.snapshot()
    first.close()
    assert old in hotels.bench.view
    second.close()
    assert old not in hotels.bench.view
    first.close()
    with pytest.raises(StoreError, match="is closed"):
        first["ritz"]
    assert later["ritz"].id == hotels.bench.made[1]
    later.close()


def test_a_snapshot_that_is_dropped_lets_go(hotels: Hotels) -> None:
    hotels.admin.put("ritz", photo(1))
    (old,) = hotels.bench.made
    request = hotels.reader.snapshot()
    hotels.admin.put("ritz", photo(2))
    assert old in hotels.bench.view and len(request) == 1
    del request
    gc.collect()
    hotels.reader.snapshot().close()
    assert old not in hotels.bench.view


@pytest.mark.parametrize("whole", [True, False])
def test_an_update_that_fails_changes_nothing(hotels: Hotels, whole: bool) -> None:
    hotels.admin.replace({"ritz": photo(1), "inn": photo(2)})
    items = {"lodge": photo(3), "ritz": photo(4), "bad": b"broken", "later": photo(5)}
    with pytest.raises(MediaError):
        hotels.admin.replace(items) if whole else hotels.admin.update(items)
    assert hotels.reader.version == 1 and list(hotels.reader) == ["ritz", "inn"]
    assert hotels.reader["ritz"].id == hotels.bench.made[0]
    assert [hotels.pinned(id) for id in hotels.bench.made] == [True, True, False, False]


def test_an_update_whose_vectors_cannot_be_made_changes_nothing(hotels: Hotels) -> None:
    class Broken(Landmarks):
        def chunk(self, chunk: object) -> object:
            return [[float("nan")]]

    admin = DynamicLibrary(hotels.libraries, "hotels", hotels.bench.tenant, Broken())
    with pytest.raises(StoreError, match="not finite"):
        admin.put("ritz", photo(1))
    assert admin.version == 0 and not hotels.pinned(hotels.bench.made[0])


def test_unknown_and_unreadable_names_are_refused(hotels: Hotels) -> None:
    hotels.admin.put("ritz", photo(1))
    with pytest.raises(StoreError, match="no item 'inn' in collection 'hotels'"):
        hotels.admin.update({"lodge": photo(2)}, ["inn"])
    with pytest.raises(StoreError, match="no name"):
        hotels.admin.update({"": photo(2)})
    with pytest.raises(StoreError, match="no name"):
        DynamicLibrary(hotels.libraries, "", hotels.bench.tenant)
    assert hotels.admin.version == 1 and len(hotels.bench.made) == 1


def test_readers_change_nothing(hotels: Hotels) -> None:
    hotels.admin.put("ritz", photo(1))
    acts = (
        lambda: hotels.reader.put("x", photo(2)),
        lambda: hotels.reader.remove("ritz"),
        lambda: hotels.reader.replace({}),
        hotels.reader.collect,
    )
    for act in acts:
        with pytest.raises(StoreError, match="is the administrator's"):
            act()
    assert hotels.reader.version == 1 and not hotels.reader.writable


def test_collections_and_files_share_chunks_without_losing_them(hotels: Hotels) -> None:
    other = DynamicLibrary(hotels.libraries, "inns", hotels.bench.tenant, Landmarks())
    files = StaticLibrary(hotels.libraries, hotels.bench.tenant, Landmarks())
    hotels.admin.put("ritz", photo(1))
    other.put("the ritz", photo(1))
    files.add(photo(1), name="photo")
    (chunk,) = hotels.bench.made
    hotels.admin.remove("ritz")
    files.delete("photo")
    assert other["the ritz"].id == chunk and hotels.pinned(chunk)
    assert list(hotels.reader) == [] and list(other) == ["the ritz"]
    other.remove("the ritz")
    assert chunk not in hotels.bench.view


def test_a_tenants_files_are_not_in_the_collection(hotels: Hotels) -> None:
    bench = tenant(hotels.store, b"two")
    StaticLibrary(hotels.libraries, bench.tenant, Landmarks()).add(photo(1), name="mine")
    hotels.admin.put("ritz", photo(2))
    assert [hit.name for hit in hotels.reader.search("word0 word1", 5)] == ["ritz"]


def test_a_lost_item_is_made_again(hotels: Hotels) -> None:
    hotels.admin.put("ritz", png(1))
    (chunk,) = hotels.bench.made
    hotels.bench.view.delete(chunk)
    assert hotels.reader["ritz"].tokens > 0 and hotels.libraries.statistics.remade == 1
    assert hotels.reader.version == 1


def test_searches(hotels: Hotels) -> None:
    assert hotels.reader.search("word1", 3) == ()
    hotels.admin.replace({f"hotel {seed}": photo(seed) for seed in range(6)})
    (hit,) = hotels.admin.search("word4", 1)
    assert hit.name == "hotel 4"
    for query, count in (("", 1), ("word1", 0)):
        with pytest.raises(StoreError):
            hotels.admin.search(query, count)


def test_readers_go_on_while_the_administrator_updates(hotels: Hotels) -> None:
    hotels.admin.replace({"a": photo(0), "b": photo(0)})
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                with hotels.reader.snapshot() as request:
                    pair = request["a"].id, request["b"].id
                    if pair[0] != pair[1] or request["a"].rows[0].tokens == 0:
                        wrong.append(pair)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seed in range(1, 15):
        hotels.admin.update({"a": photo(seed), "b": photo(seed)})
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and len(hotels.bench.view) == 1


def test_collections_outlive_the_process(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, Libraries(tmp_path / "libraries") as libraries:
        admin = DynamicLibrary(libraries, "hotels", administrator(store).tenant, Landmarks())
        admin.replace({"ritz": photo(1), "inn": photo(2)})
        admin.put("ritz", photo(3))
        ids = {name: admin[name].id for name in admin}
        store.flush()
        assert store.disk is not None and all(entry.terms.pinned for entry in store.disk.entries())
    with Store(tmp_path / "store") as store, Libraries(tmp_path / "libraries") as libraries:
        bench = tenant(store)
        reader = DynamicLibrary(libraries, "hotels", bench.tenant, Landmarks())
        assert reader.version == 2 and {name: reader[name].id for name in reader} == ids and bench.made == []


HOLD = """
import sys
from pathlib import Path
from emblema.library.listings import Listings
catalogue = Listings(Path(sys.argv[1]))
print(catalogue.hold(sys.argv[2], sys.argv[3]).version, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_snapshot_of_another_process_holds_until_that_ends(tmp_path: Path) -> None:
    hotels = Hotels(tmp_path)
    hotels.admin.put("ritz", photo(1))
    scope = hotels.bench.tenant.scope()
    command = [sys.executable, "-c", HOLD, str(tmp_path), scope, hotels.admin.key]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == b"1"
        hotels.admin.put("ritz", photo(2))
        assert hotels.bench.made[0] in hotels.bench.view
        process.kill()
        process.wait()
        hotels.admin.collect()
        assert hotels.bench.made[0] not in hotels.bench.view
