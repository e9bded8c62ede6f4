"""The store that an engine is given: of one tenant, on the model's device."""

from pathlib import Path
from typing import Any

import torch

from emblema.errors import EmblemaError, StoreError
from emblema.store.store import Store, TenantStore

StoreLike = Store | TenantStore | str | Path


def find_tenant_store(given: Any, salt: bytes, device: torch.device) -> TenantStore:
    """Return one tenant's store, which may also be given as such.

    Raises:
        EmblemaError: the salt is no bytes, or this is no store.
        StoreError: another tenant's store was given, or one whose rows are on another accelerator than the model.
    """
    if not isinstance(salt, bytes):
        raise EmblemaError(f"the salt is a {type(salt).__name__}: give bytes")
    if not isinstance(given, Store | TenantStore):
        raise EmblemaError(f"the store is a {type(given).__name__}: give a Store, a tenant's store, or a folder")
    if isinstance(given, TenantStore) and salt not in (b"", given.salt):
        raise StoreError("this store is another tenant's: give the whole store, or leave the salt out")
    found = given if isinstance(given, TenantStore) else given.tenant(salt)
    held = found.parent.device
    if held.type != "cpu" and held != device:
        raise StoreError(
            f"the store keeps rows on {held} and the model is on {device}: open the store with "
            f"settings=StoreSettings(device={str(device)!r})"
        )
    return found
