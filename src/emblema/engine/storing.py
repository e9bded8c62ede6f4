"""What a caller gives as a store, as one tenant's view."""

from pathlib import Path

from emblema.errors import EmblemaError, StoreError
from emblema.library import Shelf
from emblema.store.store import Store
from emblema.store.tenant import TenantStore

StoreLike = Store | TenantStore | str | Path


def open_store(given: StoreLike | None) -> Store | None:
    """The store that an engine has to make itself: for a folder, or for nothing given. None where one was handed in.

    Raises:
        StoreError: the folder cannot be used.
    """
    if given is None:
        return Store()
    return Store(given) if isinstance(given, str | Path) else None


def view_of(given: StoreLike | None, salt: bytes) -> TenantStore:
    """One tenant's view of a store; a view is taken as it is.

    Raises:
        EmblemaError: the salt is no bytes, or this is no store.
        StoreError: a view of another tenant was given.
    """
    if not isinstance(salt, bytes):
        raise EmblemaError(f"the salt is a {type(salt).__name__}: give bytes")
    if isinstance(given, TenantStore):
        if salt not in (b"", given.salt):
            raise StoreError("the view belongs to another tenant: give the store, or leave the salt out")
        return given
    if isinstance(given, Store):
        return given.tenant(salt)
    raise EmblemaError(f"the store is a {type(given).__name__}: give a Store, a view of one, or a folder")


def shelf_of(store: Store) -> Shelf:
    """Where the libraries on a store are kept: one shelf for all engines on it, in its folder if it has one."""
    folder = None if store.disk is None else store.disk.path / "libraries"
    return store.companion("libraries", lambda: Shelf(folder, clock=store.clock, source_bytes=store.library_bytes))
