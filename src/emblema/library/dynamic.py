"""The administrator's reference collections: changed as a whole or item by item, each change a new version."""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from emblema.errors import StoreError
from emblema.library.embedders import Embedder
from emblema.library.items import ChunkOrClip, Hit, LibraryItem, Listing, checked_name
from emblema.library.libraries import Libraries
from emblema.library.library import Library, chunk_ids
from emblema.library.listings import VersionHold
from emblema.library.standing_orders import StandingOrders
from emblema.library.tenant_model import TenantModel
from emblema.store.record import SHARED

_KEY = "collection "


class Snapshot:
    """One version of a collection, which does not change until the snapshot is closed. Made by `snapshot()`.

    Attributes:
        version: of the collection.
        entries: by name.
    """

    def __init__(self, library: Library, held: VersionHold, entries: Mapping[str, Listing]) -> None:
        self.version = held.version
        self.entries = MappingProxyType(dict(entries))
        self._library, self._held = library, held
        self._dropped = weakref.finalize(self, library.libraries.dropped.append, held)

    @property
    def closed(self) -> bool:
        return not self._dropped.alive

    def __getitem__(self, name: str) -> ChunkOrClip:
        """Return an item as a part of a prompt.

        Raises:
            StoreError: there is none of this name in this version, or the snapshot is closed.
        """
        self._check_open()
        if name not in self.entries:
            raise StoreError(f"there is no item {str(name)[:60]!r} in version {self.version} of the collection")
        return self._library.piece(self.entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def search(self, query: str, count: int = 3) -> tuple[Hit, ...]:
        """Return the chunks of this version that are nearest to a query, the nearest first. Runs the model.

        Raises:
            StoreError: the query is empty, count is below 1, or the snapshot is closed.
        """
        return search_snapshots((self,), query, count)

    def find_among(self, query: str, count: int, entries: Mapping[str, Listing]) -> tuple[Hit, ...]:
        """Return the chunks of some entries of collections of this store that are nearest to a query; as `search`."""
        self._check_open()
        return tuple(self._library.find(query, count, entries))

    def close(self) -> None:
        """Let go of the version; what no other snapshot needs is freed."""
        if self._dropped.detach() is not None:
            self._library.libraries.release(self._held)

    def _check_open(self) -> None:
        if self.closed:
            raise StoreError(f"this snapshot of version {self.version} is closed: take another")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def search_snapshots(snapshots: Sequence[Snapshot], query: str, count: int = 3) -> tuple[Hit, ...]:
    """Return the chunks of several collections of one store that are nearest to a query, as if they were one.

    Raises:
        StoreError: the query is empty, count is below 1, or a snapshot is closed.
    """
    entries = {f"{at} {name}": entry for at, each in enumerate(snapshots) for name, entry in each.entries.items()}
    return snapshots[0].find_among(query, count, entries)


class DynamicLibrary:
    """A named collection that every tenant may read and the administrator changes (MPIC section 3).

    Chunks of versions in use are pinned in the store. A reader's requests take a `snapshot` and keep it to their end.

    Args:
        libraries: where libraries are kept; the same for the administrator and for readers.
        name: of the collection.
        tenant: the model and store of a tenant, or of the administrator, whose store is `store.shared`.
        embedder: for `search`; the model's own attention space by default.
    """

    def __init__(self, libraries: Libraries, name: str, tenant: TenantModel, embedder: Embedder | None = None) -> None:
        self.name = checked_name(name)
        self.key = f"{_KEY}{name}"
        self._library = Library(libraries, tenant, self.key, SHARED, embedder)
        self._libraries, self._tenant = libraries, tenant
        self._orders = StandingOrders(self._library, pin_chunks=False)
        self._read: tuple[str, int, Mapping[str, Listing]] | None = None
        if self.writable:
            libraries.register(self._library.scope, self.key, self.collect)
            self._library.try_collect()

    @property
    def writable(self) -> bool:
        """Whether the collection may be changed here, through the shared library's store."""
        return self._library.writable

    @staticmethod
    def names(libraries: Libraries, tenant: TenantModel) -> tuple[str, ...]:
        """Return the names of the collections that hold anything."""
        keys = libraries.listings.libraries(tenant.scope(SHARED))
        return tuple(key.removeprefix(_KEY) for key in keys if key.startswith(_KEY))

    @property
    def version(self) -> int:
        """Counts the changes; 0 for a collection that nothing was ever put into."""
        return self._libraries.listings.version(self._library.scope, self.key)

    def snapshot(self) -> Snapshot:
        """Return the collection as it is now; close it at the end of the request, or use it in a `with`."""
        self._libraries.release_dropped()
        held = self._libraries.listings.hold(self._library.scope, self.key)
        if self._read is None or self._read[:2] != (held.scope, held.version):
            entries = self._libraries.listings.entries(held.scope, self.key, held.version)
            self._read = (held.scope, held.version, entries)
        return Snapshot(self._library, held, self._read[2])

    def __getitem__(self, name: str) -> ChunkOrClip:
        """Return an item of the present version; StoreError where there is none of this name."""
        with self.snapshot() as now:
            return now[name]

    def __contains__(self, name: object) -> bool:
        with self.snapshot() as now:
            return name in now

    def __iter__(self) -> Iterator[str]:
        with self.snapshot() as now:
            return iter(list(now))

    def __len__(self) -> int:
        with self.snapshot() as now:
            return len(now)

    def search(self, query: str, count: int = 3) -> tuple[Hit, ...]:
        """Return the chunks of the present version that are nearest to a query, the nearest first. Runs the model.

        Raises:
            StoreError: the query is empty, or count is below 1.
        """
        with self.snapshot() as now:
            return now.search(query, count)

    def put(self, name: str, source: Any = None, **options: Any) -> int:
        """Put one item in, in place of one with the same name; the new version. Errors as `update`."""
        return self.update({name: LibraryItem(source, options)})

    def remove(self, name: str) -> int:
        """Take one item out; the new version.

        Raises:
            StoreError: there is none of this name, or the collection is only read here.
        """
        return self.update({}, [name])

    def replace(self, items: Mapping[str, Any]) -> int:
        """Make the collection hold these items and no others; the new version. Errors as `update`."""
        self._check_writable()
        return self.update(items, [name for name in self if name not in items])

    def update(self, items: Mapping[str, Any], remove: Iterable[str] = ()) -> int:
        """Put items in and take others out, all in one new version, or none of it.

        Args:
            items: sources, or `LibraryItem`s of a source and its options, by name.
            remove: names to take out.

        Returns:
            The new version; the present one where nothing would change.

        Raises:
            StoreError: the collection is only read here, a name is no name, or one to take out is not there.
            EmblemaError: an item cannot be made. The collection is as it was before.
        """
        self._check_writable()
        self._libraries.catalogue.check_writable()
        self._libraries.release_dropped()
        scope = self._library.scope
        now = self._libraries.listings.entries(scope, self.key)
        held = self._libraries.listings.sources(scope)
        gone = list(dict.fromkeys(remove))
        missing = next((name for name in gone if name not in now), None)
        if missing is not None:
            raise StoreError(f"there is no item {str(missing)[:60]!r} in collection {self.name!r}")
        wanted = {
            checked_name(name): item if isinstance(item, LibraryItem) else LibraryItem(item)
            for name, item in items.items()
        }
        made: dict[str, ChunkOrClip] = {}
        try:
            for name, item in wanted.items():
                made[name] = item.piece or self._tenant.add(item.source, **item.options)
                for chunk in chunk_ids([made[name]]):
                    self._tenant.store.pin(chunk)
            entries = {name: self._entry(scope, name, wanted[name], made[name], held) for name in made}
            changed = {name: entry for name, entry in entries.items() if name not in now or now[name].id != entry.id}
            if not changed and not gone:
                return self.version
            self._library.retriever.prepare(scope, chunk_ids(made[name] for name in changed))
            version = self._libraries.listings.change(
                scope, self.key, changed, [name for name in gone if name not in made]
            )
        except BaseException:
            self._library.unpin_unnamed(chunk_ids(made.values()))
            named = self._libraries.listings.sources(scope)
            for digest in held.keys() - named.keys():
                self._libraries.sources.forget(scope, digest)
            raise
        self._library.try_collect()
        self._orders.renew(self._libraries.listings.entries(scope, self.key))
        return version

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders that are kept, as names."""
        return tuple(order.names for order in self._orders.list())

    def keep_order(self, names: Sequence[str]) -> None:
        """Make items ready for every tenant's questions that show them in this order, and keep that from eviction.

        An item that changes has its orders made again; the order ends with its items.

        Args:
            names: of the items, two or more.

        Raises:
            StoreError: the collection is only read here, there is no such item, or there are too many orders.
            PromptError: the items are longer than the model's context.
            CapacityError: the patches do not fit; nothing is kept.
        """
        self._check_writable()
        self._orders.keep(names, self._libraries.listings.entries(self._library.scope, self.key))

    def drop_order(self, names: Sequence[str]) -> None:
        """Let the patches of an order be evicted again; StoreError where it is not kept or only read here."""
        self._check_writable()
        self._orders.drop(names)

    def collect(self) -> int:
        """Free what no version in use needs any more; how many chunks. Done after every change and snapshot.

        Raises:
            StoreError: the collection is only read here, or the catalogue does not answer.
        """
        self._check_writable()
        return self._library.collect()

    def _entry(self, scope: str, name: str, item: LibraryItem, piece: ChunkOrClip, held: dict[str, int]) -> Listing:
        note = self._libraries.sources.keep(scope, item.source, item.options, held)
        if note is not None and note.digest:
            held[note.digest] = note.bytes
        return Listing.of(name, piece, self._libraries.now(), None, note)

    def _check_writable(self) -> None:
        if not self.writable:
            raise StoreError(
                f"collection {self.name!r} is the administrator's: it is changed through an engine on `store.shared`"
            )
