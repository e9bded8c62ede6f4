"""Time stamps of frames as seconds that never go back."""

from __future__ import annotations

JUMP_SECONDS = 5.0
"""Time stamps that run ahead of the clock on the wall by so much from one frame to the next have jumped."""


class FrameClock:
    """Turns the time stamps of a source into seconds since its first frame.

    The seconds follow the stamps. Where these jump, or are missing, the time by another clock is taken in their place:
    the one on the wall for a live source, so that a network that hesitates changes nothing; for a file the sum of its
    frames' durations.

    Args:
        ahead: seconds by which a stamp may run ahead of the other clock, without having jumped.
        behind: seconds by which a stamp may lie before the last one; such a frame comes at once after the last.

    Attributes:
        jumps: how often the stamps jumped.
    """

    def __init__(self, ahead: float = JUMP_SECONDS, behind: float = 0.0) -> None:
        self.jumps = 0
        self._ahead, self._behind = ahead, behind
        self._seconds = 0.0
        self._last: tuple[float | None, float] | None = None

    def seconds(self, stamp: float | None, arrived: float) -> float:
        """Return seconds since the first frame for one with a time stamp that came at `arrived`; both in seconds."""
        if self._last is not None:
            before, came = self._last
            elapsed = max(0.0, arrived - came)
            step = elapsed if stamp is None or before is None else stamp - before
            if not -self._behind <= step <= elapsed + self._ahead:
                self.jumps += 1
                step = elapsed
            if step < 0:
                self._last = before, arrived
                return self._seconds
            self._seconds += step
        self._last = stamp, arrived
        return self._seconds
