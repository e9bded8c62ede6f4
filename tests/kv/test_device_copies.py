"""Copies beside the model, on a device that is simulated."""

import threading

import pytest
import torch
from torch import Tensor

from emblema.kv.device_copies import CudaCopyStream, HostCopier
from tests.kv.devices import Device


def test_a_copy_has_what_was_queued_before_it_and_none_waits_for_it_on_the_models_thread() -> None:
    device = Device()
    copier, rows = HostCopier(device), [torch.zeros(3), torch.zeros(2)]
    for place, row in enumerate(rows):
        device.compute(row, place + 1.0)
    pending = copier.copy(rows)
    assert not device.waits and len(device.model) == 2, "nothing has run yet"
    for row in rows:
        device.reuse(row)
    found: list[tuple[Tensor, ...]] = []
    thread = threading.Thread(target=lambda: found.append(pending.take()))
    thread.start()
    thread.join()
    assert [copy.tolist() for copy in found[0]] == [[1.0] * 3, [2.0] * 2] and len(device.waits) == 1


def test_a_copy_waits_for_its_own_work_alone() -> None:
    device = Device()
    copier, first, second = HostCopier(device), torch.zeros(1), torch.zeros(1)
    device.compute(first, 1.0)
    pending = copier.copy([first])
    device.compute(second, 2.0)
    later = copier.copy([second])
    assert pending.take()[0].item() == 1.0 and len(device.model) == 1
    assert later.take()[0].item() == 2.0


def test_tensors_in_host_memory_are_handed_on() -> None:
    rows = torch.ones(2)
    (found,) = HostCopier.of(torch.device("cpu")).copy([rows]).take()
    assert found is rows


def test_cuda_is_asked_in_the_right_order_for_copies_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of CUDA, where there is none: event, copy on the side stream, `record_stream`, event."""
    calls: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device.index is not None

        def wait_stream(self, other: object) -> None:
            calls.append(f"side waits for {other}")

        def __enter__(self) -> None:
            calls.append("to side")

        def __exit__(self, *error: object) -> None:
            calls.append("back")

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking

        def record(self, stream: Stream) -> None:
            calls.append("mark side")

        def synchronize(self) -> None:
            calls.append("wait")

    class Pinned:
        device = torch.device("cpu")

        def copy_(self, source: object, non_blocking: bool) -> None:
            calls.append(f"copy {non_blocking}")

    class Rows:
        shape, dtype, device = (2,), torch.float32, torch.device("cuda", 1)

        def record_stream(self, stream: Stream) -> None:
            calls.append("keep for side")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the model's")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    real = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *shape, **named: Pinned() if named.get("pin_memory") else real(*shape, **named)
    )
    pending = HostCopier.of(torch.device("cuda", 1)).copy([Rows()])  # type: ignore[list-item]
    wanted = ["side waits for the model's", "to side", "copy True", "back", "keep for side", "mark side"]
    assert calls == wanted
    pending.take()
    assert calls == [*wanted, "wait"]


def test_cuda_is_asked_in_the_right_order_for_copies_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side stream waits for the model's and keeps what it writes; a reader waits for it and keeps it too."""
    calls: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device.index is not None

        def wait_stream(self, other: object) -> None:
            calls.append(f"side waits for {other}")

        def __enter__(self) -> None:
            calls.append("to side")

        def __exit__(self, *error: object) -> None:
            calls.append("from side")

    class Model:
        def wait_event(self, event: object) -> None:
            calls.append("model waits for event")

        def __str__(self) -> str:
            return "model"

    class Done:
        def __init__(self, blocking: bool) -> None:
            assert blocking

        def record(self, stream: object) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait")

    class Target:
        device = torch.device("cuda", 0)

        def copy_(self, source: object, non_blocking: bool) -> None:
            calls.append(f"copy {non_blocking}")

        def record_stream(self, stream: object) -> None:
            calls.append(f"keep for {'model' if isinstance(stream, Model) else 'side'}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Done)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Model())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    stream = CudaCopyStream(torch.device("cuda", 0))
    target = Target()
    stream.follow()
    stream.copy(torch.zeros(1), target)  # type: ignore[arg-type]
    event = stream.mark()
    event.join([target])  # type: ignore[list-item]
    event.wait()
    assert calls == [
        "side waits for model", "to side", "copy True", "from side", "keep for side", "record", "model waits for event",
        "keep for model", "wait",
    ]  # fmt: skip
