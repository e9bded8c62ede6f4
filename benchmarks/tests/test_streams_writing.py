"""Generated streams written as videos, with their questions beside them."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tasks.streams import FRAME_SECONDS, generate, questions_of
from benchmarks.tasks.streams.writing import write_streams
from emblema.errors import PromptError
from emblema.media.video import sample_frames


def test_generated_streams_are_written_with_their_questions(tmp_path: Path) -> None:
    drawn = [
        (stream, questions_of(stream, (12, 24))) for kind in ("ego", "live") for stream in generate(kind, 24, 2, 1)
    ]
    entries = json.loads(write_streams(drawn, tmp_path).read_text())
    assert [entry["video_id"] for entry in entries] == [stream.id for stream, _ in drawn]
    for (stream, questions), entry in zip(drawn, entries, strict=True):
        assert [
            (asked["question"], asked["answer"], asked["end_time"], asked["question_type"], asked["temporal_windows"])
            for asked in entry["conversations"]
        ] == [
            (q.text, q.answer, q.seconds, q.kind, [[begin * 2.0, end * 2.0] for begin, end in q.evidence])
            for q in sorted(questions, key=lambda question: question.at)
        ]
        assert entry["duration"] == 48.0
        shown = list(sample_frames(tmp_path / entry["video_path"], 1 / FRAME_SECONDS))
        assert [time for time, _ in shown] == [2.0 * place for place in range(24)]
        for (_, read), own in zip(shown, stream.frames(), strict=True):
            assert np.abs(np.asarray(own, dtype=float) - np.asarray(read, dtype=float)).mean() < 4


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (stream,) = generate("ego", 8, 0, 1)
    with pytest.raises(PromptError, match="two streams"):
        write_streams([(stream, ()), (stream, ())], tmp_path)
    with pytest.raises(PromptError, match="no streams"):
        write_streams([], tmp_path)
