"""A record of what lies on a device is made by copies on a stream of their own, which are waited for once."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from emblema.kv.device import default_device
from emblema.kv.device_copies import HostCopier
from emblema.store.codec import make_record
from emblema.store.record import RecordHeader


class SideStream:
    """A stream for copies that notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def follow(self) -> None:
        self.calls.append("follow")

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.calls.append("copy")
        target.copy_(source)

    def mark(self) -> "SideStream":
        return self

    def wait(self) -> None:
        self.calls.append("wait")


def test_a_record_waits_once_for_all_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SideStream()
    monkeypatch.setattr(HostCopier, "of", classmethod(lambda cls, device: cls(stream)))
    on_cpu = {"first": torch.arange(6.0).reshape(2, 3).T, "second": torch.ones(2, dtype=torch.bfloat16)}
    header = RecordHeader("0" * 64, "chunk", "owner", "model", (), 0.0, {})
    plain = make_record(header, on_cpu)
    assert stream.calls == []
    record = make_record(header, {name: tensor.to(default_device()) for name, tensor in on_cpu.items()})
    assert stream.calls == ["follow", "copy", "copy", "wait"]
    assert record.header == plain.header
    assert {name: bytes(array.data) for name, array in record.arrays.items()} == {
        name: bytes(array.data) for name, array in plain.arrays.items()
    }
