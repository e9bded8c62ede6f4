"""A thread that does one piece of work after another."""

import threading
from functools import partial

import pytest
import torch

from emblema.errors import EmblemaError
from emblema.served.work_thread import WorkThread


def fail(error: Exception) -> None:
    raise error


def test_pieces_are_done_in_order_and_an_error_ends_none(caplog: pytest.LogCaptureFixture) -> None:
    thread, done = WorkThread("test", "it was left undone"), list[int]()
    for number in range(100):
        thread.put(partial(done.append, number))
    thread.put(lambda: fail(EmblemaError("the store is gone")))
    thread.put(lambda: fail(ZeroDivisionError("oh")))
    thread.put(lambda: done.append(int(torch.is_inference_mode_enabled()) + 100))
    thread.drain()
    assert done == [*range(100), 101]
    expected, unexpected = caplog.records
    assert expected.getMessage() == "emblema: it was left undone: the store is gone" and not expected.exc_info
    assert unexpected.getMessage() == "emblema: it was left undone: oh" and unexpected.exc_info
    thread.put(partial(done.append, 0))
    thread.close()
    assert done[-1] == 0 and not any(each.name == "test" for each in threading.enumerate())


def test_closing_waits_no_longer_than_it_may() -> None:
    thread, going = WorkThread("test", ""), threading.Event()
    thread.put(lambda: fail(ValueError()) if not going.wait(60) else None)
    thread.close(0.01)
    assert not going.is_set()
    going.set()
    thread.close()
