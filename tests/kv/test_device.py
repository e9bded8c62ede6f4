"""Kernels of others than torch are launched where their memory is."""

from contextlib import nullcontext

import pytest
import torch

from emblema.kv.device import launching_on


@pytest.mark.parametrize(("place", "count", "entered"), [("cpu", 2, []), ("cuda:1", 1, []), ("cuda:1", 2, ["cuda:1"])])
def test_a_device_is_made_current_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, place: str, count: int, entered: list[str]
) -> None:
    asked: list[str] = []

    def current(device: torch.device) -> nullcontext[None]:
        asked.append(str(device))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "device", current)
    with launching_on(torch.device(place)):
        pass
    assert asked == entered
