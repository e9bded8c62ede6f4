"""An engine of each module's own."""

import pytest

from emblema import Engine
from tests.families import loaded


@pytest.fixture(scope="module")
def made() -> Engine:
    """An engine of its own: what is deleted here is nobody else's."""
    item = loaded("qwen2_5_vl")
    return Engine(item.model, item.bundle)
