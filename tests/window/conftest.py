"""The bundled model, loaded once, a few pictures of its world, and an engine of each module's own."""

import pytest

from emblema import Engine
from tests.engine.conftest import episode, reference
from tests.families import loaded

__all__ = ["episode", "made", "reference"]


@pytest.fixture(scope="module")
def made() -> Engine:
    """An engine of its own: what is deleted here is nobody else's."""
    item = loaded("qwen2_5_vl")
    return Engine(item.model, item.bundle)
