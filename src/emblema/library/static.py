"""A user's uploads: added once under a name, part of any prompt, gone when they are deleted or their time is over."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from emblema.errors import StoreError
from emblema.library.embedders import Embedder
from emblema.library.items import ChunkOrClip, Hit, Listing, checked_name
from emblema.library.libraries import Libraries
from emblema.library.library import Library, chunk_ids
from emblema.library.standing_orders import StandingOrders
from emblema.library.tenant_model import TenantModel

_KEY = "files"


class StaticLibrary:
    """The files of one tenant on one model (MPIC section 3). Nobody else's are ever seen.

    Args:
        libraries: where libraries are kept.
        tenant: the tenant's model and store.
        embedder: for `search`; the model's own attention space by default.
    """

    def __init__(self, libraries: Libraries, tenant: TenantModel, embedder: Embedder | None = None) -> None:
        self._library = Library(libraries, tenant, _KEY, embedder=embedder)
        self._libraries, self._tenant = libraries, tenant
        self._orders = StandingOrders(self._library, pin_chunks=True)
        try:
            libraries.sources.sweep(self._library.scope, libraries.listings.sources(self._library.scope))
        except OSError as error:
            libraries.count_uncollected(error)
        self._library.try_collect()

    def add(self, source: Any = None, name: str | None = None, seconds: float | None = None, **options: Any) -> Listing:
        """Add a file: encode and prefill it, and keep it under a name.

        Args:
            source: as `Engine.add` takes it.
            name: unique among the tenant's files; `file-` and the first digits of its id by default.
            seconds: how long it is kept; None without end.
            options: as `Engine.add` takes them, such as `fps` or `text`.

        Raises:
            StoreError: the name is taken or no name, or seconds is not a positive number.
            MediaError: the source cannot be read or is outside the limits; nothing was kept.
        """
        if name is not None:
            checked_name(name)
        if seconds is not None and not (
            isinstance(seconds, int | float)
            and not isinstance(seconds, bool)
            and math.isfinite(seconds)
            and seconds > 0
        ):
            raise StoreError(f"{seconds!r} seconds is no time to keep a file: give a positive number, or None")
        self._libraries.catalogue.check_writable()
        self._expire()
        scope = self._library.scope
        if name is not None and self._libraries.listings.entry(scope, _KEY, name) is not None:
            raise StoreError(f"{name!r} is in the library already: delete it first, or choose another name")
        piece = self._tenant.add(source, **options)
        name, fresh = (f"file-{piece.id[:12]}", False) if name is None else (name, True)
        note = self._libraries.sources.keep(scope, source, options, self._libraries.listings.sources(scope))
        now = self._libraries.now()
        entry = Listing.of(name, piece, now, None if seconds is None else now + seconds, note)
        self._libraries.listings.change(scope, _KEY, {name: entry}, fresh=fresh)
        self._library.try_collect()
        self._library.retriever.prepare(scope, chunk_ids([piece]))
        return entry

    def list(self) -> tuple[Listing, ...]:
        """Return every file, in the order they were added."""
        self._expire()
        entries = self._libraries.listings.entries(self._library.scope, _KEY).values()
        return tuple(entry for entry in entries if not self._is_over(entry))

    def entry(self, name: str) -> Listing:
        """Return what is known of a file.

        Raises:
            StoreError: there is none of this name, or its time is over.
        """
        found = self._found(name)
        if found is None:
            raise StoreError(f"there is no file {str(name)[:60]!r}: it was never added, was deleted, or has expired")
        return found

    def get(self, name: str) -> ChunkOrClip:
        """Return a file as a part of a prompt; made again where the store has lost it.

        Raises:
            StoreError: there is none of this name, its time is over, or it was lost with its media.
        """
        return self._library.piece(self.entry(name))

    def __getitem__(self, name: str) -> ChunkOrClip:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        return self._found(name) is not None

    def __len__(self) -> int:
        return len(self.list())

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self.list())

    def delete(self, name: str) -> None:
        """Delete a file, with its chunks and their patches where no other file has them.

        Raises:
            StoreError: there is none of this name, or not all of it could be deleted. It is not found any more then,
                and what is left goes later: now, where this is called again.
        """
        scope = self._library.scope
        if isinstance(name, str) and name not in self and self._libraries.listings.is_ending(scope, _KEY, name):
            self._library.collect()
        else:
            self.entry(name)
            self._remove([name])
        if self._libraries.listings.is_ending(scope, _KEY, name):
            raise StoreError(
                f"not all of {name!r} could be deleted yet, the log says why: it is tried again with the next change "
                "and when the library is opened, and now if you delete it again"
            )

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders that are kept, as names."""
        return tuple(order.names for order in self._orders.list())

    def keep_order(self, names: Sequence[str]) -> None:
        """Make files ready for questions that show them in this order, and keep their rows and patches from eviction.

        The order is kept until one of its files is deleted or expires.

        Args:
            names: of the files, two or more.

        Raises:
            StoreError: there is no such file, or there are too many orders.
            PromptError: the files are longer than the model's context.
            CapacityError: the patches do not fit; nothing is kept.
        """
        self._orders.keep(names, {entry.name: entry for entry in self.list()})

    def drop_order(self, names: Sequence[str]) -> None:
        """Let the rows and patches of an order be evicted again; StoreError where it is not kept."""
        self._orders.drop(names)

    def search(self, query: str, count: int = 3) -> "tuple[Hit, ...]":
        """Return the chunks of all files that are nearest to a query, the nearest first. Runs the model.

        Raises:
            StoreError: the query is empty, or count is below 1.
        """
        return tuple(self._library.find(query, count, {entry.name: entry for entry in self.list()}))

    def _found(self, name: object) -> Listing | None:
        self._expire()
        found = self._libraries.listings.entry(self._library.scope, _KEY, name) if isinstance(name, str) else None
        return None if found is None or self._is_over(found) else found

    def _remove(self, names: Sequence[str]) -> None:
        listings, scope = self._libraries.listings, self._library.scope
        self._libraries.catalogue.check_writable()
        try:
            listings.change(scope, _KEY, {}, names)
        except StoreError:
            # On a full disk what the files took is what the catalogue needs.
            for name in names:
                self._library.delete_now(name)
            listings.change(scope, _KEY, {}, names)
        self._library.collect()
        self._orders.renew(listings.entries(scope, _KEY))

    def _expire(self) -> None:
        over = self._libraries.listings.expired(self._library.scope, _KEY, self._libraries.now())
        if over and self._libraries.catalogue.read_only is None:
            try:
                self._remove(over)
            except StoreError as error:
                # Whatever they are asked for, they are not given.
                self._libraries.count_uncollected(error)

    def _is_over(self, entry: Listing) -> bool:
        return entry.expires is not None and entry.expires <= self._libraries.now()
