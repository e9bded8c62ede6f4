"""The device `meta` in place of a GPU: what looks at a number of its tensors raises, as it would wait for a GPU."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Notes what is moved between devices, and refuses what mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        devices = {one.device for one in (*given, result) if isinstance(one, Tensor) and one.dim()}
        if len(devices) > 1:
            assert "copy" in str(function), f"{function} mixes {devices}"
            self.moved.append(str(function))
        return result
