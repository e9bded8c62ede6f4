"""Data sets of streams: read as they are published, refused clearly where they are broken, written and read back."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import DataError, DataLimits
from benchmarks.data.streams import StreamItem, item_of, load_streams, write_streams
from benchmarks.tasks.streams import generate, questions_of
from benchmarks.tests.data_sets import document
from benchmarks.tests.stream_sets import STREAM_SETS, rvs
from emblema.errors import EmblemaError, PromptError

NEEDED = {
    "rvs": ("video_id", "conversations"),
    "mlvu": ("video", "question", "answer"),
    "longvideobench": ("id", "video_path", "question", "candidates", "correct_choice"),
    "video-mme": ("video_id",),
}
ODD: tuple[Any, ...] = (None, True, -1, 7, 0.5, 1e300, "", "x", "\0", "\ud800", "../x", [], {}, [[]], [None], "9" * 400)
sets = pytest.mark.parametrize("name", list(STREAM_SETS))


def load(name: str, root: Path) -> list[StreamItem]:
    form, make = STREAM_SETS[name]
    return list(load_streams(make(root), form))


@sets
def test_a_data_set_is_read_as_it_is_published(name: str, tmp_path: Path) -> None:
    items = load(name, tmp_path)
    assert items == list(load_streams(tmp_path, STREAM_SETS[name][0]))
    for item in items:
        assert isinstance(item.source, Path) and item.source.is_file()
        for question in item.questions:
            assert question.text and question.answer
            assert not question.choices or question.choices[question.correct] == question.answer
    assert sum(len(item.questions) for item in items) == {"rvs": 3, "rekv": 2, "mlvu": 2}.get(name, 1)


def test_questions_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    first, second = load("rvs", tmp_path)
    assert [question.at for question in first.questions] == [12.0, 60.5]
    assert first.questions[1].windows == ((30.0, 60.5),) and first.seconds == 61.5
    assert second.questions[0].at == 4.0


def test_questions_without_times_are_asked_behind_the_video(tmp_path: Path) -> None:
    (item,) = load("rekv", tmp_path)
    assert [question.at for question in item.questions] == [None, None]
    assert item.questions[1].windows == ((3.0, 9.5),) and item.questions[0].correct == 1


def test_an_array_gives_every_frame_that_the_rate_asks_for(tmp_path: Path) -> None:
    item = load("rvs", tmp_path)[1]
    held = np.load(item.source)  # type: ignore[arg-type]
    half = list(item.frames(0.5))
    assert [time for time, _ in half] == [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(np.asarray(half[2][1]), held[4])
    assert len(list(item.frames(1.0))) == 10
    with pytest.raises(DataError, match="1 frame a second"):
        item.frames(2.0)


@pytest.mark.parametrize(
    "held",
    [
        np.zeros((4, 8, 8), np.uint8),
        np.zeros((4, 8, 8, 3)),
        np.zeros((0, 8, 8, 3), np.uint8),
        np.zeros((2, 2, 9, 3), np.uint8),
        np.asarray([{"a": 1}], dtype=object),
    ],
)
def test_an_array_that_holds_no_frames_is_refused(held: np.ndarray, tmp_path: Path) -> None:
    item = load("rvs", tmp_path)[1]
    np.save(tmp_path / "videos" / "b.npy", held)
    with pytest.raises(DataError, match=r"b\.npy"):
        item.frames(0.5)


def test_an_array_cut_short_is_refused(tmp_path: Path) -> None:
    item = load("rvs", tmp_path)[1]
    file = tmp_path / "videos" / "b.npy"
    for size in (0, 5, 60, 200):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(DataError, match=r"b\.npy"):
            item.frames(0.5)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in NEEDED.items() for field in fields])
def test_a_missing_field_is_named_with_its_line(name: str, field: str, tmp_path: Path) -> None:
    form, make = STREAM_SETS[name]
    file = make(tmp_path)
    value = json.loads(file.read_text())
    del value[0][field]
    document(file, value)
    with pytest.raises(DataError, match=f"line 2: .*'{field}'"):
        list(load_streams(file, form))


@pytest.mark.parametrize("time", ["12", -1, None, float("1e12"), [3], True])
def test_a_time_that_is_none_is_refused(time: Any, tmp_path: Path) -> None:
    file = rvs(tmp_path)
    value = json.loads(file.read_text())
    value[1]["conversations"][0]["end_time"] = time
    document(file, value)
    if time is None:
        assert list(load_streams(file))[1].questions[0].at is None
        return
    with pytest.raises(DataError, match=r"conversations\[0\]: 'end_time'"):
        list(load_streams(file))


def test_a_span_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    file = rvs(tmp_path)
    value = json.loads(file.read_text())
    value[1]["conversations"][0]["start_time"] = 99
    document(file, value)
    with pytest.raises(DataError, match="span of time"):
        list(load_streams(file))


@pytest.mark.parametrize(
    "path", ["../secret.mp4", "/etc/hostname", "videos/../../secret.mp4", "C:\\x.mp4", "gone.mp4", ""]
)
def test_no_video_outside_the_folder_is_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"x")
    file = rvs(tmp_path / "set")
    value = json.loads(file.read_text())
    value[0]["video_path"] = path
    document(file, value)
    with pytest.raises(DataError, match="line 2"):
        list(load_streams(file))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"x")
    file = rvs(tmp_path / "set")
    (tmp_path / "set" / "videos" / "a.mp4").unlink()
    (tmp_path / "set" / "videos" / "a.mp4").symlink_to(tmp_path / "secret.mp4")
    with pytest.raises(DataError, match="link out of"):
        list(load_streams(file))


@sets
def test_odd_values_anywhere_give_items_or_one_clear_error(name: str, tmp_path: Path) -> None:
    form, make = STREAM_SETS[name]
    file = make(tmp_path)
    whole = json.loads(file.read_text())
    choose = random.Random(0)
    for _ in range(150):
        value = copy.deepcopy(whole)
        spot = choose.choice(list(_spots(value)))
        spot[0][spot[1]] = copy.deepcopy(choose.choice(ODD))
        file.write_text(json.dumps(value))
        try:
            list(load_streams(file, form))
        except EmblemaError as error:
            assert "\n" not in str(error) and str(tmp_path) in str(error)


def _spots(value: Any) -> Any:
    """Every place inside a value that can be set."""
    for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inside, dict | list):
            yield from _spots(inside)


@sets
def test_cut_and_overlong_files_are_refused(name: str, tmp_path: Path) -> None:
    form, make = STREAM_SETS[name]
    file = make(tmp_path)
    text = file.read_text()
    with pytest.raises(DataError, match="limit"):
        list(load_streams(file, form, limits=DataLimits(document_bytes=20)))
    with pytest.raises(DataError, match="limit"):
        list(load_streams(file, form, limits=DataLimits(characters=3)))
    for broken in (text[: len(text) // 2], "", "[]", "7", "[7]"):
        file.write_text(broken)
        with pytest.raises(DataError):
            list(load_streams(file, form))


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(PromptError, match="rekv"):
        load_streams("x.json", "rvs-ego")


def test_generated_streams_are_written_and_read_back(tmp_path: Path) -> None:
    items = [
        item_of(stream, questions_of(stream, (12, 24)))
        for kind in ("ego", "live")
        for stream in generate(kind, 24, 2, 1)
    ]
    read = list(load_streams(write_streams(items, tmp_path)))
    assert [item.id for item in read] == [item.id for item in items]
    for made, back in zip(items, read, strict=True):
        assert [(q.text, q.answer, q.at, q.kind, q.windows) for q in made.questions] == [
            (q.text, q.answer, q.at, q.kind, q.windows) for q in back.questions
        ]
        assert back.seconds == 48.0
        shown, drawn = list(back.frames()), list(made.frames())
        assert [time for time, _ in shown] == [time for time, _ in drawn] == [2.0 * place for place in range(24)]
        for (_, own), (_, two) in zip(shown, drawn, strict=True):
            assert np.abs(np.asarray(own, dtype=float) - np.asarray(two, dtype=float)).mean() < 4


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (stream,) = generate("ego", 8, 0, 1)
    item = item_of(stream, questions_of(stream))
    with pytest.raises(PromptError, match="two streams"):
        write_streams([item, item], tmp_path)
    with pytest.raises(PromptError, match="no streams"):
        write_streams([], tmp_path)
    with pytest.raises(PromptError, match="no generated stream"):
        write_streams(load("rvs", tmp_path), tmp_path / "out")
    with pytest.raises(PromptError, match="frames a second"):
        item.frames(1.0)
