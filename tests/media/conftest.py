"""Small media made on the spot."""

import io
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.media.sites import Handler, Site


@pytest.fixture
def picture() -> Image.Image:
    """48x32, every pixel of its own colour."""
    rows, columns = np.mgrid[0:32, 0:48]
    return Image.fromarray(np.stack([rows * 8, columns * 5, (rows + columns) * 3], axis=2).astype(np.uint8))


@pytest.fixture
def encode() -> Callable[..., bytes]:
    def run(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    return run


@pytest.fixture
def clip(tmp_path: Path) -> Callable[..., bytes]:
    """A clip whose frame i has brightness 12 i; `times` in hundredths of a second give it an uneven rate."""

    def run(
        frames: int = 20, rate: int = 10, kind: str = "mp4", times: list[int] | None = None, **options: str
    ) -> bytes:
        path = tmp_path / "written-clip"
        with av.open(str(path), "w", format=kind, options=options) as container:
            stream = container.add_stream("mpeg4", rate=rate, options={"qscale": "2"})
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            if times is not None:
                stream.codec_context.time_base = Fraction(1, 100)
            container.start_encoding()
            for index in range(frames):
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), min(255, 12 * index), np.uint8), "rgb24")
                if times is not None:
                    frame.pts, frame.time_base = times[index], Fraction(1, 100)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path.read_bytes()

    return run


@pytest.fixture
def tone() -> Callable[..., bytes]:
    """A 440 Hz tone in two channels."""

    def run(seconds: float = 1.0, rate: int = 44_100, kind: str = "wav", codec: str = "pcm_s16le") -> bytes:
        wave = np.sin(np.arange(int(seconds * rate)) * 2 * np.pi * 440 / rate) * 0.5
        samples = np.repeat((wave * 32_767).astype(np.int16)[None], 2, axis=0)
        buffer = io.BytesIO()
        with av.open(buffer, "w", format=kind) as container:
            stream = container.add_stream(codec, rate=rate, layout="stereo")
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T.reshape(1, -1)), "s16", "stereo")
            frame.rate = rate
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return buffer.getvalue()

    return run


@pytest.fixture
def site(picture: Image.Image, encode: Callable[..., bytes]) -> Iterator[Site]:
    with Site(("127.0.0.1", 0), Handler) as server:
        server.picture = encode(picture)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
