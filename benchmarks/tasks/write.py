"""Episodes on disk: pictures as PNG, clips as H.264 video, and episodes.jsonl with questions and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.tasks.generate import generate
from benchmarks.tasks.world import Clip, Episode, Legend, Page

CLIP_RATE = 2


def write_clip(clip: Clip, path: Path) -> None:
    """Write a clip as an mp4 of CLIP_RATE frames a second; read at one frame a second it gives two frames a scene."""
    frames = clip.frames(CLIP_RATE)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=CLIP_RATE)
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "20", "g": str(clip.seconds * CLIP_RATE)}
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        container.mux(stream.encode())


def write_page(page: Page, path: Path) -> Path:
    """Write a page beside `path` with the suffix its kind has; returns the file."""
    if isinstance(page, Clip):
        written = path.with_suffix(".mp4")
        write_clip(page, written)
    else:
        written = path.with_suffix(".png")
        page.image().save(written, optimize=True)
    return written


def kind_of(page: Page) -> str:
    """legend, map or clip."""
    return "clip" if isinstance(page, Clip) else "legend" if isinstance(page, Legend) else "map"


def record(episode: Episode, files: list[str]) -> dict[str, Any]:
    """The line of an episode: files in prompt order with their kinds, and its questions with the pages each needs."""
    return {
        "task": episode.task,
        "seed": episode.seed,
        "item": episode.item,
        "pages": [{"file": file, "kind": kind_of(page)} for file, page in zip(files, episode.pages, strict=True)],
        "questions": [
            {"kind": each.kind, "text": each.text, "answer": each.answer, "pages": list(each.pages)}
            for each in episode.questions
        ],
    }


def write_episodes(task: str, seed: int, items: int, out: Path) -> Path:
    """Write `items` fresh episodes of a task under `out`; returns the path of episodes.jsonl.

    Files are named relative to it.
    """
    episodes = generate(task, seed, items)
    out.mkdir(parents=True, exist_ok=True)
    listing = out / "episodes.jsonl"
    with listing.open("w", encoding="utf-8") as lines:
        for episode in episodes:
            folder = out / f"{task}-{seed}-{episode.item:04d}"
            folder.mkdir(exist_ok=True)
            files = [
                write_page(page, folder / f"page-{index:02d}").relative_to(out).as_posix()
                for index, page in enumerate(episode.pages)
            ]
            lines.write(json.dumps(record(episode, files)) + "\n")
    return listing
