"""Commands of these tests run in the tests' own process; `tests/e2e` runs some in a process of their own."""

import pytest

from tests.cli.running import Command, emblema


@pytest.fixture
def run() -> Command:
    """Return what runs a command."""
    return emblema
