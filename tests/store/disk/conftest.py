"""A tier whose clock shows the same time until it is set."""

from pathlib import Path

import pytest

from emblema.store.disk import DiskTier
from tests.store.disk.records import MEBIBYTE, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tier(tmp_path: Path, clock: Clock) -> DiskTier:
    return DiskTier(tmp_path, MEBIBYTE, clock=clock)
