"""What a model computes by has a digest, which is made again when that changes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from emblema.models import fingerprint as module
from emblema.models.fingerprint import WatchedWeights, fingerprint
from tests import families as matrix


def test_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    model, _ = matrix.CASES["llava"].build(0)
    same, _ = matrix.CASES["llava"].build(0)
    first = fingerprint(model)
    assert len(first) == 64
    assert first == fingerprint(same)
    same.config._name_or_path = "somewhere/else"
    same.save_pretrained(tmp_path)
    assert first == fingerprint(same)
    with torch.no_grad():
        same.lm_head.weight[3, 5] += 1e-3
    assert first != fingerprint(same)
    model.config.text_config.rms_norm_eps = 1e-3
    assert first != fingerprint(model)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Models whose contents were read."""
    found: list[nn.Module] = []

    def reading(model: nn.Module) -> str:
        found.append(model)
        return fingerprint(model)

    monkeypatch.setattr(module, "fingerprint", reading)
    return found


def change(model: nn.Linear) -> None:
    with torch.no_grad():
        model.weight[0, 0] += 1.0


def test_contents_are_read_again_when_they_changed(read: list[nn.Module]) -> None:
    model = nn.Linear(2, 2)
    watched = WatchedWeights(model)
    first, stamp = watched.digest(), watched.stamp()
    assert watched.digest() == first == fingerprint(model) and watched.stamp() == stamp and len(read) == 1
    change(model)
    assert watched.stamp() != stamp and watched.digest() != first and len(read) == 2


def test_within_a_block_without_changes_nobody_looks_for_any(
    read: list[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2)
    watched = WatchedWeights(model)
    with pytest.raises(RuntimeError, match="within"), watched.unchanging():
        first = watched.digest()
        with monkeypatch.context() as patch, watched.unchanging():
            patch.setattr(WatchedWeights, "stamp", lambda own: pytest.fail("it looked"))
            assert watched.digest() == first
        raise RuntimeError("within")
    change(model)
    with watched.unchanging():
        assert watched.digest() != first and len(read) == 2
