"""The doors by which media come: a file and a live source. What comes is whole, or refused by name; right is what each
generated file was made of, and what FFmpeg and Pillow make of it."""

import io
import random
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media.live import live_frames
from emblema.media.load import DocumentPages, LoadedMedia, load_media
from emblema.media.video import Video
from tests.media import doors, making
from tests.stream.live import camera

SOME, ALL = 8, 500
AMOUNTS = [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)]


def pictures_of(media: LoadedMedia) -> list[Image.Image]:
    if isinstance(media, Image.Image):
        return [media]
    assert isinstance(media, DocumentPages | Video)
    return list(media.pictures if isinstance(media, DocumentPages) else media.frames)


def assert_whole(media: LoadedMedia, handed: doors.Handed) -> None:
    """Check that media, a clip with a frame for each that it has, are all that was handed in."""
    found = pictures_of(media)
    assert len(found) == len(handed.pictures), f"{handed.said}: {len(found)} of {len(handed.pictures)}"
    assert all(doors.close(picture, right) for picture, right in zip(found, handed.pictures, strict=True)), handed.said
    kinds = {"picture": Image.Image, "pages": DocumentPages, "clip": Video}
    assert isinstance(media, kinds[handed.kind]), handed.said


@pytest.mark.parametrize("amount", AMOUNTS)
def test_files(amount: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for seed in range(amount):
        chance = random.Random(f"file {seed}")
        if chance.random() < 0.2:
            name = chance.choice(list(doors.UNREAD))
            path.write_bytes(doors.UNREAD[name](chance))
            with pytest.raises(MediaError, match=name):
                load_media(path, chance.choice([None, "image", "video"]))
            continue
        handed = doors.any_media(chance)
        path.write_bytes(handed.data)
        assert_whole(load_media(path, fps=1 / handed.seconds if handed.seconds else 1.0), handed)
        if handed.said.startswith("GIF"):
            continue  # One frame is a clip too, if a clip is asked for.
        wrong = {"picture": "video", "pages": "image", "clip": "image"}[handed.kind]
        with pytest.raises(MediaError, match="no clip|pages|animation|not a picture"):
            load_media(path, wrong)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_live_sources(amount: int) -> None:
    """A live source gives what a file of the same frames gives."""
    for seed in range(amount):
        chance = random.Random(f"live {seed}")
        width, height = 16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7)
        if chance.random() < 0.5:
            orientation, pixels = chance.randrange(1, 9), doors.scene(chance, width, height)
            made = making.recording([pixels] * 4, kind="mp4", movflags="frag_keyframe+empty_moov")
            data, right = making.with_matrix(made, orientation), [making.shown(pixels, orientation)] * 4
        else:
            other = (16 * chance.randrange(3, 7), 16 * chance.randrange(3, 7))
            first = [np.full((height, width, 3), 30 + 20 * index, np.uint8) for index in range(10)]
            second = [np.full((other[1], other[0], 3), 30 + 20 * index, np.uint8) for index in range(5, 10)]
            starts = chance.choice([(1, 1.5), (1, 200), (300, 1)])
            data, right = making.recording(first[:5], starts[0]) + making.recording(second, starts[1]), first
        with camera(lambda number, data=data: iter([data])) as source:
            frames = list(live_frames(source.url, 1000.0))
        times = [frame.seconds for frame in frames]
        assert times == sorted(times) and times[-1] < 20, seed
        # A frame that comes less than a thousandth after the one before is not kept: the first after a jump.
        assert len(right) - 1 <= len(frames) <= len(right), seed
        left = iter(right)
        assert all(any(doors.close(frame.picture, pixels) for pixels in left) for frame in frames), seed


def filtered(data: bytes) -> list[np.ndarray]:
    """Return a clip's frames as FFmpeg's own filters turn them, from the matrix of the first."""
    turns = {
        2: "hflip",
        3: "hflip,vflip",
        4: "vflip",
        5: "transpose=0",
        6: "transpose=1",
        7: "transpose=3",
        8: "transpose=2",
    }
    from emblema.media.orientation import frame_orientation

    with av.open(io.BytesIO(data)) as container:
        track = container.streams.video[0]
        frames = list(container.decode(track))
        names = turns.get(frame_orientation(frames[0]), "null").split(",")
        graph = av.filter.Graph()
        steps = [graph.add_buffer(template=track, time_base=track.time_base or Fraction(1, 10))]
        steps += [graph.add(*name.split("=")) for name in names] + [graph.add("buffersink")]
        for before, after in zip(steps, steps[1:], strict=False):
            before.link_to(after)
        graph.configure()
        found = []
        for frame in frames:
            graph.push(frame)
            found.append(graph.pull().to_ndarray(format="rgb24"))
        return found


@pytest.mark.parametrize("orientation", making.MATRICES)
def test_what_files_are_made_of_is_what_ffmpeg_shows(orientation: int) -> None:
    """The generator's own measure is held to FFmpeg's filters."""
    chance = random.Random(orientation)
    pixels = doors.scene(chance, 96, 64)
    clip = making.with_matrix(making.recording([pixels] * 3, kind="mp4"), orientation)
    assert all(doors.close(frame, making.shown(pixels, orientation)) for frame in filtered(clip))
