"""Which placer a device gets."""

from importlib.util import find_spec

import torch

from emblema.kv.placing import Placer
from emblema.kv.placing_torch import TorchPlacer


def placer_for(device: torch.device) -> Placer:
    """Return the quickest placer of a device: the kernel on a GPU where Triton is installed, as it is with torch."""
    if device.type != "cuda" or not torch.cuda.is_available() or find_spec("triton") is None:
        return TorchPlacer()
    from emblema.kv.placing_triton import TritonPlacer

    return TritonPlacer()
