"""Evidence: stretches of time, recorded frames and clips of them."""

from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emblema.errors import StreamError
from emblema.stream.recorder import FrameRecorder
from emblema.stream.reply import EvidenceSpan, Moment, StreamReply, StreamUsage


def answered(*moments: Moment) -> StreamReply:
    return StreamReply("", (), "stop", StreamUsage("mosaic", 50, len(moments), 5, 0.1, {}), moments)


def test_moments_that_follow_one_another_are_one_span() -> None:
    reply = answered(*(Moment(frame, 2.0 * frame, 0.1 * frame) for frame in (1, 2, 3, 6, 9)))
    spans = [(2.0, 6.0, pytest.approx(0.3)), (12.0, 12.0, pytest.approx(0.6)), (18.0, 18.0, pytest.approx(0.9))]
    assert [(span.start, span.end, span.share) for span in reply.evidence()] == spans
    assert reply.evidence(6.0) == (EvidenceSpan(2.0, 18.0, reply.moments[-1].share),)
    assert answered().evidence() == ()


@given(st.sets(st.integers(0, 60)), st.floats(0, 10))
def test_spans_hold_every_moment_and_are_apart(frames: set[int], gap: float) -> None:
    reply = answered(*(Moment(frame, float(frame), 0.5) for frame in sorted(frames)))
    spans = reply.evidence(gap)
    assert all(any(span.start <= frame <= span.end for span in spans) for frame in frames)
    assert all(later.start - earlier.end > max(gap, 1) for earlier, later in pairwise(spans))


def plain(value: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def shown(path: Path) -> list[tuple[float, int]]:
    """Return times and brightness of a clip's frames."""
    with av.open(str(path)) as container:
        return [
            (float(frame.time), round(float(frame.to_ndarray(format="gray").mean())))
            for frame in container.decode(video=0)
        ]


def test_a_clip_shows_what_was_on_show(tmp_path: Path) -> None:
    recorder = FrameRecorder(tmp_path / "frames")
    for index in range(10):
        recorder.add(1e9 + 2.0 * index, plain(20 * index + 20, (65, 47)))
    # From the middle of the third frame to the sixth, which stays for as long as the others did.
    assert recorder.export_clip(1e9 + 5, 1e9 + 10, tmp_path / "clip.mp4") == 4
    found = shown(tmp_path / "clip.mp4")
    assert [time for time, _ in found] == pytest.approx([0, 1, 3, 5, 7], abs=0.01)
    assert [value for _, value in found] == pytest.approx([60, 80, 100, 120, 120], abs=4)
    assert recorder.export_clip(1e9 + 4, 1e9 + 4, tmp_path / "one.mp4") == 1
    assert shown(tmp_path / "one.mp4")[-1][0] == pytest.approx(1, abs=0.01)
    # Another recorder goes on in the same folder.
    again = FrameRecorder(tmp_path / "frames")
    assert (again.times, again.bytes) == (recorder.times, recorder.bytes)


def test_a_folder_that_is_full_loses_its_oldest_frames(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    recorder = FrameRecorder(tmp_path, most_bytes=40_000)
    (tmp_path / "notes.txt").write_text("not a frame")
    for index in range(60):
        recorder.add(float(index), Image.fromarray(noise.integers(0, 256, (48, 64, 3), dtype=np.uint8)))
        files = list(tmp_path.glob("*.jpg"))
        assert sum(file.stat().st_size for file in files) == recorder.bytes <= 40_000
    assert recorder.deleted > 0 and recorder.times == [float(index) for index in range(recorder.deleted, 60)]
    assert (tmp_path / "notes.txt").exists()
    with pytest.raises(StreamError, match="what is recorded begins at"):
        recorder.export_clip(0.0, 1.0, tmp_path / "clip.mp4")
    assert not (tmp_path / "clip.mp4").exists()
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.glob("*.jpg"))


def test_a_frame_at_the_same_time_takes_the_place_of_the_former(tmp_path: Path) -> None:
    recorder = FrameRecorder(tmp_path)
    recorder.add(1.0, plain(10))
    recorder.add(1.0, plain(200))
    assert recorder.times == [1.0] and recorder.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (lambda: FrameRecorder(tmp_path / "file"), lambda: FrameRecorder(tmp_path, 0)):
        with pytest.raises(StreamError):
            wrong()
    recorder = FrameRecorder(tmp_path / "frames")
    with pytest.raises(StreamError, match="is recorded"):
        recorder.export_clip(0.0, 1.0, tmp_path / "clip.mp4")
    recorder.add(3.0, plain(10))
    for at in (-1.0, 2.0, float("nan")):
        with pytest.raises(StreamError, match="cannot be recorded"):
            recorder.add(at, plain(10))
    for start, end in ((4.0, 3.0), (0.0, 2.9), (3.1, 4.0), (float("nan"), 3.0)):
        with pytest.raises(StreamError):
            recorder.export_clip(start, end, tmp_path / "clip.mp4")
    with pytest.raises(StreamError, match="cannot be written"):
        recorder.export_clip(3.0, 3.0, tmp_path / "none" / "clip.mp4")
    with pytest.raises(StreamError, match="cannot be written"):
        recorder.export_clip(3.0, 3.0, tmp_path / "file" / "clip.mp4")
    # A folder of a frame's name cannot be deleted as a file.
    (tmp_path / "full" / "0.000000.jpg").mkdir(parents=True)
    full = FrameRecorder(tmp_path / "full", most_bytes=1)
    with pytest.raises(StreamError, match="cannot be deleted to make room"):
        full.add(1.0, plain(10))
    assert full.times == [0.0] and full.deleted == 0
