"""Pieces of `emblema stream`: frames of videos and folders, what is refused, what is shown of an answer."""

import io
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from emblema.cli.watch.command import WatchOptions, watch
from emblema.cli.watch.lines import LineViewer
from emblema.cli.watch.source import open_frames
from emblema.cli.watch.text import clock, size, span
from emblema.errors import EmblemaError, MediaError
from emblema.stream.reply import EvidenceSpan
from tests.cli.videos import write_video


def test_times_for_people() -> None:
    assert [clock(seconds) for seconds in (0, 7, 59.96, 61.5, 3723)] == ["0:00", "0:07", "1:00", "1:01.5", "1:02:03"]
    assert clock(1_790_000_000.4) == time.strftime("%H:%M:%S", time.localtime(1_790_000_000))


def test_bytes_for_people() -> None:
    assert [size(count) for count in (0, 1023, 1536, 2**20 - 1, 5 * 2**20)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1,024 KiB",
        "5.0 MiB",
    ]


def test_frames_of_a_video_are_counted_and_scaled_down(tmp_path: Path) -> None:
    write_video(tmp_path / "wide.mp4", (320, 96))
    source = open_frames(str(tmp_path / "wide.mp4"), 5, 100)
    frames = list(source.frames)
    assert (source.name, source.count, len(frames)) == ("wide.mp4", 10, 10)
    assert [when for when, _ in frames] == pytest.approx([0.2 * place for place in range(10)])
    assert {picture.size for _, picture in frames} == {(100, 30)}
    smaller = open_frames(str(tmp_path / "wide.mp4"), 5, 1000)
    assert next(smaller.frames)[1].size == (320, 96)


def test_frames_of_a_folder_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        Image.new("RGB", (32, 32), (number * 20, 0, 0)).save(tmp_path / f"frame{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    source = open_frames(str(tmp_path), 0.5, 448)
    assert source.count == 3
    assert [(when, picture.getpixel((0, 0))[0]) for when, picture in source.frames] == [(0, 20), (2, 40), (4, 200)]


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "folder").mkdir()
    for name in ("none.mp4", "text.mp4", "empty.mp4", "folder"):
        with pytest.raises(MediaError, match=name):
            open_frames(str(tmp_path / name), 1, 448)
    write_video(tmp_path / "right.mp4")
    for fps in (0, -1, 1e9):
        with pytest.raises(MediaError, match="fps"):
            open_frames(str(tmp_path / "right.mp4"), fps, 448)


def options(clip: Path, **changes: object) -> WatchOptions:
    given: dict[str, object] = {
        "video": str(clip), "live": False, "ask": (), "standing": (), "model": "none", "fps": 1.0, "budget": None,
        "store": None, "save": None, "resume": None, "most": 4, "as_json": False, "plain": True,
    }  # fmt: skip
    return WatchOptions(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_is_wrong_is_refused_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.cli.watch.source.GIVE_UP", 0.1)
    write_video(tmp_path / "clip.mp4")

    def load() -> None:
        raise AssertionError("a model was loaded")

    for changes in (
        {"ask": ("",)},
        {"standing": (" ",)},
        {"video": "rtsp:nothing"},
        {"video": "camera:999"},
        {"video": "http://127.0.0.1:9/", "live": True},
        {"budget": 0},
        {"fps": 0.0},
        {"save": "walk"},
        {"save": "a b", "store": tmp_path},
        {"resume": "walk", "store": tmp_path, "budget": 3},
        {"video": str(tmp_path / "none.mp4")},
        {"video": None},
    ):
        with pytest.raises(EmblemaError):
            watch(options(tmp_path / "clip.mp4", **changes), load)  # type: ignore[arg-type]


def test_a_stretch_of_time_is_named_by_its_ends() -> None:
    assert [span(EvidenceSpan(*ends, 0.5)) for ends in ((2.0, 6.0), (8.0, 8.0))] == ["0:02\u20130:06", "0:08"]


def test_questions_are_typed_as_lines_until_the_input_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" where ? \n\nquit\n"))
    notes = Console(file=io.StringIO())
    viewer = LineViewer(None, notes, None, typing=True)
    assert [viewer.next_question(wait=True) for _ in range(4)] == ["where ?", "", "quit", None]
    assert viewer.next_question(wait=True) is None and viewer.next_question(wait=False) is None
    assert LineViewer(None, notes, None, typing=False).next_question(wait=True) is None
