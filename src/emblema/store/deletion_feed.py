"""Deletions that every process with a store of its own hears of, in one order; and how long it may do without."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emblema.errors import EmblemaError, StoreError
from emblema.store.files import write_whole
from emblema.store.record import Name, is_id

_LOG = logging.getLogger(__name__)
_READS = 5
"""Times that a feed is read while what is kept here may be used without a reading."""
_REST_SECONDS = 10.0
"""Between two readings after an error that nobody foresaw."""
FIRST: Name = ("", "0" * 64)
"""A feed's first entry, which deletes nothing: a feed that was lost and made anew has another."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """What a feed has after a position.

    Attributes:
        names: owner and id of what was deleted, the oldest first.
        position: after the last of them; the feed's own text.
        gap: whether deletions after the given position may be missing.
    """

    names: Sequence[Name]
    position: str
    gap: bool = False


class DeletionFeed(Protocol):
    """A list of deletions that several processes write and read."""

    def publish(self, owner: str, id: str) -> None:
        """Add a deletion; every reading that begins after this returns has it.

        Raises:
            StoreError: it cannot be added.
        """

    def read(self, after: str | None) -> Deletions:
        """Return what was added after a position; only the position of now for None.

        Raises:
            StoreError: the feed does not answer.
        """

    def close(self) -> None:
        """Let go of connections and files."""


class Freshness:
    """Whether what is kept on this machine may be used: not when deletions may have been missed for too long.

    Without a bound it always may. With one, a piece may be used until half the bound after the last reading of the
    feed began, or for as long after the piece came to be here: a deletion is thus honoured within the whole bound.
    """

    def __init__(self) -> None:
        self._seconds, self._until = math.inf, math.inf

    def bound(self, seconds: float) -> None:
        """Set the bound; nothing that is here already is trusted before the first reading."""
        self._seconds, self._until = seconds / 2, -math.inf

    def renew(self, began: float) -> None:
        """Note a reading of the feed that began at a monotonic time and whose deletions were carried out."""
        self._until = began + self._seconds

    @property
    def current(self) -> bool:
        """Whether the feed was read lately."""
        return time.monotonic() < self._until

    def covers(self, arrived: float) -> bool:
        """Return whether a piece that came here at a monotonic time may be used."""
        return self.current or time.monotonic() < arrived + self._seconds


class FeedFollower:
    """Reads a feed in a thread of its own and carries deletions out here.

    Args:
        feed: to read; closed with this.
        freshness: is renewed by every reading.
        delete: deletes a piece in memory and on disk, here alone.
        forget: deletes everything here, where deletions were missed.
        seconds: within which a deletion is honoured.
        kept: file of the position, so that what was deleted while no process ran here is deleted at the next start.
    """

    def __init__(
        self,
        feed: DeletionFeed,
        freshness: Freshness,
        delete: Callable[[str, str], object],
        forget: Callable[[], None],
        seconds: float,
        kept: Path | None,
    ) -> None:
        self._feed, self._freshness, self._delete, self._forget = feed, freshness, delete, forget
        self._pause, self._kept, self._failing = seconds / 2 / _READS, kept, False
        self._position = _read_position(kept)
        self._closed = threading.Event()
        freshness.bound(seconds)
        self.catch_up()
        self._thread = threading.Thread(target=self._run, name="emblema-deletions", daemon=True)
        self._thread.start()

    def catch_up(self) -> bool:
        """Carry out what was deleted since the last reading; return whether the feed answered."""
        began = time.monotonic()
        try:
            found = self._feed.read(self._position)
            # What has no id was written by another version, and may delete anything.
            if found.gap or not all(is_id(id) for _, id in found.names):
                _LOG.warning("deletions of other processes were missed: everything that is kept here is deleted")
                self._forget()
            for owner, id in found.names:
                if is_id(id):
                    self._delete(owner, id)
            if found.position != self._position:
                self._keep(found.position)
        except (EmblemaError, OSError) as error:
            if not self._failing:
                _LOG.warning("deletions of other processes cannot be read, what is kept here rests: %s", error)
            self._failing = True
            return False
        self._failing = False
        self._freshness.renew(began)
        return True

    def _keep(self, position: str) -> None:
        if self._kept is not None:
            write_whole(self._kept, [position.encode()])
        self._position = position

    def _run(self) -> None:
        while not self._closed.wait(self._pause):
            try:
                self.catch_up()
            except Exception:
                # The thread has to go on: what is kept here rests until the feed is read again.
                _LOG.exception("deletions of other processes cannot be read, what is kept here rests")
                self._closed.wait(_REST_SECONDS)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()
        self._feed.close()


def _read_position(kept: Path | None) -> str | None:
    try:
        return None if kept is None else kept.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{kept} cannot be read ({error}): delete it with the rest of its folder") from error
