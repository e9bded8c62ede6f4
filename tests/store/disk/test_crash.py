"""Nothing that was acknowledged is lost, and nothing half-written is served, when the writer is killed."""

import random
from pathlib import Path

import pytest

from tests.store.disk.crash import run


@pytest.mark.nightly
def test_twenty_kills(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    report = run(tmp_path / "store", 20, seed)
    assert report.rounds == 20
    assert report.operations > 100
    assert report.pieces_checked > 100
