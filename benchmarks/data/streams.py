"""Videos with questions asked while they run, as items: `load_streams(path, form)`, and `write_streams` the other way.

    form            file of records          videos
    rekv            *.json                   as named, or by file name in videos/, video/, data/: RVS-ego, RVS-movie
    mlvu            json/*.json              video/<task>/
    longvideobench  lvb_val.json             videos/
    video-mme       *.json or *.parquet      data/, videos/ or video/

Nothing is downloaded, nothing of theirs shipped. Videos have to lie inside the data set's folder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from benchmarks.data.forms import FORMS
from benchmarks.data.records import DataError, DataLimits, DataRecord
from benchmarks.data.source import DataSource, MediaFolder, option_index, records_file
from benchmarks.tasks.streams import TimedQuestion
from benchmarks.tasks.streams.world import FRAME_SECONDS, GeneratedStream
from emblema.errors import PromptError
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.video import sample_frames

ARRAY = ".npy"
ARRAY_RATE = 1
"""Frames a second of a video kept as an array, as RVS's are."""
PLACES = ("", "videos", "video", "data")
SUFFIXES = ("", ".mp4", ".mkv", ".webm", ".npy")
LISTING = "streams.json"
VIDEOS = "videos"
_NAME = re.compile(r"\w[\w.-]{0,150}")


