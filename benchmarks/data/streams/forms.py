"""Readers of the data sets of streams: ReKV's form (RVS too), MLVU, LongVideoBench and Video-MME."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import video_mme
from benchmarks.data.form import Source, option_index
from benchmarks.data.limits import DataError
from benchmarks.data.record import Record
from benchmarks.data.streams.items import StreamItem, StreamQuestion

PLACES = ("", "videos", "video", "data")
SUFFIXES = ("", ".mp4", ".mkv", ".webm", ".npy")


@dataclass(frozen=True, slots=True)
class StreamForm:
    """A data set's form.

    Attributes:
        title: what people call the data set; `usual`: patterns of its file of records, for when a folder is given.
        read: items of a source; `aside`: the folder of records, where that is not the folder of media.
    """

    name: str
    title: str
    usual: tuple[str, ...]
    read: Callable[[Source], Iterator[StreamItem]]
    aside: str = ""


def seconds(record: Record, field: str) -> float:
    """A time in seconds, 0 or more.

    Raises:
        DataError: it is none.
    """
    value = record.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise record.wrong(f"{field!r} is {repr(value)[:40]}, not a time in seconds")
    return float(value)


def _windows(record: Record) -> tuple[tuple[float, float], ...]:
    """Where the answer lies: `temporal_windows`, or from `start_time` to `end_time`."""
    if record.has("start_time") and record.has("end_time"):
        values: list[Any] = [[record.fields["start_time"], record.fields["end_time"]]]
    else:
        values = record.values("temporal_windows") if record.has("temporal_windows") else []
    found = []
    for value in values:
        good = isinstance(value, list) and len(value) == 2
        good = good and all(isinstance(time, int | float) and not isinstance(time, bool) for time in value)
        if not good or not all(math.isfinite(time) for time in value) or not 0 <= value[0] <= value[1]:
            raise record.wrong(f"{repr(value)[:60]} is no span of time, from a time to a later one")
        found.append((float(value[0]), float(value[1])))
    return tuple(found)


def _chosen(record: Record, field: str, answer: str = "answer") -> tuple[tuple[str, ...], int, str]:
    """Choices, the index of the right one, and its text; a question without choices has its answer alone."""
    if not record.has(field):
        return (), -1, record.text(answer)
    choices = tuple(record.texts(field))
    correct = option_index(record, record.fields.get(answer), choices)
    return choices, correct, choices[correct]


def read_rekv(source: Source) -> Iterator[StreamItem]:
    """ReKV's form: an entry for each video, `conversations` with questions; RVS's say at which time they are asked."""
    for record in source.records():
        record.need("video_id", "conversations")
        name = record.text("video_id")
        asked = record.objects("conversations")
        if not asked:
            raise record.wrong("'conversations' is empty")
        questions = [_conversation(each, f"{name}-{place}") for place, each in enumerate(asked)]
        questions.sort(key=lambda each: math.inf if each.at is None else each.at)
        path = _video(source, record, record.text("video_path", name))
        duration = seconds(record, "duration") if record.has("duration") else 0.0
        yield StreamItem(name, "rekv", path, tuple(questions), duration)


def _video(source: Source, record: Record, written: str) -> Path:
    """A video as it is named; published paths begin with the publisher's own folders, so then by its file's name."""
    bare = written.replace("\\", "/").rsplit("/", 1)[-1]
    try:
        return source.folder.find(record, written, PLACES, SUFFIXES)
    except DataError:
        if bare in ("", written):
            raise
        return source.folder.find(record, bare, PLACES, SUFFIXES)


def _conversation(record: Record, name: str) -> StreamQuestion:
    record.need("question", "answer")
    at = seconds(record, "end_time") if record.has("end_time") else None
    kind, windows = record.text("question_type", ""), _windows(record)
    choices, correct, answer = _chosen(record, "choices")
    return StreamQuestion(name, record.text("question"), answer, at, choices, correct, kind, windows)


def read_mlvu(source: Source) -> Iterator[StreamItem]:
    """MLVU: an entry for each question, `candidates` and the answer's text; asked behind the video."""
    for place, record in enumerate(source.records()):
        record.need("video", "question", "answer")
        name = f"{record.text('video')}-{place}"
        kind, (choices, correct, answer) = record.text("question_type", ""), _chosen(record, "candidates")
        path = source.folder.find(record, record.text("video"), (*PLACES, *_beside(kind)), SUFFIXES)
        duration = seconds(record, "duration") if record.has("duration") else 0.0
        question = StreamQuestion(name, record.text("question"), answer, None, choices, correct, kind)
        yield StreamItem(name, "mlvu", path, (question,), duration)


def _beside(kind: str) -> tuple[str, ...]:
    """MLVU keeps videos in folders by task: video/1_plotQA and so on."""
    folders = ("1_plotQA", "2_needle", "3_ego", "4_count", "5_order", "6_anomaly_reco", "7_topic_reasoning")
    alike = [each for each in folders if kind and each.split("_", 1)[1].lower() == kind.lower()]
    return tuple(f"{parent}/{each}" for parent in ("video", "videos") for each in (alike or folders))


def read_longvideobench(source: Source) -> Iterator[StreamItem]:
    """LongVideoBench: an entry for each question, `candidates` and `correct_choice`; asked behind the video."""
    for record in source.records():
        record.need("id", "video_path", "question", "candidates", "correct_choice")
        name = record.text("id")
        choices, correct, answer = _chosen(record, "candidates", "correct_choice")
        path = source.folder.find(record, record.text("video_path"), ("videos", "", "video", "data"), SUFFIXES)
        duration = seconds(record, "duration") if record.has("duration") else 0.0
        question = StreamQuestion(
            name, record.text("question"), answer, None, choices, correct, record.text("question_category", "")
        )
        yield StreamItem(name, "longvideobench", path, (question,), duration)


def read_video_mme(source: Source) -> Iterator[StreamItem]:
    """Video-MME: its items as `load_items` reads them, asked behind the video."""
    for item in video_mme.read(source):
        (video,) = item.media
        questions = tuple(
            StreamQuestion(
                each.id, each.text, each.answer, None, tuple(map(str, each.options)), each.correct, each.kind
            )
            for each in item.questions
        )
        yield StreamItem(item.id, "video-mme", Path(str(video.content)), questions)


STREAM_FORMS: dict[str, StreamForm] = {
    each.name: each
    for each in (
        StreamForm("rekv", "ReKV and RVS", ("*.json",), read_rekv),
        StreamForm("mlvu", "MLVU", ("json/*.json", "*.json"), read_mlvu, aside="json"),
        StreamForm("longvideobench", "LongVideoBench", ("lvb_val.json",), read_longvideobench),
        StreamForm("video-mme", "Video-MME", video_mme.FORM.usual, read_video_mme),
    )
}
