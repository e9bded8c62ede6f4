"""Sampled frames: clocks that jump, sizes that change, animations, and parts of clips."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, load_video, media_kind, sample_frames
from emblema.media.clock import FrameClock
from emblema.media.live import live_frames
from emblema.media.load import load_media
from emblema.media.settings import MediaSettings
from tests.media.making import animation, encoded, moving, recording
from tests.stream.live import camera


def shades(count: int, step: int = 6) -> list[np.ndarray]:
    return [np.full((48, 64, 3), 20 + step * index, np.uint8) for index in range(count)]


def numbers(frames: list[Image.Image], step: int = 6) -> list[int]:
    """Which of `shades` each frame is."""
    return [round((frame.getpixel((20, 20))[0] - 20) / step) for frame in frames]


@pytest.mark.parametrize("starts", [(1, 103), (1, 20_003), (100, 1), (100, 100.5), (1, 9_000, 5)], ids=str)
@pytest.mark.parametrize("kind", ["mpegts", "mpeg"])
def test_recordings_one_after_another_last_as_long_as_their_pictures(kind: str, starts: tuple[float, ...]) -> None:
    """What a camera records in parts, its clock set anew between them; players join the parts, and so does ffmpeg."""
    pictures = shades(20 * len(starts), 3)
    rate = 10 if kind == "mpegts" else 25
    parts = [pictures[20 * index : 20 * (index + 1)] for index in range(len(starts))]
    clip = b"".join(recording(part, start, kind, rate) for part, start in zip(parts, starts, strict=True))
    video = load_video(clip, fps=rate)
    found = numbers(video.frames, 3)
    assert found == sorted(found) and set(found) == set(range(20 * len(starts)))
    assert video.times[-1] == pytest.approx(20 * len(starts) / rate, abs=3 / rate)


def test_a_pause_in_a_file_that_tells_its_times_is_a_pause() -> None:
    """Ten seconds and more with one picture are usual in a recorded screen: MP4 says so with its durations."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        track = out.add_stream("mpeg4", rate=10)
        track.width, track.height, track.pix_fmt = 64, 48, "yuv420p"
        track.codec_context.time_base = Fraction(1, 10)
        for pixels, time in zip(shades(3), (0, 300, 301), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 10)
            out.mux(track.encode(frame))
        out.mux(track.encode(None))
    assert len(load_video(file.getvalue(), fps=1.0).frames) in (30, 31)


def test_a_clock_of_a_file() -> None:
    ticks = FrameClock(ahead=10.0)
    # Stamps, and the sum of durations: a step of 9 s is one, one of 11 s is a jump, and one back too.
    stamps = [(5.0, 0.0), (5.1, 0.1), (14.1, 0.2), (25.2, 0.3), (25.3, 0.4), (3.0, 0.5), (None, 0.6), (3.2, 0.7)]
    assert [ticks.seconds(*stamp) for stamp in stamps] == pytest.approx([0, 0.1, 9.1, 9.2, 9.3, 9.4, 9.5, 9.6])
    assert ticks.jumps == 2
    reordered = FrameClock(ahead=float("inf"), behind=1.0)
    times = [reordered.seconds(stamp, 0.1 * index) for index, stamp in enumerate([0.0, 0.2, 0.1, 0.3, 900.0])]
    assert times == pytest.approx([0, 0.2, 0.2, 0.3, 900]) and reordered.jumps == 0


@pytest.mark.parametrize("sizes", [((96, 64), (128, 96)), ((128, 96), (64, 64)), ((64, 96), (96, 64))], ids=str)
@pytest.mark.parametrize("fps", [1.0, 2.0, 5.0])
def test_a_clip_whose_size_changes_has_the_first_ones(sizes: tuple[tuple[int, int], ...], fps: float) -> None:
    clip = recording(moving(15, *sizes[0]), 1) + recording(moving(25, *sizes[1]), 2.5)
    assert {frame.size for frame in load_video(clip, fps).frames} == {sizes[0]}
    assert {picture.size for _, picture in sample_frames(clip, fps)} == {sizes[0]}


def test_a_live_source_whose_size_changes_has_the_first_one() -> None:
    clip = recording(moving(10), 1) + recording(moving(10, 128, 96), 2)
    with camera(lambda number: iter([clip])) as server:
        assert {frame.picture.size for frame in live_frames(server.url, 10.0)} == {(96, 64)}


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF"])
def test_an_animated_picture_is_a_clip(kind: str) -> None:
    data = animation(shades(10, 20), kind, 200)
    assert media_kind(data) == "video"
    video = load_media(data, fps=5.0)
    assert numbers(video.frames, 20) == list(range(10)) and video.times == pytest.approx([0.2 * n for n in range(10)])
    assert numbers(load_media(data, fps=1.0).frames, 20) == [0, 5]
    with pytest.raises(MediaError, match="is an animation, not a picture: give it as a video"):
        load_media(data, "image")
    assert numbers([load_image(data)], 20) == [0]


def test_frames_of_no_time_are_shown_as_browsers_show_them() -> None:
    assert load_video(animation(shades(5), "GIF", 0), fps=10.0).times == pytest.approx([0.1 * n for n in range(5)])


def test_an_animation_is_within_the_limits_of_a_video() -> None:
    data = animation(shades(10), "PNG", 1000)
    with pytest.raises(MediaError, match="lasts longer"):
        load_video(data, limits=MediaLimits(video_seconds=5))
    with pytest.raises(MediaError, match="fewer frames"):
        load_video(data, limits=MediaLimits(video_frames=5))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "HEIF", "AVIF"])
def test_a_picture_is_no_clip(kind: str) -> None:
    with pytest.raises(MediaError, match="no clip: it is another kind of file|no clip: it is a single picture"):
        load_video(encoded(moving(1)[0], kind))


def test_pictures_that_follow_each_other_are_a_clip() -> None:
    jpegs = [encoded(pixels, "JPEG") for pixels in shades(5, 40)]
    stream = b"".join(b"--frame\r\nContent-Type: image/jpeg\r\n\r\n" + jpeg + b"\r\n" for jpeg in jpegs)
    for data in (b"".join(jpegs), stream):
        assert media_kind(data) == "video"
        assert numbers(load_media(data, fps=25.0).frames, 40) == list(range(5))


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mpegts"])
def test_a_part_of_a_clip(kind: str) -> None:
    clip = recording(shades(14, 16), 0, kind, rate=5 if kind != "mpegts" else 10)
    pace = 1 if kind != "mpegts" else 2
    part = load_video(clip, settings=MediaSettings(fps=5.0 * pace, start=1.0 / pace, end=2.0 / pace))
    assert numbers(part.frames, 16) == [5, 6, 7, 8, 9]
    assert part.times == pytest.approx([time / pace for time in (1.0, 1.2, 1.4, 1.6, 1.8)])
    spread = load_video(clip, settings=MediaSettings(frames=4))
    assert numbers(spread.frames, 16) == [0, 3, 7, 10]
    assert spread.times == pytest.approx([time / pace for time in (0, 0.6, 1.4, 2.0)])
    within = load_video(clip, settings=MediaSettings(frames=2, start=1.0 / pace, end=2.0 / pace))
    assert numbers(within.frames, 16) == [5, 7]
    with pytest.raises(MediaError, match="has 14 frames to choose from, and 15 are asked for"):
        load_video(clip, settings=MediaSettings(frames=15))
    with pytest.raises(MediaError, match="no video frames from 9 s on"):
        load_video(clip, settings=MediaSettings(start=9.0))
