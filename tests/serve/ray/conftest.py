"""Pictures for replicas."""

import pytest

from tests.serve.sent import noise


@pytest.fixture
def picture():
    """Return what makes a small picture of a number, as PNG."""
    return lambda number: noise(number, 56)
