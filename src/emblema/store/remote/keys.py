"""Keys of a remote tier. Every key names its owner, so that two tenants never meet under one."""

import re
from dataclasses import dataclass

from emblema.errors import StoreError
from emblema.store.record import SHARED, check_id, is_id

_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}(/[A-Za-z0-9_.-]{1,128}){0,8}")
LAYOUT = "1"


@dataclass(frozen=True, slots=True)
class Keys:
    """`<prefix>/1/<owner>/<id>` is a record; beside a chunk stands what depends on it.

    A patch over the shared library is its tenant's, and whoever writes it cannot see whose each chunk is. So it is
    noted under its own owner, and its owner is noted with the shared chunk: a tenant's calls touch its own and the
    shared keys only, and deleting a shared chunk still finds the patches of all.
    """

    prefix: str

    def __post_init__(self) -> None:
        parts = self.prefix.split("/")
        if not _PREFIX.fullmatch(self.prefix) or "." in parts or ".." in parts:
            raise StoreError(
                f"{self.prefix!r} cannot be a prefix of keys: use letters, digits, '_', '-', '.', with '/' between."
            )

    def record(self, owner: str, id: str) -> str:
        """Of a chunk or patch.

        Raises:
            StoreError: the owner or the id is not one.
        """
        check_id(id)
        if owner != SHARED and not is_id(owner):
            raise StoreError(f"{owner[:80]!r} is not an owner: give 64 lower-case hexadecimal digits, or 'shared'.")
        return f"{self.prefix}/{LAYOUT}/{owner}/{id}"

    def patches(self, owner: str, chunk: str) -> str:
        """Where an owner's patches of a chunk are noted."""
        return f"{self.record(owner, chunk)}/patches"

    def owners(self, chunk: str) -> str:
        """Where the owners of a shared chunk's patches are noted."""
        return f"{self.record(SHARED, chunk)}/owners"
