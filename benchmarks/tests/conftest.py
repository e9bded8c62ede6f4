"""What files of tests share."""

from collections.abc import Iterator

import pytest

from emblema.engine.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Hold the bundled model, with a store of its own for each file of tests."""
    with Engine.load("reference") as loaded:
        yield loaded
