"""What CUDA is asked where there is none: where kernels are launched, and work beside the model."""

from contextlib import nullcontext

import pytest
import torch

from emblema.kv.device import beside_model, launching_on


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device.index is not None

        def wait_stream(self, other: object) -> None:
            noted.append(f"behind {other}")

        def synchronize(self) -> None:
            noted.append("wait")

        def __enter__(self) -> None:
            noted.append("to side")

        def __exit__(self, *error: object) -> None:
            noted.append("back")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "the model's")
    return noted


def test_a_block_begins_behind_the_model_and_is_waited_for(calls: list[str]) -> None:
    with beside_model(torch.device("cuda", 0)):
        calls.append("work")
    assert calls == ["behind the model's", "to side", "work", "back", "wait"]


def test_what_a_failed_block_told_is_waited_for_too(calls: list[str]) -> None:
    with pytest.raises(ValueError, match="broken"), beside_model(torch.device("cuda", 0)):
        raise ValueError("broken")
    assert calls == ["behind the model's", "to side", "back", "wait"]


def test_elsewhere_nothing_is_asked(calls: list[str]) -> None:
    with beside_model(torch.device("cpu")):
        calls.append("work")
    assert calls == ["work"]
