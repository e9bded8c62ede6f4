"""A log of what every operation on a window cost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emblema.errors import EmblemaError
from emblema.link.executor import LinkTrace
from emblema.session.requests import Usage

MOVING = ("slide", "evict", "reorder", "recall", "arrange", "restore")
"""Operations that change which parts are before parts with rows."""


@dataclass(slots=True)
class LogEntry:
    """One operation.

    Attributes:
        operation: its name.
        parts: numbers of the parts that it was about.
        forwards: prompts that ran through the decoder for it, without those that form patches and the answer's tokens.
        rows_computed: rows that ran through the decoder in their place, the question's among them.
        rows_taken: rows taken as they are kept.
        rows_forming: rows run to form patches.
        rows_recaptured: rows of chunks prefilled alone.
        rows_decoded: tokens of the answer.
        bytes_moved: bytes of KV and patches read, and of rows written.
        patches_formed: patches formed for it, before the answer or after it.
        encoder_runs: pieces of media that were encoded.
        seconds: how long it took, without the time that a streamed answer waits for its reader.
        lane: the strategy taken.
        refreshed: numbers of the parts whose rows were computed again.
        repaired: numbers of the parts whose rows were repaired.
        left: numbers of the parts that left the window.
        stale: for an operation that moves parts, numbers of those whose rows are stale afterwards.
        tokens: rows in the window afterwards.
        bytes: bytes that the window held afterwards.
        error: the error that it ended with; None for success.
    """

    operation: str
    parts: tuple[int, ...] = ()
    forwards: int = 0
    rows_computed: int = 0
    rows_taken: int = 0
    rows_forming: int = 0
    rows_recaptured: int = 0
    rows_decoded: int = 0
    bytes_moved: int = 0
    patches_formed: int = 0
    encoder_runs: int = 0
    seconds: float = 0.0
    lane: str = ""
    refreshed: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    tokens: int = 0
    bytes: int = 0
    error: str | None = None

    @property
    def rows_run(self) -> int:
        """All rows that the decoder ran for prompts, for any purpose, without the answer's tokens."""
        return self.rows_computed + self.rows_forming + self.rows_recaptured

    def count(self, usage: Usage, trace: LinkTrace) -> None:
        """Add the cost of a linked prompt."""
        self.forwards += 1
        self.bytes_moved += trace.bytes_read + trace.patch_bytes
        self.rows_computed += usage.computed_tokens
        self.rows_taken += usage.cached_tokens
        self.rows_forming += usage.forming_tokens
        self.rows_recaptured += usage.recaptured_tokens
        self.lane = usage.lane


@contextmanager
def logged(log: list[LogEntry], operation: str) -> Iterator[LogEntry]:
    """Add the operation's entry to the log when it is over, whether or not it failed."""
    entry = LogEntry(operation)
    began = time.perf_counter()
    try:
        yield entry
    except EmblemaError as error:
        entry.error = str(error)
        raise
    finally:
        entry.seconds += time.perf_counter() - began
        log.append(entry)
