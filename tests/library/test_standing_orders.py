"""Standing orders: what is pinned for an order, for how long, and what a change of the library does to it."""

from pathlib import Path

import pytest

from emblema.errors import CapacityError, PromptError, StoreError
from emblema.library import standing_orders
from emblema.library.dynamic import DynamicLibrary
from emblema.library.libraries import Libraries
from emblema.library.static import StaticLibrary
from emblema.store.store import Store
from tests.library.shelves import Clock, Landmarks, Workbench, administrator, photo, tenant


def pinned(store: Store) -> set[str]:
    """Ids that eviction leaves alone."""
    return {piece.id for piece in store.cache.table if piece.terms.pinned}


class Files:
    """A tenant's files a, b, c and d."""

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        self.store = Store()
        self.bench: Workbench = tenant(self.store)
        self.files = StaticLibrary(Libraries(folder, clock=clock or Clock()), self.bench.tenant, Landmarks())
        for at, name in enumerate("abcd"):
            self.files.add(photo(at), name, seconds=10 if name == "d" else None)

    def ids(self, names: str) -> set[str]:
        return {self.files[name].id for name in names}


def test_an_order_of_files_is_kept_until_it_is_dropped(tmp_path: Path) -> None:
    shelf = Files(tmp_path)
    shelf.files.keep_order("ab")
    shelf.files.keep_order(["c", "b"])
    assert shelf.files.orders == (("a", "b"), ("c", "b")) and pinned(shelf.store) == shelf.ids("abc")
    again = StaticLibrary(Libraries(tmp_path), shelf.bench.tenant, Landmarks())
    assert again.orders == shelf.files.orders
    again.drop_order("ab")
    assert pinned(shelf.store) == shelf.ids("bc")
    with pytest.raises(StoreError, match="no order of 2 items is kept that begins with 'a'"):
        again.drop_order("ab")
    again.drop_order("cb")
    assert again.orders == () and pinned(shelf.store) == set()


def test_an_order_that_is_kept_twice_is_one() -> None:
    shelf = Files()
    shelf.files.keep_order("ab")
    shelf.files.keep_order("ab")
    assert shelf.files.orders == (("a", "b"),) and len(shelf.bench.warmed) == 2


@pytest.mark.parametrize("end", ["delete", "expire"])
def test_an_order_ends_with_one_of_its_files(end: str) -> None:
    clock = Clock()
    shelf = Files(clock=clock)
    shelf.files.keep_order("ad")
    shelf.files.keep_order("bc")
    if end == "delete":
        shelf.files.delete("d")
    else:
        clock.time += 11
        shelf.files.list()
    assert shelf.files.orders == (("b", "c"),) and pinned(shelf.store) == shelf.ids("bc")


@pytest.mark.parametrize(
    ("names", "words"),
    [("a", "two items or more"), ("", "two items or more"), ("ax", "no item 'x'"), ("ab", "1 orders")],
)
def test_an_order_that_cannot_be_is_refused(names: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_orders, "MOST", 1)
    shelf = Files()
    shelf.files.keep_order("cd")
    with pytest.raises(StoreError, match=words):
        shelf.files.keep_order(names)
    assert shelf.files.orders == (("c", "d"),) and len(shelf.bench.warmed) == 1


def test_an_order_that_does_not_fit_pins_nothing() -> None:
    shelf = Files()
    chunk = shelf.bench.view.find(shelf.files["a"].id)
    assert chunk is not None
    store = Store(quota=int(2.5 * (chunk.bytes + chunk.encoded.bytes)))
    files = StaticLibrary(Libraries(), tenant(store).tenant, Landmarks())
    for at, name in enumerate("abc"):
        files.add(photo(at), name)
    with pytest.raises(CapacityError, match="evicted|cannot be pinned"):
        files.keep_order("abc")
    assert pinned(store) == set() and files.orders == ()
    files.keep_order("ab")
    assert len(pinned(store)) == 2


class Hotels:
    """A collection with an administrator's door and a reader's."""

    def __init__(self) -> None:
        self.store, self.libraries = Store(), Libraries()
        self.bench: Workbench = administrator(self.store)
        self.admin = DynamicLibrary(self.libraries, "hotels", self.bench.tenant, Landmarks())
        self.reader = DynamicLibrary(self.libraries, "hotels", tenant(self.store).tenant, Landmarks())
        self.admin.replace({"ritz": photo(1), "inn": photo(2), "lodge": photo(3)})


def test_an_order_of_a_collection_follows_its_items() -> None:
    hotels = Hotels()
    hotels.admin.keep_order(["ritz", "inn"])
    hotels.admin.keep_order(["inn", "lodge"])
    assert hotels.reader.orders == hotels.admin.orders == (("ritz", "inn"), ("inn", "lodge"))
    assert len(hotels.bench.warmed) == 2
    hotels.admin.put("ritz", photo(4))
    assert hotels.bench.warmed[2:] == [[hotels.admin["ritz"].id, hotels.admin["inn"].id]]
    hotels.admin.remove("lodge")
    assert hotels.admin.orders == (("ritz", "inn"),) and len(hotels.bench.warmed) == 3
    hotels.admin.drop_order(["ritz", "inn"])
    assert hotels.admin.orders == ()
    assert pinned(hotels.store) == {hotels.admin[name].id for name in ("ritz", "inn")}, "a collection pins its chunks"


def test_a_reader_keeps_no_order() -> None:
    hotels = Hotels()
    for change in (hotels.reader.keep_order, hotels.reader.drop_order):
        with pytest.raises(StoreError, match="administrator"):
            change(["ritz", "inn"])


def test_an_order_that_cannot_be_made_again_is_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hotels = Hotels()
    hotels.admin.keep_order(["ritz", "inn"])

    def refuse(*_: object) -> None:
        raise PromptError("longer than the context")

    monkeypatch.setattr(Workbench, "warm", refuse)
    admin = DynamicLibrary(hotels.libraries, "hotels", hotels.bench.tenant, Landmarks())
    assert admin.put("ritz", photo(4)) == 2
    assert admin.orders == () and "longer than the context" in caplog.text
