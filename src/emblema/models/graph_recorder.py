"""Steps as CUDA graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from emblema.kv.side_stream import HIGH
from emblema.models.decode_steps import RecordedStep, StepRecorder

WARMING = 2
"""Runs of a step before it is recorded: libraries choose their algorithms and take their workspaces in them."""


class GraphRecorder:
    """Records steps as CUDA graphs, which share a pool of memory: a replay may overwrite what another one left."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], Tensor]) -> tuple[RecordedStep, Tensor]:
        """Run a step on a stream of its own, then capture it. Other threads may use the device meanwhile."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARMING):
                step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # The kernels of a graph keep the priority of the stream that they are captured on.
        captured = torch.cuda.Stream(priority=HIGH)
        with torch.cuda.graph(graph, pool=self._pool, stream=captured, capture_error_mode="thread_local"):
            result = step()
        return graph, result


def step_recorder(device: torch.device) -> StepRecorder | None:
    """Return what records steps on a device; None where a step is run each time."""
    return GraphRecorder() if device.type == "cuda" else None
