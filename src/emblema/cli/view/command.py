"""The command behind its options: everything is checked before a model is loaded for it."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from emblema.cli.screen import console
from emblema.cli.view import wording
from emblema.cli.view.plain import PlainViewer
from emblema.cli.view.session import Sitting, Timed, Viewer
from emblema.cli.view.source import Source, open_frames
from emblema.cli.view.thumbnails import Thumbnails
from emblema.cli.view.told import told
from emblema.errors import EmblemaError, PromptError, StreamError
from emblema.stream.methods import method_named
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.state import NAME
from emblema.stream.stream import Stream

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

TIMED = re.compile(r"\s*((?:\d+:){0,2}\d+(?:\.\d+)?)\s*:(.*)", re.DOTALL)

SAVED = ".frames.zip"
"""Behind a saved stream's name: its thumbnails."""

Load = Callable[[], AbstractContextManager["Engine"]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; see `emblema stream --help`.

    Attributes:
        settings: of the stream, by name, those that were given.
    """

    video: str | None
    ask: Sequence[str]
    ask_at: Sequence[str]
    model: str
    fps: float
    side: int
    method: str
    settings: dict[str, Any]
    strip: Path | None
    store: Path | None
    save: str | None
    resume: str | None
    most: int
    as_json: bool
    plain: bool


def watch(wanted: Wanted, load: Load) -> int:
    """Run a sitting; its exit code.

    Raises:
        EmblemaError: an option is wrong, nothing can be seen, or a question that was given cannot be answered.
    """
    timed = questions(wanted.ask, wanted.ask_at)
    settings = _settings(wanted)
    _refuse_places(wanted)
    source = None if wanted.video is None else open_frames(wanted.video, wanted.fps, wanted.side)
    typing = not (timed or wanted.as_json) and sys.stdin.isatty()
    drawn = not (wanted.plain or wanted.as_json) and console().is_terminal and (not typing or _has_keys())
    with load() as engine, _opened(engine, wanted, settings) as stream:
        thumbnails, layers = Thumbnails(), len(engine.adapter.layouts)
        if wanted.resume:
            thumbnails.load(_frames_of(wanted, wanted.resume))
        with _viewer(wanted, stream, source, thumbnails, typing, drawn) as viewer:
            sitting = Sitting(stream, viewer, layers, timed, wanted.most, thumbnails)
            sitting.run(iter(()) if source is None else source.frames, wanted.fps)
        _leave(wanted, stream, sitting, thumbnails, drawn)
    if sitting.interrupted and not typing:
        return 130
    return 1 if sitting.cut else 0


def questions(behind: Sequence[str], timed: Sequence[str]) -> list[Timed]:
    """Questions as options give them.

    Raises:
        PromptError: one is empty, or has no time in front.
    """
    found = [Timed(None, text.strip()) for text in behind]
    for one in timed:
        parts = TIMED.fullmatch(one)
        if parts is None:
            raise PromptError(f'--ask-at {one!r}: write seconds, or minutes, and the question: 90:"…" or 1:30:"…"')
        seconds = 0.0
        for part in parts[1].split(":"):
            seconds = 60 * seconds + float(part)
        found.append(Timed(seconds, parts[2].strip()))
    if any(not one.text for one in found):
        raise PromptError("a question is empty: write what you want to know")
    return found


def _settings(wanted: Wanted) -> StreamSettings:
    """How the stream remembers: packed positions wherever the method has them, so that it may be of any length."""
    if wanted.resume is not None:
        if wanted.settings:
            raise StreamError(f"--resume {wanted.resume}: a saved stream keeps its settings; leave the others out")
        return StreamSettings()
    given = change_settings(StreamSettings(), wanted.settings)
    method = method_named(wanted.method, given)
    return change_settings(given, {"positions": "packed"}) if method.bounded and given.budget is not None else given


def _refuse_places(wanted: Wanted) -> None:
    """Refuse what could not be written or read in the end."""
    if wanted.video is None and wanted.resume is None:
        raise StreamError("there is nothing to watch: give a video, a folder of pictures, or --resume NAME")
    for option, name in (("--save", wanted.save), ("--resume", wanted.resume)):
        if name is not None and wanted.store is None:
            raise StreamError(f"{option} {name}: give the folder that streams are saved to with --store")
        if name is not None and NAME.fullmatch(name) is None:
            raise StreamError(f"{option} {name!r}: use letters, digits, dots, dashes and underscores")
    if wanted.save is not None and wanted.resume is None and wanted.method != "mosaic":
        raise StreamError(f"--save {wanted.save}: a stream with the method {wanted.method!r} cannot be saved")
    if wanted.strip is not None and (wanted.strip.is_dir() or not wanted.strip.absolute().parent.is_dir()):
        raise EmblemaError(
            f"--strip {wanted.strip}: no picture can be written there; give a file in a folder that is there"
        )


def _opened(engine: "Engine", wanted: Wanted, settings: StreamSettings) -> Stream:
    return engine.stream(wanted.method, settings) if wanted.resume is None else engine.load_stream(wanted.resume)


@contextmanager
def _viewer(
    wanted: Wanted, stream: Stream, source: Source | None, thumbnails: Thumbnails, typing: bool, drawn: bool
) -> Iterator[Viewer]:
    out, notes = console(wanted.plain), console(wanted.plain, stderr=True)
    count = None if source is None or source.count is None else stream.frames + source.count
    name = wanted.resume if source is None else source.name
    if drawn:
        from emblema.cli.view.panel import PanelViewer

        about = f"{stream.method}, {Path(wanted.model).name}"
        with PanelViewer(out, name or "", about, count, thumbnails, typing) as panel:
            yield panel
        return
    yield PlainViewer(None if wanted.as_json else out, notes, count, typing)


def _leave(wanted: Wanted, stream: Stream, sitting: Sitting, thumbnails: Thumbnails, drawn: bool) -> None:
    """Write what is to stay, and say where it stands unless that was drawn."""
    notes, glance = console(wanted.plain, stderr=True), sitting.glance()
    places: dict[str, str] = {}
    if wanted.strip is not None and sitting.answers:
        from emblema.cli.view.strip import draw

        name, about = Path(wanted.video or wanted.resume or "").name, f"{stream.method}, {Path(wanted.model).name}"
        title = " \u00b7 ".join((name, about, wording.frames(glance, None), wording.clusters(glance)))
        places["strip"] = str(draw(sitting.answers, thumbnails, title, wanted.strip))
    elif wanted.strip is not None:
        notes.print("no question was answered: there is nothing to draw", style="yellow")
    if wanted.save is not None and stream.frames:
        path = stream.save(wanted.save)
        thumbnails.save(_frames_of(wanted, wanted.save))
        places["saved"] = str(path)
    if wanted.as_json:
        facts = told(wanted.video, wanted.model, stream, sitting, glance)
        typer.echo(json.dumps({**facts, **places}, indent=2))
        return
    for line in () if drawn else wording.summary(glance):
        notes.print(line, style="dim", soft_wrap=True, markup=False)
    for name, place in places.items():
        notes.print(f"{name}: {place}", soft_wrap=True, markup=False)


def _frames_of(wanted: Wanted, name: str) -> Path:
    """Where a saved stream's thumbnails lie."""
    return (wanted.store or Path()) / "streams" / (name + SAVED)


def _has_keys() -> bool:
    """Whether a terminal can be read key by key here."""
    return find_spec("termios") is not None
