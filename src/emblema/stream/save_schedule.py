"""When a stream that saves itself does: after so many blocks, or so many seconds of its frames."""

from collections.abc import Sequence

from emblema.stream.settings import StreamSettings


class SaveSchedule:
    """Counts what has come since the last save.

    Args:
        settings: `save_blocks` and `save_seconds` say when to save.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._blocks = 0
        # Time of the last frame when the stream was saved; None before.
        self._saved_at: float | None = None

    def is_due(self, times: Sequence[float]) -> bool:
        """Count a block; return whether the stream is to be saved after it. It is counted from the first frame on.

        Args:
            times: of all frames, the block's included.
        """
        if self._saved_at is None:
            self._saved_at = times[0]
        self._blocks += 1
        blocks, seconds = self._settings.save_blocks, self._settings.save_seconds
        if blocks is not None and self._blocks >= blocks:
            return True
        return seconds is not None and times[-1] - self._saved_at >= seconds

    def note_save(self, at: float) -> None:
        """Begin to count again; the last frame that was saved came at this time."""
        self._blocks, self._saved_at = 0, at