@dataclass(frozen=True, slots=True)
class StreamQuestion:
    """A question about a video, asked at some time of it.

    Attributes:
        at: seconds at which it is asked; None: after the whole video.
        choices: texts to choose among, in order; `correct`: index of the right one, -1 where it is not known.
        kind: what is asked, for tables by kind.
        windows: (from, to) in seconds of the parts that answer it, where that is known.
    """

    id: str
    text: str
    answer: str
    at: float | None = None
    choices: tuple[str, ...] = ()
    correct: int = -1
    kind: str = ""
    windows: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A video, and the questions in the order of their times.

    Attributes:
        source: a video file, an array of frames (.npy, [frames, height, width, 3] uint8, one a second), or a generated
            stream.
        seconds: how long it lasts, 0 where the data set does not say.
    """

    id: str
    form: str
    source: Path | GeneratedStream
    questions: tuple[StreamQuestion, ...]
    seconds: float = 0.0

    def frames(
        self, fps: float = 1 / FRAME_SECONDS, limits: MediaLimits = DEFAULT_LIMITS
    ) -> Iterator[tuple[float, Image.Image]]:
        """Return frames with their times in seconds, one by one.

        Raises:
            MediaError: the video cannot be read, or is outside the limits.
            DataError: the array is none of frames.
            PromptError: a generated stream is asked for at another rate than its own.
        """
        if isinstance(self.source, GeneratedStream):
            if fps != 1 / FRAME_SECONDS:
                raise PromptError(f"{self.id} has {1 / FRAME_SECONDS} frames a second and no others, not {fps}")
            return ((number * FRAME_SECONDS, frame) for number, frame in enumerate(self.source.frames()))
        if self.source.suffix == ARRAY:
            return _array_frames(self.source, fps, limits)
        return sample_frames(self.source, fps, limits)


def item_of(stream: GeneratedStream, asked: tuple[TimedQuestion, ...]) -> StreamItem:
    """Return a generated stream and questions about it."""
    questions = tuple(
        StreamQuestion(
            f"{stream.id}-{place}",
            each.text,
            each.answer,
            each.seconds,
            kind=each.kind,
            windows=tuple((begin * FRAME_SECONDS, end * FRAME_SECONDS) for begin, end in each.evidence),
        )
        for place, each in enumerate(sorted(asked, key=lambda each: each.at))
    )
    return StreamItem(stream.id, "emblema", stream, questions, len(stream) * FRAME_SECONDS)


def _array_frames(path: Path, fps: float, limits: MediaLimits) -> Iterator[tuple[float, Image.Image]]:
    if not 0 < fps <= ARRAY_RATE:
        raise DataError(path, f"it holds {ARRAY_RATE} frame a second, so {fps} frames a second cannot be taken")
    try:
        frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(path, f"it cannot be read as an array ({str(error)[:100]})") from error
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise DataError(path, "it is no array of frames, [frames, height, width, 3] uint8")
    count, height, width = frames.shape[:3]
    if not count or min(height, width) < limits.image_side_least or height * width > limits.image_pixels:
        raise DataError(path, f"{count} frames of {width} x {height} px are outside the limits")
    places = np.arange(0, count, ARRAY_RATE / fps).astype(int)
    if len(places) > limits.video_frames or len(places) * height * width > limits.video_pixels:
        raise DataError(path, f"{len(places)} frames of {width} x {height} px are beyond the limit")
    return ((place / ARRAY_RATE, Image.fromarray(np.array(frames[place]))) for place in places.tolist())


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
    read: Callable[[DataSource], Iterator[StreamItem]]
    aside: str = ""


def seconds(record: DataRecord, field: str) -> float:
    """Return a time in seconds, 0 or more.

    Raises:
        DataError: it is none.
    """
    value = record.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise record.wrong(f"{field!r} is {repr(value)[:40]}, not a time in seconds")
    return float(value)


def _windows(record: DataRecord) -> tuple[tuple[float, float], ...]:
    """Return where the answer lies: `temporal_windows`, or from `start_time` to `end_time`."""
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


def _chosen(record: DataRecord, field: str, answer: str = "answer") -> tuple[tuple[str, ...], int, str]:
    """Return choices, the index of the right one, and its text; a question without choices has its answer alone."""
    if not record.has(field):
        return (), -1, record.text(answer)
    choices = tuple(record.texts(field))
    correct = option_index(record, record.fields.get(answer), choices)
    return choices, correct, choices[correct]


def read_rekv(source: DataSource) -> Iterator[StreamItem]:
    """Yield the items of ReKV's form: an entry a video, questions in `conversations`; RVS's say when they are asked."""
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


def _video(source: DataSource, record: DataRecord, written: str) -> Path:
    """Return a video as it is named, or by its file's name: published paths begin with the publisher's own folders."""
    bare = written.replace("\\", "/").rsplit("/", 1)[-1]
    try:
        return source.folder.find(record, written, PLACES, SUFFIXES)
    except DataError:
        if bare in ("", written):
            raise
        return source.folder.find(record, bare, PLACES, SUFFIXES)


def _conversation(record: DataRecord, name: str) -> StreamQuestion:
    record.need("question", "answer")
    at = seconds(record, "end_time") if record.has("end_time") else None
    kind, windows = record.text("question_type", ""), _windows(record)
    choices, correct, answer = _chosen(record, "choices")
    return StreamQuestion(name, record.text("question"), answer, at, choices, correct, kind, windows)


def read_mlvu(source: DataSource) -> Iterator[StreamItem]:
    """Yield MLVU: an entry for each question, `candidates` and the answer's text; asked after the video."""
    for place, record in enumerate(source.records()):
        record.need("video", "question", "answer")
        name = f"{record.text('video')}-{place}"
        kind, (choices, correct, answer) = record.text("question_type", ""), _chosen(record, "candidates")
        path = source.folder.find(record, record.text("video"), (*PLACES, *_beside(kind)), SUFFIXES)
        duration = seconds(record, "duration") if record.has("duration") else 0.0
        question = StreamQuestion(name, record.text("question"), answer, None, choices, correct, kind)
        yield StreamItem(name, "mlvu", path, (question,), duration)


def _beside(kind: str) -> tuple[str, ...]:
    """Return MLVU keeps videos in folders by task: video/1_plotQA and so on."""
    folders = ("1_plotQA", "2_needle", "3_ego", "4_count", "5_order", "6_anomaly_reco", "7_topic_reasoning")
    alike = [each for each in folders if kind and each.split("_", 1)[1].lower() == kind.lower()]
    return tuple(f"{parent}/{each}" for parent in ("video", "videos") for each in (alike or folders))


def read_longvideobench(source: DataSource) -> Iterator[StreamItem]:
    """Yield LongVideoBench: an entry for each question, `candidates` and `correct_choice`; asked after the video."""
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


