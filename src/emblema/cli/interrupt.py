"""Ctrl-C while a command starts: the process ends at once.

Modules that are being imported, above all those in C, answer an exception with tracebacks of their own.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT
_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """Have Ctrl-C end the process at once, until `raise_on_interrupt` is called or the block ends.

    Whoever started the process with Ctrl-C handled otherwise keeps that.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_on_interrupt() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` from now on: what is begun now is ended in order."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"emblema: interrupted\n")
    os._exit(INTERRUPTED)
