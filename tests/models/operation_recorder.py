"""A recorder of steps for a machine without CUDA graphs: it has their rules, and replays operations one by one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.is_nonzero.default,
}
"""Operations whose result the host has to know before it goes on: no graph can hold one."""


class _Recording(TorchDispatchMode):
    """Notes operations with the very tensors that they read and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function in LOOKS:
            raise RuntimeError(f"{function} waits for the device while a step is recorded")
        left = function(*given, **(named or {}))
        self.calls.append((function, given, named or {}, left))
        return left


class RecordedOperations:
    """Operations that a step ran; Python, and all that it looked at, is left out."""

    def __init__(self, calls: list[tuple[Any, Any, Any, Any]]) -> None:
        self._calls = calls

    @torch.inference_mode()
    def replay(self) -> None:
        """Run each again on the tensors that it read, and leave its results in those that it left."""
        for function, given, named, left in self._calls:
            again = function(*given, **named)
            for old, new in zip(tree_leaves(left), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class OperationRecorder:
    """Records a step's operations. As with CUDA graphs, what the step returns is made by a replay.

    Attributes:
        recorded: steps so far.
    """

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, step: Callable[[], Tensor]) -> tuple[RecordedOperations, Tensor]:
        with _Recording() as recording:
            result = step()
        self.recorded += 1
        with torch.inference_mode():
            result.fill_(torch.nan)
        return RecordedOperations(recording.calls), result
