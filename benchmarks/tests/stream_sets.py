"""Small data sets of streams written by hand, with the fields that the real ones have and nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tests.data_sets import document


def video(path: Path) -> None:
    """A file in a video's place; readers of records do not open it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"video")


def rvs(root: Path) -> Path:
    """RVS-ego: times of questions, out of order; one video as an array, under the publisher's own path."""
    video(root / "videos" / "a.mp4")
    np.save(root / "videos" / "b.npy", np.arange(10 * 8 * 8 * 3, dtype=np.uint8).reshape(10, 8, 8, 3))
    told = {"question": "What is on the table?", "answer": "A cup."}
    return document(
        root / "ego4d_oe.json",
        [
            {
                "video_id": "a",
                "video_path": "data/rvs/ego/videos/a.mp4",
                "duration": 61.5,
                "conversations": [
                    {**told, "start_time": 30.0, "end_time": 60.5},
                    {**told, "start_time": 0, "end_time": 12},
                ],
            },
            {
                "video_id": "b",
                "video_path": "data/rvs/ego/videos/b.npy",
                "conversations": [{**told, "start_time": 1, "end_time": 4}],
            },
        ],
    )


def rekv(root: Path) -> Path:
    """ReKV's form of a data set with choices: questions without times."""
    video(root / "videos" / "m.mp4")
    asked = {"question": "Which?", "choices": ["oak", "elm"], "answer": "elm", "question_type": "plotQA"}
    return document(
        root / "dev_debug_mc.json",
        [
            {
                "video_id": "m",
                "video_path": "videos/m.mp4",
                "duration": 480,
                "conversations": [asked, {**asked, "temporal_windows": [[3, 9.5]]}],
            }
        ],
    )


def mlvu(root: Path) -> Path:
    """MLVU: a task's file, its videos in the task's folder."""
    video(root / "video" / "2_needle" / "needle_1.mp4")
    asked = {"video": "needle_1.mp4", "duration": 99.25, "question": "What colour?", "question_type": "needle"}
    return document(
        root / "json" / "2_needle.json",
        [
            {**asked, "candidates": ["Red", "Blue"], "answer": "Blue"},
            {**asked, "candidates": ["Red", "Pink"], "answer": "Red"},
        ],
    )


def longvideobench(root: Path) -> Path:
    """LongVideoBench: its validation file."""
    video(root / "videos" / "v1.mp4")
    return document(
        root / "lvb_val.json",
        [
            {
                "video_id": "v1",
                "video_path": "v1.mp4",
                "id": "v1_0",
                "question": "Who sits there?",
                "candidates": ["a man", "a dog", "nobody"],
                "correct_choice": 1,
                "question_category": "S2E",
                "duration": 190.2,
                "subtitle_path": "v1_en.json",
                "view_count": 7,
            }
        ],
    )


def video_mme(root: Path) -> Path:
    """Video-MME by video."""
    video(root / "data" / "001.mp4")
    return document(
        root / "videomme.json",
        [
            {
                "video_id": "001",
                "duration": "short",
                "questions": [
                    {
                        "question_id": "001-1",
                        "task_type": "Counting Problem",
                        "question": "How many?",
                        "options": ["A. One.", "B. Two.", "C. Three.", "D. Four."],
                        "answer": "C",
                    }
                ],
            }
        ],
    )


STREAM_SETS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "rvs": ("rekv", rvs),
    "rekv": ("rekv", rekv),
    "mlvu": ("mlvu", mlvu),
    "longvideobench": ("longvideobench", longvideobench),
    "video-mme": ("video-mme", video_mme),
}
