"""A stream that saves itself does after so many blocks or seconds, counted from its first frame or its last save."""

from typing import Any

import pytest

from emblema.stream.save_schedule import SaveSchedule
from emblema.stream.settings import StreamSettings


def saves(frames: int, loaded_at: float | None = None, **every: Any) -> list[int]:
    """Return after which blocks of two frames, one a second, a stream is saved."""
    schedule = SaveSchedule(StreamSettings(save_as="walk", **every))
    times = [float(number) for number in range(100, 100 + frames)]
    if loaded_at is not None:
        schedule.note_save(loaded_at)
    found = []
    for block in range(1, frames // 2 + 1):
        seen = times[: 2 * block]
        if schedule.is_due(seen):
            found.append(block)
            schedule.note_save(seen[-1])
    return found


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ({"save_blocks": 3}, [3, 6, 9]),
        ({"save_blocks": None, "save_seconds": 5.0}, [3, 6, 9]),
        ({"save_blocks": 2, "save_seconds": 5.0}, [2, 4, 6, 8, 10]),
        ({"save_blocks": 99, "save_seconds": 7.0}, [4, 8]),
    ],
    ids=str,
)
def test_it_is_due_after_so_many_blocks_or_seconds(every: dict[str, Any], expected: list[int]) -> None:
    assert saves(20, **every) == expected


def test_a_stream_that_was_loaded_counts_from_its_last_frame() -> None:
    assert saves(12, save_blocks=None, save_seconds=5.0, loaded_at=97.0) == [2, 5]
