"""torchvision, where it is installed beside a CPU build of torch."""

import importlib.util
from typing import Any

import torch


def require_torchvision() -> None:
    """Skip the test where torchvision is missing."""
    import pytest

    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")


def declare_torchvision_operators() -> Any:
    """torchvision's wheel asks for two operators that a CPU build of torch lacks; declared, it imports."""
    if importlib.util.find_spec("torchvision") is None or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


TORCHVISION = declare_torchvision_operators()  # kept: torch forgets the operators when this object goes
