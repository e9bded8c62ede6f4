"""Pieces of `emblema stream`: questions with times, frames of videos and folders, what is shown of an answer."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emblema.cli.view.command import WatchOptions, read_questions, read_span, watch
from emblema.cli.view.session import ScheduledQuestion
from emblema.cli.view.source import open_frames
from emblema.cli.view.status import StreamAnswer, StreamStatus
from emblema.cli.view.strip import draw
from emblema.cli.view.text import clock, size, span
from emblema.cli.view.thumbnails import Thumbnails
from emblema.errors import EmblemaError, MediaError, PromptError
from emblema.stream.method import MemoryBytes
from emblema.stream.recorder import FrameRecorder
from emblema.stream.reply import Moment, StreamReply, StreamUsage
from tests.cli.videos import write_video


def test_questions_with_their_times() -> None:
    texts = ["90:where is it ?", "1:30: where is it ?", "1:02:03:who ?", "2.5:now ?", "60:10 little ones ?"]
    found = read_questions(["what ?"], texts)
    assert found[0] == ScheduledQuestion(None, "what ?")
    assert [question.at for question in found[1:]] == [90, 90, 3723, 2.5, 60]
    assert [question.text for question in found[1:]] == [
        "where is it ?",
        "where is it ?",
        "who ?",
        "now ?",
        "10 little ones ?",
    ]
    for wrong in ("soon:what ?", "what ?", "-3:what ?", "90", "90:", "90:  "):
        with pytest.raises(PromptError):
            read_questions([], [wrong])
    with pytest.raises(PromptError):
        read_questions([" "], [])


def test_a_span_of_time() -> None:
    assert [read_span(text) for text in (None, "1:30-2:00", " 5 - 7.5 ", "3-3")] == [None, (90, 120), (5, 7.5), (3, 3)]
    for wrong in ("", "90", "2-1", "1:30-", "a-b", "-3-4", "1-2-3"):
        with pytest.raises(PromptError, match="--between"):
            read_span(wrong)


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
        "video": str(clip), "ask": (), "ask_at": (), "between": None,
        "standing": (), "every": None, "hold": 2, "cooldown": 0.0, "alerts": None, "webhook": None, "webhook_hosts": (),
        "live": False, "give_up": 60.0, "record": None, "record_mib": 1, "clips": None,
        "model": "none", "fps": 1.0,
        "side": 448, "method": "mosaic", "settings": {}, "strip": None, "store": None, "save": None, "resume": None,
        "most": 4, "as_json": False, "plain": True, "forget": None,
    }  # fmt: skip
    return WatchOptions(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_is_wrong_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4")
    FrameRecorder(tmp_path / "frames").add(5.0, Image.new("RGB", (32, 32)))

    def load() -> None:
        raise AssertionError("a model was loaded")

    for changes in (
        {"ask": ("",)},
        {"between": "2:00-1:00"},
        {"standing": (" ",)},
        {"standing": ("who ?",), "hold": 0},
        {"alerts": tmp_path / "alerts.jsonl"},
        {"clips": tmp_path / "clips"},
        {"record": tmp_path / "clip.mp4"},
        {"record": tmp_path / "frames"},
        {"video": "rtsp:nothing"},
        {"video": "camera:999", "give_up": 0.1},
        {"video": "http://127.0.0.1:9/", "live": True, "give_up": 0.1},
        {"standing": ("who ?",), "alerts": tmp_path / "none" / "alerts.jsonl"},
        {"standing": ("who ?",), "alerts": Path("-"), "as_json": True},
        {"standing": ("who ?",), "webhook": "http://127.0.0.1:9/"},
        {"standing": ("who ?",), "webhook": "ftp://example.com/"},
        {"settings": {"budget": 0}},
        {"settings": {"window": -1}},
        {"settings": {"skip": 1.5}},
        {"method": "nope"},
        {"fps": 0.0},
        {"save": "walk"},
        {"save": "a b", "store": tmp_path},
        {"save": "walk", "store": tmp_path, "method": "sliding"},
        {"resume": "walk", "store": tmp_path, "settings": {"budget": 3}},
        {"strip": tmp_path / "none" / "strip.png"},
        {"strip": tmp_path},
        {"video": str(tmp_path / "none.mp4")},
        {"video": None},
    ):
        with pytest.raises(EmblemaError):
            watch(options(tmp_path / "clip.mp4", **changes), load)  # type: ignore[arg-type]


def answered(homes: Sequence[int | None], shares: dict[int, float], text: str = "lake") -> StreamAnswer:
    frames = len(homes)
    status = StreamStatus(2.0 * (frames - 1), frames, 1.0, frames, homes, 2, {}, MemoryBytes({}, {}))
    usage = StreamUsage("mosaic", frames, len(shares), 5, 0.05, {})
    moments = tuple(Moment(frame, 2.0 * frame, share) for frame, share in sorted(shares.items()))
    times = [2.0 * frame for frame in range(frames)]
    return StreamAnswer(times[-1], "where ?", StreamReply(text, (1,), "stop", usage, moments), status, times)


def test_scenes_end_where_the_cluster_changes_or_a_frame_is_left_out() -> None:
    homes = [None, 1, 1, 1, 2, 2, 1, 1, None]
    answer = answered(homes, {1: 0.5, 2: 1.0, 3: 0.5, 4: 0.5, 6: 0.5, 7: 0.5})
    found = answer.scenes(10)
    assert [(scene.begin, scene.end, scene.frame, scene.share, scene.cluster) for scene in found] == [
        (2, 6, 2, 1.0, 1),
        (8, 8, 4, 0.5, 2),
        (12, 14, 6, 0.5, 1),
    ]
    assert [span(scene) for scene in found] == ["0:02\u20130:06", "0:08", "0:12\u20130:14"]
    # Of too many those that most layers saw, then the longer ones; still in order.
    assert [scene.frame for scene in answer.scenes(2)] == [2, 6]


def test_without_clusters_scenes_have_an_end() -> None:
    found = answered([None] * 40, dict.fromkeys(range(1, 31), 1.0)).scenes(100)
    assert [(scene.begin, scene.end) for scene in found][:2] == [(2, 8), (10, 16)]


@pytest.mark.nightly
def test_the_picture_shows_every_answer(tmp_path: Path) -> None:
    kept = Thumbnails()
    for frame in range(1, 8):
        kept.add(frame, Image.new("RGB", (56, 56), (200, 30, 30)))
    answer = answered([None, 1, 1, 1, 2, 2, 1, 1, None], {1: 0.5, 4: 1.0}, "costs $5 $ or _x^")
    one = Image.open(draw([answer], kept, "title $", tmp_path / "one.png"))
    three = Image.open(draw([answer] * 3, kept, "title", tmp_path / "three.png"))
    assert one.width == three.width and 2 * one.height < three.height
    pixels = np.asarray(one.convert("RGB")).reshape(-1, 3).astype(int)
    shown = (np.abs(pixels - (200, 30, 30)).max(1) < 12).sum()
    assert shown > 2 * 100 * 100
    thin = Thumbnails()
    thin.add(4, Image.new("RGB", (8, 900), (200, 30, 30)))
    assert Image.open(draw([answer] * 24, thin, "title", tmp_path / "thin.png")).height < 2**16
    nothing = Image.open(draw([answered([None] * 3, {})], Thumbnails(), "title", tmp_path / "nothing.png"))
    assert nothing.width == one.width


def test_thumbnails_are_saved_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    kept, again = Thumbnails(), Thumbnails()
    kept.add(3, Image.new("RGB", (640, 320), (10, 200, 10)))
    kept.save(tmp_path / "frames.zip")
    again.load(tmp_path / "frames.zip")
    picture = again.get(3)
    assert picture is not None and picture.size == (160, 80) and again.get(4) is None
    (tmp_path / "broken.zip").write_bytes((tmp_path / "frames.zip").read_bytes()[:100])
    for name in ("broken.zip", "none.zip"):
        other = Thumbnails()
        other.load(tmp_path / name)
        assert other.get(3) is None
