"""Steps of decoding that are recorded once for their shape and replayed: one launch in place of hundreds."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from emblema.kv.device import HIGH
from emblema.models.adapter import Adapter
from emblema.models.batch_table import BatchTable, StepShape

MOST_RECORDED = 16
"""Steps that are kept: of so many shapes."""
WARMING = 2
"""Runs of a step before it is recorded: libraries choose their algorithms and take their workspaces in them."""
_LOG = logging.getLogger(__name__)


class RecordedStep(Protocol):
    """What a step told a device to do."""

    def replay(self) -> None:
        """Have the device do it again, on what the same memory holds now."""


class StepRecorder(Protocol):
    """Records what a step tells a device to do."""

    def record(self, step: Callable[[], Tensor]) -> tuple[RecordedStep, Tensor]:
        """Record a step, which may be run some times for it.

        Returns:
            The recorded step, and the tensor that each replay leaves the step's result in.

        Raises:
            RuntimeError: the step cannot be recorded; it waits for the device, for example.
        """


@dataclass(frozen=True, slots=True)
class _Kept:
    """A recorded step with the memory that it reads and leaves: see `Adapter.decode_step`."""

    step: RecordedStep
    inputs: Tensor
    logits: Tensor


class DecodeSteps:
    """Steps of one batch, recorded by their shapes.

    Args:
        adapter: the model.
        table: rows of the batch's sequences, of padded steps.
        recorder: records.
    """

    def __init__(self, adapter: Adapter, table: BatchTable, recorder: StepRecorder) -> None:
        self._adapter, self._table = adapter, table
        # To record a step is to run it more than once, and a state would change each time.
        self._recorder: StepRecorder | None = None if adapter.keeps_states else recorder
        self._kept: OrderedDict[StepShape, _Kept] = OrderedDict()
        self._weights = adapter.weights.stamp()

    def follow_weights(self) -> None:
        """Drop the recorded steps if the weights are others now: each reads the tensors that it was recorded with."""
        if (weights := self._adapter.weights.stamp()) != self._weights:
            self._weights = weights
            self._kept.clear()

    def decode(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Run a step as `Adapter.decode` does; the logits are good until the next step.

        Where a step cannot be recorded that is logged once, and this batch's steps are run from then on.
        """
        table, adapter = self._table, self._adapter
        if self._recorder is None:
            return adapter.decode(token_ids, positions, rows, table)
        table.begin()
        try:
            kept = self._step(table.shape, self._recorder)
        except RuntimeError as error:
            table.abandon()
            _LOG.warning("a step of decoding cannot be recorded, so steps are run one by one: %s", error)
            self._recorder = None
            self._kept.clear()
            return adapter.decode(token_ids, positions, rows, table)
        try:
            given = torch.stack((adapter.text_ids(token_ids), positions, rows))
            kept.inputs[:, : table.sequences].copy_(given, non_blocking=True)
            kept.step.replay()
        except BaseException:
            table.abandon()
            raise
        table.end()
        return kept.logits[: table.sequences]

    def _step(self, shape: StepShape, recorder: StepRecorder) -> _Kept:
        if shape in self._kept:
            self._kept.move_to_end(shape)
            return self._kept[shape]
        # What was recorded of memory that the table has left must not be replayed.
        for old in [each for each in self._kept if each.storage != shape.storage]:
            del self._kept[old]
        with torch.inference_mode(False):
            inputs = torch.zeros(3, shape.sequences, dtype=torch.int64, device=self._adapter.device)
        step, logits = recorder.record(lambda: self._adapter.decode_step(inputs, self._table))
        self._kept[shape] = _Kept(step, inputs, logits)
        if len(self._kept) > MOST_RECORDED:
            self._kept.popitem(last=False)
        return self._kept[shape]


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
