"""Data sets of streams as items, and generated streams as files of ReKV's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.data.folder import Folder
from benchmarks.data.form import Source, file_name, records_file, write_json
from benchmarks.data.limits import DataError, DataLimits
from benchmarks.data.streams.forms import STREAM_FORMS
from benchmarks.data.streams.items import StreamItem
from benchmarks.tasks.streams import FRAME_SECONDS, Stream
from emblema.errors import PromptError

LISTING = "streams.json"
VIDEOS = "videos"


def load_streams(
    path: str | Path, form: str = "rekv", *, media: str | Path | None = None, limits: DataLimits | None = None
) -> Iterator[StreamItem]:
    """The videos and questions of a data set on this machine, read as they are asked for.

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
    usual = Folder(parent.parent) if chosen.aside and parent.name == chosen.aside else Folder.of(file)
    folder = usual if media is None else Folder(Path(media).absolute())
    return _checked(Source(file, folder, limits or DataLimits()), form)


def _checked(source: Source, form: str) -> Iterator[StreamItem]:
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
        if not isinstance(item.source, Stream):
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


def write_video(stream: Stream, path: Path) -> None:
    """A stream's frames as an mp4, drawn one by one."""
    with av.open(str(path), "w") as container:
        track: Any = container.add_stream("libx264", rate=Fraction(1, int(FRAME_SECONDS)))
        track.width, track.height = stream.frame(0).size
        track.pix_fmt = "yuv444p"
        track.options = {"crf": "12", "g": "32"}
        for picture in stream.frames():
            container.mux(track.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        container.mux(track.encode())
