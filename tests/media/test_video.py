import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_video, media_bytes, sample_frames, segments
from emblema.media.video import Video

Clip = Callable[..., bytes]


def shades(video: Video) -> list[int]:
    """Which frame of the made clip each kept one is."""
    return [round(frame.getpixel((20, 20))[0] / 12) for frame in video.frames]


@pytest.mark.parametrize("kind", ["mp4", "matroska", "avi"])
@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        (1, [0, 10]),
        (2, [0, 5, 10, 15]),
        (10, list(range(20))),
        (20, [number // 2 for number in range(40)]),
        (2.5, [0, 4, 8, 12, 16]),
        (0.1, [0]),
    ],
)
def test_frames_are_sampled_by_time(clip: Clip, kind: str, fps: float, expected: list[int]) -> None:
    video = load_video(clip(kind=kind), fps)
    assert shades(video) == expected
    assert video.times == pytest.approx([index / fps for index in range(len(expected))])
    assert video.frames[0].mode == "RGB"
    assert video.frames[0].size == (64, 48)


def test_a_clip_of_uneven_rate_keeps_its_pace(clip: Clip) -> None:
    video = load_video(clip(frames=4, rate=100, times=[0, 10, 300, 310], kind="matroska"), 1)
    assert shades(video) == [0, 1, 1, 2]
    assert video.times == [0, 1, 2, 3]


def test_path_and_bytes_give_the_same_video(clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(clip())
    assert (
        media_bytes(load_video(path, 2)) == media_bytes(load_video(str(path), 2)) == media_bytes(load_video(clip(), 2))
    )


def test_canonical_bytes_hold_times_and_frames(clip: Clip) -> None:
    video = load_video(clip(), 2)
    later = Video(video.frames, [time + 1 for time in video.times])
    fewer = Video(video.frames[:-1], video.times[:-1])
    assert len({media_bytes(video), media_bytes(later), media_bytes(fewer), media_bytes(video.frames[0])}) == 4


def test_segments_cover_the_video(clip: Clip) -> None:
    video = load_video(clip(), 2.5)
    parts = list(segments(video, 2))
    assert [len(part.frames) for part in parts] == [2, 2, 1]
    assert list(itertools.chain.from_iterable(part.times for part in parts)) == video.times
    assert parts[1].seconds_per_frame == pytest.approx(0.4)
    for count in (0, 2.0, 1.5, None, "2"):
        with pytest.raises(MediaError, match="segment"):
            next(segments(video, count))  # type: ignore[arg-type]


def test_frames_come_one_at_a_time(clip: Clip) -> None:
    frames = sample_frames(clip(frames=30), 10)
    assert [time for time, _ in itertools.islice(frames, 3)] == pytest.approx([0, 0.1, 0.2])
    frames.close()


def test_a_clip_filmed_sideways_is_turned_upright(clip: Clip) -> None:
    data = clip(frames=2)
    unit = bytes.fromhex("00010000 00000000 00000000 00000000 00010000 00000000 00000000 00000000 40000000")
    quarter = bytes.fromhex("00000000 00010000 00000000 ffff0000 00000000 00000000 00000000 00000000 40000000")
    track = data.index(unit, data.index(b"tkhd"))
    turned = load_video(data[:track] + quarter + data[track + len(unit) :])
    assert turned.frames[0].size == (48, 64)


def test_what_is_no_video(clip: Clip, tone: Clip, tmp_path: Path, picture: Image.Image) -> None:
    (tmp_path / "empty.mp4").touch()
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(clip())
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{secret}\n#EXT-X-ENDLIST\n".encode()
    listing = f"ffconcat version 1.0\nfile {secret}\n".encode()
    for source, message in [
        (tone(), "no video"),
        (b"no video at all" * 100, "another kind"),
        (bytes(5000), "another kind"),
        (playlist, "another kind"),
        (listing, "another kind"),
        (f"concat:{secret}", "no file"),
        (f"file://{secret}", "file"),
        (tmp_path / "none.mp4", "no file"),
        (tmp_path, "folder"),
        (tmp_path / "empty.mp4", "empty"),
        (b"", "empty"),
        (picture, "Image"),
    ]:
        with pytest.raises(MediaError, match=message):
            load_video(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["matroska", "avi", "mp4"])
def test_a_video_without_frames(clip: Clip, kind: str) -> None:
    with pytest.raises(MediaError, match="no video|cannot be read"):
        load_video(clip(frames=0, kind=kind))


@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}, {"kind": "matroska"}, {"kind": "avi"}], ids=str)
def test_a_truncated_video(clip: Clip, options: dict[str, str]) -> None:
    data = clip(**options)
    for share in (0.01, 0.3, 0.5, 0.7):
        with pytest.raises(MediaError):
            load_video(data[: int(len(data) * share)])


def test_limits(clip: Clip) -> None:
    data = clip()
    for limits, message in [
        (MediaLimits(video_seconds=1), "lasts"),
        (MediaLimits(video_frames=3), "fewer frames"),
        (MediaLimits(video_pixels=64 * 48 * 3), "fewer frames"),
        (MediaLimits(image_pixels=1000), "a frame of"),
        (MediaLimits(file_bytes=1000), "file_bytes"),
    ]:
        with pytest.raises(MediaError, match=message):
            load_video(data, 10, limits)
    # A stream that does not say how long it lasts is counted while it is read.
    with pytest.raises(MediaError, match="lasts longer"):
        load_video(clip(kind="mpegts"), 10, MediaLimits(video_seconds=1))


@pytest.mark.parametrize("fps", [0, -1, 4e-6, float("nan"), float("inf"), 1001, None, "2", 1j])
def test_rates_that_make_no_sense(clip: Clip, fps: float) -> None:
    with pytest.raises(MediaError, match="fps is .*from 1e-05 to 1000"):
        load_video(clip(), fps)


@pytest.mark.parametrize("fps", [np.float32(2), np.int64(2), Fraction(2)])
def test_rates_of_other_kinds_of_number(clip: Clip, fps: float) -> None:
    assert shades(load_video(clip(), fps)) == [0, 5, 10, 15]
    assert load_video(clip(), 1e-5).times == [0]
