"""The store: chunks, patches and prefixes of any number of tenants, over memory, disk and a remote tier."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, cast

import torch

from emblema.errors import StoreError
from emblema.store.counts import Counts
from emblema.store.identity import SHARED_SALT, owner_digest
from emblema.store.keeper import Keeper
from emblema.store.prefixes import PrefixStore
from emblema.store.record import RemoteTier, Terms
from emblema.store.slower import SlowerTiers
from emblema.store.statistics import COUNTERS, StoreStatistics
from emblema.store.view import View

if TYPE_CHECKING:
    from emblema.store.compression import Compression
    from emblema.store.disk import DiskTier

PREFIX_BYTES = 256 * 2**20


class Companion(Protocol):
    """Something that is closed with the store."""

    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Companion)


class Store:
    """Tiers with a budget each, and a view of them for each tenant.

    Under write-through a piece is written to the slower tiers in the background as soon as it is put; under write-back
    when it leaves memory, at `flush` and at `close`. Evicted first is what has the lowest priority, then what has been
    used least recently; what a lease holds is not.

    Args:
        folder: of the disk tier, or an open one; None keeps pieces no longer than the process.
        device_bytes: budget of device memory for rows, kept embeddings and patches: `auto` is a quarter of what is free
            when the store is opened, None no bound. A lease may have to wait for it, and a piece not yet written may
            take the store beyond it for as long as that takes.
        host_bytes: budget of host memory (pinned) behind it: `auto` is a quarter of what is free where there is a GPU,
            and no host tier where device memory is host memory.
        disk_bytes: budget of the files; None for half of what is free, at most 64 GiB.
        remote: a tier beyond the disk.
        write: `through` or `back`.
        compression: of the rows written; `none` loses nothing.
        terms: of pieces put without any.
        load_deadline: seconds until rows that have not come are computed instead.
        quota: bytes that one tenant may hold in memory, and again on disk; None for no bound.
        quotas: the same by salt, for tenants that differ.
        prefix_bytes: budget of the exact prefixes of one tenant and model.
        clock: Unix time in seconds.
        device: where loaded rows are wanted; the GPU if there is one.

    Raises:
        StoreError: a budget is not positive, or the folder cannot be used.
    """

    def __init__(
        self,
        folder: "str | Path | DiskTier | None" = None,
        *,
        device_bytes: int | None | Literal["auto"] = "auto",
        host_bytes: int | None | Literal["auto"] = "auto",
        disk_bytes: int | None = None,
        remote: RemoteTier | None = None,
        write: Literal["through", "back"] = "through",
        compression: "Compression" = "none",
        terms: Terms | None = None,
        load_deadline: float = 30.0,
        quota: int | None = None,
        quotas: Mapping[bytes, int] | None = None,
        prefix_bytes: int = PREFIX_BYTES,
        clock: Callable[[], float] = time.time,
        device: torch.device | str | None = None,
    ) -> None:
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device_bytes == "auto":
            device_bytes = free_bytes(device) // 4
        if host_bytes == "auto":
            host_bytes = 0 if device.type == "cpu" else free_bytes(torch.device("cpu")) // 4
        _check(device_bytes, quota, *(quotas or {}).values())
        self._quota = quota
        self._quotas = {owner_digest(salt): size for salt, size in (quotas or {}).items()}
        self.prefix_bytes = prefix_bytes
        self._prefixes: dict[tuple[str, str], PrefixStore] = {}
        self._lock = threading.Lock()
        self._companions: dict[str, Companion] = {}
        # Leases that wait for room, in order of arrival; guarded by the keeper's lock.
        self.waiting: deque[object] = deque()
        self._counts = Counts()
        disk = _disk(folder, disk_bytes, clock, self._in_use)
        self.keeper = Keeper(
            {"device": device_bytes, "host": host_bytes},
            SlowerTiers(disk, remote, self._counts),
            self._counts,
            write=write,
            compression=compression,
            terms=terms or Terms(),
            deadline=load_deadline,
            quota_of=self._quota_of,
            clock=clock,
            device=device,
        )

    @property
    def disk(self) -> "DiskTier | None":
        """The disk tier; its `report` says what was restored and what was skipped."""
        return self.keeper.slower.disk

    def view(self, salt: bytes = b"") -> View:
        """A tenant's door.

        Raises:
            StoreError: the salt is not bytes, or is the shared library's.
        """
        if salt == SHARED_SALT:
            raise StoreError("This salt is the shared library's: use `store.shared`, or give the tenant another.")
        return View(self, salt)

    @property
    def shared(self) -> View:
        """The administrator's door to the shared library, which every tenant reads."""
        return View(self, SHARED_SALT)

    @property
    def statistics(self) -> StoreStatistics:
        """Counters and contents, of all owners together."""
        return self.statistics_of(None)

    def statistics_of(self, owner: str | None) -> StoreStatistics:
        """Counters and contents of one owner, or of all for None."""
        keeper, counts = self.keeper, self._counts.of(owner)
        with keeper.changed:
            memory = keeper.memory
            pieces = [piece for piece in memory if owner in (None, piece.owner)]
            tiers = memory.charges(owner)
            leased = memory.leased if owner is None else memory.leased_of[owner]
            contents = {
                "chunks": sum(piece.chunk is not None for piece in pieces),
                "patches": sum(piece.patch is not None for piece in pieces),
                "bytes": sum(tiers.values()),
                "device_bytes": tiers["device"],
                "host_bytes": tiers["host"],
                "leased_bytes": leased,
                "unsaved_bytes": sum(piece.held for piece in pieces if not piece.saved) if keeper.slower else 0,
            }
        disk = keeper.slower.disk
        contents["disk_bytes"] = 0 if disk is None else disk.bytes if owner is None else disk.bytes_of(owner)
        return StoreStatistics(**{name: counts[name] for name in COUNTERS}, **contents)

    def prefixes_of(self, tenant: str, owner: str) -> PrefixStore:
        """A tenant's exact prefixes of one model and dtype."""
        with self._lock:
            return self._prefixes.setdefault((tenant, owner), PrefixStore(self.prefix_bytes))

    def forget_prefixes(self, tenant: str, chunk: str) -> bool:
        """Drop the prefixes that hold a deleted chunk: the tenant's; everybody's where the chunk was shared."""
        shared = tenant == owner_digest(SHARED_SALT)
        with self._lock:
            known = [store for (owner, _), store in self._prefixes.items() if shared or owner == tenant]
        return any([store.forget(chunk) > 0 for store in known])

    def companion(self, name: str, make: "Callable[[], Kept]") -> "Kept":
        """What all who use the store share, such as its libraries: made when first asked for, closed with the store."""
        with self._lock:
            if name not in self._companions:
                self._companions[name] = make()
            return cast("Kept", self._companions[name])

    def expire(self) -> int:
        """Delete what has had its time. Look-ups find nothing expired in any case; this gives the room back."""
        return self.keeper.expire()

    def flush(self) -> None:
        """Return once everything put so far is durable.

        Raises:
            StoreError: a piece is in memory only, as no slower tier took it.
        """
        self.keeper.flush()

    def close(self) -> None:
        """Flush, and end the threads and the tiers.

        Raises:
            StoreError: as `flush`; everything is closed all the same.
        """
        with self._lock:
            companions, self._companions = list(self._companions.values()), {}
        with ExitStack() as last:
            last.callback(self.keeper.close)
            last.callback(self.flush)
            for companion in companions:
                last.callback(companion.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _quota_of(self, owner: str) -> int | None:
        return self._quotas.get(owner, self._quota)

    def _in_use(self) -> frozenset[str]:
        """Ids that the disk must not evict now. The disk asks with its own lock held: this one's lock is never held
        when the disk is called."""
        with self.keeper.changed:
            return frozenset(piece.id for piece in self.keeper.memory if piece.leases or piece.loading)


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that nobody uses now; of the host's where it is a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _disk(
    folder: "str | Path | DiskTier | None",
    capacity: int | None,
    clock: Callable[[], float],
    in_use: Callable[[], frozenset[str]],
) -> "DiskTier | None":
    if folder is None:
        if capacity is not None:
            raise StoreError(f"disk_bytes is {capacity}, but there is no folder: give one.")
        return None
    if not isinstance(folder, str | Path):
        return folder
    from emblema.store.disk import DiskTier

    return DiskTier(folder, capacity, clock=clock, in_use=in_use)


def _check(*sizes: int | None) -> None:
    for size in sizes:
        if size is not None and size <= 0:
            raise StoreError(f"A store of {size} bytes holds nothing: give a positive number, or None.")
