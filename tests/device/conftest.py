"""These tests need a device beside the CPU: EMBLEMA_TEST_DEVICE=fake stands in for one."""

import pytest

from emblema.kv.device import default_device


@pytest.fixture(autouse=True)
def _a_device() -> None:
    if default_device().type == "cpu":
        pytest.skip("there is no device but the CPU: set EMBLEMA_TEST_DEVICE=fake")
