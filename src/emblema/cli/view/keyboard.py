"""Lines typed while something else is written to the same terminal."""

import codecs
import os
import queue
import re
import select
import sys
import termios
import threading
import tty
from typing import Self

END = "\x04"
ERASE, CLEAR, WORD = ("\x7f", "\b"), "\x15", "\x17"

SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?")
"""What arrows and other special keys send."""


class Keyboard:
    """Reads a terminal on a thread, key by key, without echo; the terminal is set back at the end.

    Attributes:
        line: what has been typed of the next line.
    """

    def __init__(self) -> None:
        self.line = ""
        self._descriptor = sys.stdin.fileno()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._read, name="keyboard", daemon=True)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        self._thread.join()
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def next(self, wait: bool) -> str | None:
        """Return the next line; None if there is none, or none will come any more."""
        while True:
            try:
                # With a timeout, so that Ctrl-C is noticed.
                return self._lines.get(timeout=0.1) if wait else self._lines.get_nowait()
            except queue.Empty:
                if not wait:
                    return None

    def _read(self) -> None:
        while not self._leaving.is_set():
            ready, _, _ = select.select([self._descriptor], [], [], 0.05)
            if not ready:
                continue
            held = os.read(self._descriptor, 1024)
            if not held:
                self._lines.put(None)
                return
            for key in SEQUENCE.sub("", self._decoder.decode(held)):
                self._take(key)

    def _take(self, key: str) -> None:
        if key in "\r\n":
            self._lines.put(self.line.strip())
            self.line = ""
        elif key == END:
            if not self.line:
                self._lines.put(None)
        elif key in ERASE:
            self.line = self.line[:-1]
        elif key == CLEAR:
            self.line = ""
        elif key == WORD:
            self.line = "".join(self.line.rstrip().rpartition(" ")[:2])
        elif key.isprintable():
            self.line += key
