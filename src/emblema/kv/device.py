"""Where tensors are kept when nobody says so, and waiting for what a device was told to do."""

import torch


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
