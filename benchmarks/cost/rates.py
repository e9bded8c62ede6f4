"""How quickly the machine copies and multiplies: what every other figure is held to."""

import torch

from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Cell, Table

PAYLOAD = 2**28
"""Bytes that are gone through before any come again, past every cache."""
SIDE = {"cpu": 1024, "cuda": 8192}


class CopyRing:
    """Pairs of tensors on a device, gone through in turn, so that no cache holds what is copied next."""

    def __init__(self, size: int, device: torch.device, payload: int = PAYLOAD) -> None:
        count = max(1, -(-payload // size))
        self._pairs = [
            (torch.ones(size, dtype=torch.uint8, device=device), torch.zeros(size, dtype=torch.uint8, device=device))
            for _ in range(count)
        ]
        self._next = 0

    def copy(self) -> None:
        """Copy one pair."""
        source, target = self._pairs[self._next % len(self._pairs)]
        self._next += 1
        target.copy_(source)


def rates_table(device: torch.device, dtype: torch.dtype, pace: Pace, payload: int = PAYLOAD) -> Table:
    """Return the rates of a device, and of the ways to it where it has its own memory."""
    size = max(1, payload // 4)
    side = SIDE.get(device.type, SIDE["cpu"]) if payload == PAYLOAD else 64
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    copy = "copy in the device's memory, read and written"
    product = f"product of {side} x {side} matrices, {str(dtype).removeprefix('torch.')}"
    actions: dict[str, Action] = {copy: CopyRing(size, device, payload).copy, product: lambda: left @ right}
    if device.type == "cuda":
        plain, there = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8, device=device)
        pinned = plain.pin_memory()
        actions["pageable host memory to the device"] = lambda: there.copy_(plain)
        actions["pinned host memory to the device"] = lambda: there.copy_(pinned, non_blocking=True)
        actions["the device to pinned host memory"] = lambda: pinned.copy_(there, non_blocking=True)
    found = interleaved(actions, device, pace)
    done = {name: size for name in actions} | {copy: 2 * size, product: 2 * side**3}
    rows: list[tuple[Cell, ...]] = [
        (name, done[name] / found.median(name) / 1e9, "Gflop/s" if name == product else "GB/s") for name in actions
    ]
    note = f"Medians, {size / 1e6:.0f} MB at a time. Every other figure is held to these."
    return Table("rates", "What the machine does in a second", note, ("what", "rate", "unit"), tuple(rows))
