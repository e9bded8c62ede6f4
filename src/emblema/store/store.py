"""The store: chunks, patches and prefixes of any number of tenants, over memory, disk and a remote tier."""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, cast

import torch

from emblema.errors import StoreError
from emblema.store.compression import check_compression
from emblema.store.counts import Counts
from emblema.store.identity import SHARED_SALT, owner_digest
from emblema.store.keeper import Keeper
from emblema.store.prefixes import Prefixes, PrefixStore
from emblema.store.record import RemoteTier, Terms
from emblema.store.slower import SlowerTiers
from emblema.store.statistics import COUNTERS, StoreStatistics
from emblema.store.tenant import TenantStore

if TYPE_CHECKING:
    from emblema.store.compression import Compression
    from emblema.store.disk import DiskTier

PREFIX_BYTES = 256 * 2**20
LIBRARY_BYTES = 2**30


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
        prefix_bytes: budget of the exact prefixes of all tenants and models, beside the budgets above.
        library_bytes: budget of the media that one tenant's libraries keep on one model, so that lost chunks can be
            made again; beside the budgets above.
        clock: Unix time in seconds.
        device: where loaded rows are wanted; the GPU if there is one.

    Raises:
        StoreError: an option is out of range, or the folder cannot be used.
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
        library_bytes: int = LIBRARY_BYTES,
        clock: Callable[[], float] = time.time,
        device: torch.device | str | None = None,
    ) -> None:
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device_bytes == "auto":
            device_bytes = max(1, free_bytes(device) // 4)
        if host_bytes == "auto":
            host_bytes = 0 if device.type == "cpu" else free_bytes(torch.device("cpu")) // 4
        _check("device_bytes", device_bytes)
        _check("host_bytes", host_bytes, zero=True)
        _check("disk_bytes", disk_bytes)
        _check("load_deadline", load_deadline)
        _check("prefix_bytes", prefix_bytes, zero=True)
        _check("library_bytes", library_bytes, zero=True)
        for size in (quota, *(quotas or {}).values()):
            _check("quota", size)
        check_compression(compression)
        if write not in ("through", "back"):
            raise StoreError(f"write is {write!r}: choose through or back.")
        own_quotas = {owner_digest(salt): size for salt, size in (quotas or {}).items()}
        self.prefix_bytes, self.library_bytes, self.clock = prefix_bytes, library_bytes, clock
        self._prefixes = Prefixes(prefix_bytes)
        self._lock = threading.Lock()
        self._companions: dict[str, Companion] = {}
        # Leases that wait for room, in order of arrival; guarded by the keeper's lock.
        self.waiting: deque[object] = deque()
        self._counts = Counts()
        disk = _disk(folder, disk_bytes, clock)
        self.keeper = Keeper(
            {"device": device_bytes, "host": host_bytes},
            SlowerTiers(disk, remote, self._counts),
            self._counts,
            write=write,
            compression=compression,
            terms=terms or Terms(),
            deadline=load_deadline,
            quota_of=lambda owner: own_quotas.get(owner, quota),
            clock=clock,
            device=device,
            ended=self._prefixes.forget,
        )
        if disk is not None:
            disk.use(self.keeper.in_use)
        # Nothing below holds the store itself: one that is dropped, or left open at the end, is still written.
        self._finalizer = weakref.finalize(self, _abandon, self.keeper)

    @property
    def disk(self) -> "DiskTier | None":
        """The disk tier; its `report` says what was restored and what was skipped."""
        return self.keeper.slower.disk

    def tenant(self, salt: bytes = b"") -> TenantStore:
        """Return one tenant's part of the store.

        Raises:
            StoreError: the salt is not bytes, or is the shared library's.
        """
        if salt == SHARED_SALT:
            raise StoreError("This salt is the shared library's: use `store.shared`, or give the tenant another.")
        return TenantStore(self, salt)

    @property
    def shared(self) -> TenantStore:
        """The shared library, which every tenant reads and the administrator writes."""
        return TenantStore(self, SHARED_SALT)

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
                "patches": sum(piece.artifact is not None for piece in pieces),
                "bytes": sum(tiers.values()),
                "device_bytes": tiers["device"],
                "host_bytes": tiers["host"],
                "leased_bytes": leased,
                "unsaved_bytes": sum(piece.held for piece in pieces if not piece.saved) if keeper.slower else 0,
            }
        contents["prefix_bytes"] = self._prefixes.bytes(owner)
        disk = keeper.slower.disk
        contents["disk_bytes"] = 0 if disk is None else disk.bytes if owner is None else disk.bytes_of(owner)
        return StoreStatistics(**{name: counts[name] for name in COUNTERS}, **contents)

    def prefixes_of(self, tenant: str, owner: str) -> PrefixStore:
        """A tenant's exact prefixes of one model and dtype."""
        return self._prefixes.of(tenant, owner)

    def forget_prefixes(self, tenant: str, chunk: str) -> bool:
        """Drop the prefixes that hold a deleted chunk: the tenant's; everybody's where the chunk was shared."""
        return self._prefixes.forget(tenant, chunk)

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
        """Flush, and end the threads and the tiers; a second call does nothing.

        Raises:
            StoreError: as `flush`; everything is closed all the same.
        """
        with self._lock:
            companions, self._companions = list(self._companions.values()), {}
        if self.keeper.closed:
            return
        self._finalizer.detach()
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


def _abandon(keeper: Keeper) -> None:
    if keeper.process == os.getpid():
        keeper.close()


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that nobody uses now; of the host's where it is a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        # What the kernel would give, its page cache included.
        found = [1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])]
    with suppress(OSError, ValueError):
        bound = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found.append(bound - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(0, min(found))


def _disk(
    folder: "str | Path | DiskTier | None",
    capacity: int | None,
    clock: Callable[[], float],
) -> "DiskTier | None":
    if folder is None:
        if capacity is not None:
            raise StoreError(f"disk_bytes is {capacity}, but there is no folder: give one.")
        return None
    if not isinstance(folder, str | Path):
        if capacity is not None:
            raise StoreError(
                f"disk_bytes is {capacity}, but the disk tier is open already: it has a budget of its own."
            )
        return folder
    from emblema.store.disk import DiskTier

    return DiskTier(folder, capacity, clock=clock)


def _check(name: str, value: float | None, *, zero: bool = False) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise StoreError(f"{name} is {value!r}: give a number, {'0 or more' if zero else 'more than 0'}.")
