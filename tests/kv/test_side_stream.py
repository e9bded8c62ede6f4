"""What CUDA is asked where there is none: order, and that the block's work is waited for whatever happens in it."""

import pytest
import torch

from emblema.kv.side_stream import beside_model


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
