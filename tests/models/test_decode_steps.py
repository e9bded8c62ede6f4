"""What CUDA is asked to record a step, where there is none: warm runs on a stream beside, then a capture."""

import pytest
import torch
from torch import Tensor

from emblema.models.decode_steps import GraphRecorder, step_recorder


class Noting:
    """A stream, a graph or a block of CUDA that notes what it is asked."""

    def __init__(self, calls: list[str], name: str) -> None:
        self.calls, self.name = calls, name

    def wait_stream(self, other: "Noting") -> None:
        self.calls.append(f"{self.name} waits for {other.name}")

    def replay(self) -> None:
        self.calls.append("replay")

    def __enter__(self) -> None:
        self.calls.append(f"into {self.name}")

    def __exit__(self, *error: object) -> None:
        self.calls.append(f"out of {self.name}")


def test_a_step_is_warmed_beside_and_captured_at_high_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def capture(graph: Noting, pool: str, stream: Noting, capture_error_mode: str) -> Noting:
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        return Noting(calls, f"capture on {stream.name}")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority=0: Noting(calls, f"side {priority}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Noting(calls, "model"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Noting(calls, "graph"))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    result = torch.ones(1)

    def step() -> Tensor:
        calls.append("step")
        return result

    recorded, left = GraphRecorder().record(step)
    recorded.replay()
    assert left is result
    assert calls == [
        "side 0 waits for model", "into side 0", "step", "step", "out of side 0", "model waits for side 0",
        "into capture on side -1", "step", "out of capture on side -1", "replay",
    ]  # fmt: skip


def test_only_cuda_records() -> None:
    assert step_recorder(torch.device("cpu")) is None
