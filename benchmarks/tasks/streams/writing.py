"""Generated streams written as videos, with their timed questions in the form that ReKV's data sets have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.tasks.episodes import write_frames
from benchmarks.tasks.streams.world import FRAME_SECONDS, GeneratedStream, TimedQuestion

LISTING = "streams.json"
VIDEOS = "videos"
RATE = Fraction(1, int(FRAME_SECONDS))


def write_streams(streams: Iterable[tuple[GeneratedStream, Sequence[TimedQuestion]]], out: Path) -> Path:
    """Write streams and their questions in ReKV's form; returns the file of records, `streams.json`.

    Videos are H.264 at half a frame a second, `videos/<id>.mp4`: read at that rate they give every frame once.
    """
    (out / VIDEOS).mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for stream, questions in streams:
        file = f"{VIDEOS}/{stream.id}.mp4"
        write_frames(stream.frames(), stream.frame(0).size, out / file, RATE, "yuv444p", {"crf": "12", "g": "32"})
        asked = [_record(question) for question in sorted(questions, key=lambda question: question.at)]
        length = len(stream) * FRAME_SECONDS
        entries.append({"video_id": stream.id, "video_path": file, "duration": length, "conversations": asked})
    listing = out / LISTING
    listing.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return listing


def _record(question: TimedQuestion) -> dict[str, Any]:
    return {
        "question": question.text,
        "answer": question.answer,
        "end_time": question.seconds,
        "question_type": question.kind,
        "temporal_windows": [[frame * FRAME_SECONDS for frame in span] for span in question.evidence],
    }
