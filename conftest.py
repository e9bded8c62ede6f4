"""Settings shared by all tests."""

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# `cpu`, or a device that torch finds; `fake` is one that needs none (tests/fake_device.py).
DEVICE = os.environ.get("EMBLEMA_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
elif DEVICE == "fake":
    from tests import fake_device

    fake_device.register()

# Stores write through to the disk thousands of times; in memory that takes a third of the time.
MEMORY, ROOM = Path("/dev/shm"), 8 * 2**30
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Small tensors on shared cores: one thread is several times faster than two.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)

# The same examples every time, so that a run says something about the change; `thorough` looks for new ones.
settings.register_profile(
    "emblema",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", parent=settings.get_profile("emblema"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "emblema"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without collecting garbage, and have later collections leave out what was imported.

    It is most of what there is, and stays until the end: half a second each time that a test collects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
