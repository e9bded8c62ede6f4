"""A disk tier whose failures a test decides."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.tiers import FaultyDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    yield FaultyDisk(tmp_path / "store")
