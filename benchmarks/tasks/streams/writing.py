"""Generated streams written as videos, with their timed questions in the form that ReKV's data sets have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.tasks.episodes import write_frames
from benchmarks.tasks.streams.world import FRAME_SECONDS, GeneratedStream, TimedQuestion
from emblema.errors import PromptError

LISTING = "streams.json"
VIDEOS = "videos"


def write_streams(streams: Iterable[tuple[GeneratedStream, Sequence[TimedQuestion]]], out: str | Path) -> Path:
    """Write streams and their questions in ReKV's form; returns the file of records, `streams.json`.

    Videos are H.264 at half a frame a second, `videos/<id>.mp4`: read at that rate they give every frame once.

    Raises:
        PromptError: there are no streams, or two have one name.
    """
    folder = Path(out)
    entries: list[dict[str, Any]] = []
    for stream, questions in streams:
        if any(entry["video_id"] == stream.id for entry in entries):
            raise PromptError(f"two streams are called {stream.id}")
        (folder / VIDEOS).mkdir(parents=True, exist_ok=True)
        file = f"{VIDEOS}/{stream.id}.mp4"
        rate = Fraction(1, int(FRAME_SECONDS))
        write_frames(stream.frames(), stream.frame(0).size, folder / file, rate, "yuv444p", {"crf": "12", "g": "32"})
        entries.append(
            {
                "video_id": stream.id,
                "video_path": file,
                "duration": len(stream) * FRAME_SECONDS,
                "conversations": [
                    {
                        "question": question.text,
                        "answer": question.answer,
                        "end_time": question.seconds,
                        "question_type": question.kind,
                        "temporal_windows": [[frame * FRAME_SECONDS for frame in span] for span in question.evidence],
                    }
                    for question in sorted(questions, key=lambda question: question.at)
                ],
            }
        )
    if not entries:
        raise PromptError("there are no streams to write")
    listing = folder / LISTING
    listing.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return listing
