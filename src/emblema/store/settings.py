"""The settings of a store that few users change, and the checks of all its options."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from emblema.errors import StoreError
from emblema.kv.device import default_device, place_of
from emblema.store.compression import Compression, check_compression
from emblema.store.record import Terms

WritePolicy = Literal["through", "back"]


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of a store that few users change.

    Attributes:
        host_bytes: budget of (pinned) host memory for pieces that leave device memory; `auto` is a quarter of what is
            free where there is a GPU, and 0 where device memory is host memory; None for no bound.
        write: `through` writes a piece to the slower tiers in the background as soon as it is put; `back` when it
            leaves memory, at `flush` and at `close`.
        compression: of the rows in files; `none` loses nothing.
        terms: of pieces that are put without any.
        load_deadline: seconds until rows that have not been loaded are computed instead.
        quotas: bytes by salt, for tenants whose quota differs from the store's.
        prefix_bytes: budget of the exact prefixes of all tenants and models; not part of the other budgets.
        library_bytes: budget of the media that one tenant's libraries keep for one model, so that lost chunks can be
            made again; not part of the other budgets.
        deletion_seconds: within which a deletion by another process is honoured, where the store has a feed of them.
        device: where loaded rows are wanted; None for the GPU if there is one, else the CPU.
        layer_devices: where each layer's rows are wanted, of a model whose layers are on several devices; the rows of
            models with another number of layers go to `device`, as those of all do where it is empty.
        pinned: whether rows that are loaded into a CPU's memory are page-locked, which a GPU copies fastest; needs one.
        clock: returns Unix time in seconds.

    Raises:
        StoreError: a setting is out of range.
    """

    host_bytes: int | None | Literal["auto"] = "auto"
    write: WritePolicy = "through"
    compression: Compression = "none"
    terms: Terms = field(default_factory=Terms)
    load_deadline: float = 30.0
    quotas: Mapping[bytes, int] = field(default_factory=dict)
    prefix_bytes: int = 256 * 2**20
    library_bytes: int = 2**30
    deletion_seconds: float = 5.0
    device: torch.device | str | None = None
    layer_devices: Sequence[torch.device] = ()
    pinned: bool = False
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if self.host_bytes != "auto":
            check_number("host_bytes", self.host_bytes, zero=True)
        check_number("load_deadline", self.load_deadline)
        check_number("deletion_seconds", self.deletion_seconds)
        check_number("prefix_bytes", self.prefix_bytes, zero=True)
        check_number("library_bytes", self.library_bytes, zero=True)
        for size in self.quotas.values():
            check_number("quota", size)
        check_compression(self.compression)
        if self.write not in ("through", "back"):
            raise StoreError(f"write is {self.write!r}: choose through or back.")

    def resolve_device(self) -> torch.device:
        """Return the device of loaded rows."""
        return default_device() if self.device in (None, "auto") else place_of(self.device)

    def row_devices(self, layers: int) -> tuple[torch.device, ...]:
        """Return where the rows of each of so many layers are wanted."""
        if len(self.layer_devices) == layers:
            return tuple(self.layer_devices)
        return (self.resolve_device(),) * layers

    @property
    def devices(self) -> frozenset[torch.device]:
        """All devices that rows are wanted on."""
        return frozenset({self.resolve_device(), *self.layer_devices})

    def device_budget(self) -> int:
        """Return the bytes of the devices' memory for pieces, where nobody says: a quarter of what is free now."""
        return max(1, sum(free_bytes(device) // 4 for device in self.devices))

    def host_budget(self) -> int | None:
        """Return the bytes of host memory for pieces that leave a device's memory; None for no bound."""
        if self.host_bytes != "auto":
            return self.host_bytes
        return 0 if all(device.type == "cpu" for device in self.devices) else free_bytes(torch.device("cpu")) // 4


def check_number(name: str, value: object, *, zero: bool = False) -> None:
    """Raise StoreError unless a value is None or a positive number; with `zero`, 0 is allowed too."""
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise StoreError(f"{name} is {value!r}: give a number, {'0 or more' if zero else 'more than 0'}.")


def free_bytes(device: torch.device) -> int:
    """Return the bytes of a device's memory that are free now; for a CPU those of the host."""
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
