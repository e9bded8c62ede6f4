"""What every operation on a window cost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emblema.errors import EmblemaError
from emblema.link.trace import Trace, Usage


@dataclass(slots=True)
class Entry:
    """One operation.

    Attributes:
        operation: its name.
        parts: numbers of the parts that it was about.
        forwards: prompts that ran through the decoder for it; those that form patches and the answer's tokens aside.
        rows_computed: rows that ran through the decoder in their place, the question's among them.
        rows_taken: rows set in as they are kept.
        rows_forming: rows run to form patches.
        rows_recaptured: rows of chunks prefilled alone.
        rows_decoded: tokens of the answer.
        bytes_moved: bytes of KV and patches read, and of rows written away.
        patches_formed: patches formed for it, before the answer or behind it.
        encoder_runs: pieces of media that were encoded.
        seconds: how long it took; while a streamed answer waits for its reader it stands still.
        lane: the strategy taken.
        refreshed: numbers of the parts whose rows were formed anew.
        repaired: numbers of the parts whose rows were repaired.
        left: numbers of the parts that left the window.
        stale: of what moves parts, numbers of those whose rows were written behind something else than stands before
            them afterwards.
        tokens: rows in the window afterwards.
        bytes: bytes that the window held afterwards.
        error: the error that it ended with; None for what was done.
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
        """All rows that the decoder ran for a prompt, whatever for; the answer's own tokens aside."""
        return self.rows_computed + self.rows_forming + self.rows_recaptured

    def spent(self, usage: Usage, trace: Trace) -> None:
        """Count a linked prompt."""
        self.forwards += 1
        self.bytes_moved += trace.bytes_read + trace.patch_bytes
        self.rows_computed += usage.computed_tokens
        self.rows_taken += usage.cached_tokens
        self.rows_forming += usage.forming_tokens
        self.rows_recaptured += usage.recaptured_tokens
        self.lane = usage.lane


@contextmanager
def timed(log: list[Entry], operation: str) -> Iterator[Entry]:
    """Add the operation's entry to the log when it is over, whatever came of it."""
    entry = Entry(operation)
    began = time.perf_counter()
    try:
        yield entry
    except EmblemaError as error:
        entry.error = str(error)
        raise
    finally:
        entry.seconds += time.perf_counter() - began
        log.append(entry)
