"""How quickly the machine copies and multiplies: what every other figure is held to."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Table

PAYLOAD = 2**28
"""Bytes that are gone through before any come again, past every cache."""
GIGA = 1e9
SIDE = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What the machine does in a second.

    Attributes:
        copy: bytes read and written by a copy in the device's memory.
        multiply: floating-point operations of a large product in the model's dtype.
    """

    copy: float
    multiply: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which a step waits for arithmetic rather than for memory."""
        return self.multiply / self.copy


class CopyRing:
    """Pairs of tensors on a device, gone through in turn, so that no cache holds what is copied next."""

    def __init__(self, size: int, device: torch.device, payload: int = PAYLOAD) -> None:
        self.size = size
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


def measure_rates(device: torch.device, dtype: torch.dtype, pace: Pace, *, payload: int = PAYLOAD) -> DeviceRates:
    """Measure the rates of a device."""
    seconds, size, side = _measure(device, dtype, pace, payload)
    return DeviceRates(2 * size / seconds["copy"], 2 * side**3 / seconds["multiply"])


def rates_table(device: torch.device, dtype: torch.dtype, pace: Pace, *, payload: int = PAYLOAD) -> Table:
    """Return the rates of a device, and of the ways to it where it has its own memory."""
    seconds, size, side = _measure(device, dtype, pace, payload)
    rows = [
        ("copy in the device's memory, read and written", 2 * size / seconds["copy"] / GIGA, "GB/s"),
        (f"product of {side} x {side} matrices, {str(dtype).removeprefix('torch.')}",
         2 * side**3 / seconds["multiply"] / GIGA, "Gflop/s"),
    ]  # fmt: skip
    rows += [(name, size / value / GIGA, "GB/s") for name, value in seconds.items() if name not in ("copy", "multiply")]
    return Table(
        "rates",
        "What the machine does in a second",
        f"Medians, {size / 1e6:.0f} MB at a time. Every other figure is held to these.",
        ("what", "rate", "unit"),
        tuple(rows),
    )


def _measure(device: torch.device, dtype: torch.dtype, pace: Pace, payload: int) -> tuple[dict[str, float], int, int]:
    size = max(1, payload // 4)
    ring = CopyRing(size, device, payload)
    side = SIDE.get(device.type, SIDE["cpu"]) if payload == PAYLOAD else 64
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    actions: dict[str, Action] = {"copy": ring.copy, "multiply": lambda: _do(lambda: left @ right)}
    if device.type == "cuda":
        plain, there = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8, device=device)
        pinned = plain.pin_memory()
        actions |= {
            "pageable host memory to the device": lambda: _do(lambda: there.copy_(plain)),
            "pinned host memory to the device": lambda: _do(lambda: there.copy_(pinned, non_blocking=True)),
            "the device to pinned host memory": lambda: _do(lambda: pinned.copy_(there, non_blocking=True)),
        }
    found = interleaved(actions, device, pace)
    return {name: found.median(name) for name in actions}, size, side


def _do(work: Callable[[], Tensor]) -> None:
    work()
