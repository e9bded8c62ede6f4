"""Orders of a library's items that requests will show: their patches are made at once, and stay."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from emblema.errors import CapacityError, EmblemaError, StoreError
from emblema.library.items import Listing
from emblema.library.library import Library

MOST = 64
"""Orders that a library keeps at most."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StandingOrder:
    """One order.

    Attributes:
        names: of the items, in their order.
        chunks: ids of the items' chunks when the patches were made.
        pins: ids of what is pinned for it.
    """

    names: tuple[str, ...]
    chunks: tuple[str, ...]
    pins: tuple[str, ...]


class StandingOrders:
    """The orders of one library. What is pinned for them stays until they are dropped.

    Args:
        library: whose they are.
        pin_chunks: whether the chunks are pinned with the patches; a collection pins its chunks in any case.
    """

    def __init__(self, library: Library, pin_chunks: bool) -> None:
        self._library, self._pin_chunks = library, pin_chunks
        self._setting = f"standing orders {library.key}"

    def list(self) -> tuple[StandingOrder, ...]:
        """Return the orders, in the order in which they were first kept."""
        written = self._library.libraries.listings.setting(self._library.scope, self._setting)
        found = json.loads(written or "[]")
        return tuple(StandingOrder(*(tuple(each[field]) for field in ("names", "chunks", "pins"))) for each in found)

    def keep(self, names: Sequence[str], entries: Mapping[str, Listing]) -> None:
        """Make the patches of an order and pin them; one that is known is made again.

        Args:
            names: of the items, two or more.
            entries: the library's items.

        Raises:
            StoreError: there is no such item, there are fewer than two, or there are too many orders.
            PromptError: the items are longer than the model's context.
            CapacityError: the patches do not fit; nothing is pinned.
        """
        self._library.libraries.catalogue.check_writable()
        names = tuple(names)
        missing = next((name for name in names if name not in entries), None)
        if missing is not None:
            raise StoreError(f"there is no item {str(missing)[:60]!r} to keep an order with")
        if len(names) < 2:
            raise StoreError("an order has two items or more")
        known = {order.names: order for order in self.list()}
        if names not in known and len(known) >= MOST:
            raise StoreError(f"the library keeps {MOST} orders already: drop one first")
        store = self._library.tenant.store
        made = self._library.tenant.warm([self._library.piece(entries[name]) for name in names])
        chunks = _chunks(names, entries)
        pins = [piece for piece in made.pieces if self._pin_chunks or piece not in chunks]
        order = StandingOrder(names, chunks, ())
        try:
            for piece in pins:
                if not store.pin(piece):
                    raise CapacityError(f"{piece[:12]} was evicted before its order was complete: keep a shorter order")
                order = StandingOrder(names, chunks, (*order.pins, piece))
        except EmblemaError:
            self._unpin(order.pins, known.values())
            raise
        self._write({**known, names: order}, known)

    def drop(self, names: Sequence[str]) -> None:
        """Let what is pinned for an order be evicted again.

        Raises:
            StoreError: it is not kept.
        """
        known = {order.names: order for order in self.list()}
        if tuple(names) not in known:
            raise StoreError(f"no order of {len(names)} items is kept that begins with {str(*names[:1])[:60]!r}")
        self._write({kept: order for kept, order in known.items() if kept != tuple(names)}, known)

    def renew(self, entries: Mapping[str, Listing]) -> None:
        """Follow a change of the library: drop orders of items that are gone, and make again those that changed.

        An order that cannot be made again is dropped, and the log says why.
        """
        for order in self.list():
            if not entries.keys() >= set(order.names):
                self.drop(order.names)
            elif _chunks(order.names, entries) != order.chunks:
                try:
                    self.keep(order.names, entries)
                except EmblemaError as error:
                    _LOG.warning("the order %s of a library is dropped: %s", ", ".join(order.names), error)
                    self.drop(order.names)

    def _write(
        self, orders: Mapping[tuple[str, ...], StandingOrder], before: Mapping[tuple[str, ...], StandingOrder]
    ) -> None:
        """Write the orders, and then let go what only those before pinned."""
        catalogue, scope = self._library.libraries.listings, self._library.scope
        catalogue.set(scope, self._setting, json.dumps([asdict(order) for order in orders.values()]))
        self._unpin([pin for order in before.values() for pin in order.pins], orders.values())

    def _unpin(self, pins: Iterable[str], orders: Iterable[StandingOrder]) -> None:
        """Unpin what no order pins."""
        for pin in set(pins).difference(*(order.pins for order in orders)):
            self._library.tenant.store.unpin(pin)


def _chunks(names: Sequence[str], entries: Mapping[str, Listing]) -> tuple[str, ...]:
    return tuple(chunk for name in names for chunk in entries[name].chunks)
