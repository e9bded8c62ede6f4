"""Videos made on the spot."""

from pathlib import Path

import av
import numpy as np


def write_video(path: Path, size: tuple[int, int] = (64, 48), frames: int = 20, **options: str) -> None:
    """Ten frames a second, each of another brightness."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=10, options={"qscale": "2"})
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for index in range(frames):
            pixels = np.full((size[1], size[0], 3), min(255, 12 * index), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())


def write_cut_video(path: Path) -> None:
    """Four seconds promised, two thirds of the file there."""
    write_video(path, frames=40, movflags="faststart")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])


def write_walk(folder: Path) -> Path:
    """Write a generated stream of 48 frames, one every two seconds."""
    from benchmarks.tasks.streams import generate
    from benchmarks.tasks.streams.writing import write_streams

    write_streams(((stream, ()) for stream in generate("ego", 48, 3, 1)), folder)
    return next(folder.rglob("*.mp4"))
