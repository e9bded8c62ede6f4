"""Where tensors are kept when nobody says so, and telling a device what to do and waiting until it is done."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

HIGH = -1
"""Priority of the model's own recorded steps on a GPU; what is done beside it has the lowest, 0."""


def default_device() -> torch.device:
    """Return the accelerator that torch finds, or the CPU.

    MPS is never chosen: it has no float64, which models are checked in.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None or found.type == "mps" else place_of(found)


def place_of(device: torch.device | str) -> torch.device:
    """Return a device with its index: `cuda` is where `cuda` means now."""
    device = torch.device(device)
    if device.type in ("cpu", "meta") or device.index is not None:
        return device
    return torch.empty(0, device=device).device


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what this thread's stream was told; nothing to wait for on a CPU.

    A clock that is read before this tells how long the telling took.
    """
    if device.type not in ("cpu", "meta"):
        torch.accelerator.current_stream(device).synchronize()


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Have kernels that are launched in the block run on a device.

    Those that are not torch's own run on the thread's current one.
    """
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        return nullcontext()
    return torch.cuda.device(device)


@contextmanager
def beside_model(device: torch.device) -> Iterator[None]:
    """Have what the block tells a GPU run beside the model, and wait until it is done; elsewhere it runs as it is.

    It begins behind all that the device's default stream has been told by now. What the block makes lies in memory of
    its stream: hand out copies made after it, or the memory may be used anew while the model still reads it.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        # What it reads may be let go of after the block.
        stream.synchronize()