def read_video_mme(source: DataSource) -> Iterator[StreamItem]:
    """Yield Video-MME: its items as `load_items` reads them, asked after the video."""
    for item in FORMS["video-mme"].read(source):
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
        StreamForm("video-mme", "Video-MME", FORMS["video-mme"].usual, read_video_mme),
    )
}


def load_streams(
    path: str | Path, form: str = "rekv", *, media: str | Path | None = None, limits: DataLimits | None = None
) -> Iterator[StreamItem]:
    """Return the videos and questions of a data set on this machine, read as they are asked for.

    Args:
        path: the file of records, or the data set's folder where it has one such file.
        form: one of `STREAM_FORMS`: rekv (RVS-ego and RVS-movie too), mlvu, longvideobench, video-mme.
        media: the folder of videos, if it is not the file's.

    Raises:
        DataError: a file is missing, broken or incomplete, or names a video outside the folder; it names file and line.
        PromptError: there is no such form.
    """
    if form not in STREAM_FORMS:
        raise PromptError(f"unknown form of streams {form!r}: choose one of {', '.join(STREAM_FORMS)}")
    chosen = STREAM_FORMS[form]
    file = records_file(Path(path), chosen.usual, chosen.title)
    parent = file.absolute().parent
    usual = MediaFolder(parent.parent) if chosen.aside and parent.name == chosen.aside else MediaFolder.of(file)
    folder = usual if media is None else MediaFolder(Path(media).absolute())
    return _checked(DataSource(file, folder, limits or DataLimits()), form)


def _checked(source: DataSource, form: str) -> Iterator[StreamItem]:
    empty = True
    for item in STREAM_FORMS[form].read(source):
        empty = False
        texts = (text for question in item.questions for text in (question.text, question.answer, *question.choices))
        if sum(map(len, texts)) > source.limits.characters:
            raise DataError(source.path, f"item {item.id[:80]!r} is larger than the limit of text")
        yield item
    if empty:
        raise DataError(source.path, f"it holds no items of {STREAM_FORMS[form].title}")


def write_streams(items: Iterable[StreamItem], out: str | Path) -> Path:
    """Write generated streams and their questions in ReKV's form; returns the file of records, `streams.json`.

    Videos are H.264 at half a frame a second, `videos/<id>.mp4`: read at that rate they give every frame once.

    Raises:
        PromptError: there are no streams, two have one name, or an item is no generated stream.
    """
    folder = Path(out)
    entries: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item.source, GeneratedStream):
            raise PromptError(f"{item.id} is no generated stream: its video has a file already")
        if any(entry["video_id"] == item.id for entry in entries):
            raise PromptError(f"two streams are called {item.id}")
        (folder / VIDEOS).mkdir(parents=True, exist_ok=True)
        file = f"{VIDEOS}/{file_name(item.id)}.mp4"
        write_video(item.source, folder / file)
        entries.append(
            {
                "video_id": item.id,
                "video_path": file,
                "duration": item.seconds,
                "conversations": [
                    {
                        "question": each.text,
                        "answer": each.answer,
                        "end_time": each.at,
                        "question_type": each.kind,
                        "temporal_windows": [list(window) for window in each.windows],
                    }
                    for each in item.questions
                ],
            }
        )
    if not entries:
        raise PromptError("there are no streams to write")
    return write_json(folder / LISTING, entries)


def write_video(stream: GeneratedStream, path: Path) -> None:
    """Write a stream's frames as an mp4, drawn one by one."""
    with av.open(str(path), "w") as container:
        track: Any = container.add_stream("libx264", rate=Fraction(1, int(FRAME_SECONDS)))
        track.width, track.height = stream.frame(0).size
        track.pix_fmt = "yuv444p"
        track.options = {"crf": "12", "g": "32"}
        for picture in stream.frames():
            container.mux(track.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        container.mux(track.encode())


def file_name(name: str) -> str:
    """Return a name that files are called by.

    Raises:
        PromptError: it could lead elsewhere, or is too long.
    """
    if _NAME.fullmatch(name) is None:
        raise PromptError(f"{name[:80]!r} cannot name a file: use letters, digits, '-', '_' and '.'")
    return name


def write_json(path: Path, value: Any) -> Path:
    """Return a JSON document, indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return path
