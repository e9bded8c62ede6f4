"""`emblema stream` after its options: everything is checked before a model is loaded."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from emblema.cli.screen import console
from emblema.cli.watch import text
from emblema.cli.watch.lines import LineViewer
from emblema.cli.watch.session import WatchSession
from emblema.cli.watch.source import FrameSource, open_frames, open_live
from emblema.errors import PromptError, StreamError
from emblema.media.live import is_live, live_name
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.standing import StandingQuestion, StandingQuestions
from emblema.stream.state import NAME

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

SIDE = 448
"""Longest side of a frame in pixels; larger ones are scaled down."""

EngineLoader = Callable[[], AbstractContextManager["Engine"]]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of `emblema stream`; see its help.

    Attributes:
        most: tokens of an answer.
    """

    video: str | None
    live: bool
    ask: Sequence[str]
    standing: Sequence[str]
    model: str
    fps: float
    budget: int | None
    store: Path | None
    save: str | None
    resume: str | None
    most: int
    as_json: bool
    plain: bool

    @property
    def is_live(self) -> bool:
        """Whether what is watched is a camera."""
        return self.live or is_live(self.video)


def watch(options: WatchOptions, load: EngineLoader) -> int:
    """Run the command; return its exit code.

    Raises:
        EmblemaError: an option is wrong, nothing can be seen, or a question that was given cannot be answered.
    """
    if any(not question.strip() for question in options.ask):
        raise PromptError("a question is empty: write what you want to know")
    settings = _settings(options)
    standing = [StandingQuestion(question, most=options.most) for question in options.standing]
    _check_places(options)
    source = _source(options, settings)
    typing = not (options.ask or options.as_json) and sys.stdin.isatty()
    out, notes = console(options.plain), console(options.plain, stderr=True)
    with load() as engine:
        opened = engine.stream(settings=settings) if options.resume is None else engine.load_stream(options.resume)
        with opened as stream:
            begin = 0.0 if stream.last is None or options.is_live else stream.last + 1 / options.fps
            expected = None if source is None or source.count is None else stream.frames + source.count
            viewer = LineViewer(None if options.as_json else out, notes, expected, typing)
            session = WatchSession(stream, viewer, options.ask, options.most, StandingQuestions(stream, standing))
            session.run(iter(()) if source is None else source.frames, begin)
            saved = None
            try:
                if options.save is not None and stream.frames:
                    saved = stream.save(options.save)
            finally:
                # What was answered is printed whatever becomes of the rest.
                _report(options, session, source, saved)
    if session.interrupted and not typing:
        return 130
    return 1 if session.cut else 0


def _settings(options: WatchOptions) -> StreamSettings:
    """Return the stream's settings; positions are packed, for any length."""
    if options.resume is not None and options.budget is not None:
        raise StreamError(f"--resume {options.resume}: a saved stream keeps its settings; leave --budget out")
    given = {} if options.budget is None else {"budget": options.budget}
    return change_settings(StreamSettings(positions="packed"), given)


def _source(options: WatchOptions, settings: StreamSettings) -> FrameSource | None:
    """Open what is watched."""
    if options.video is None:
        return None
    if options.is_live:
        return open_live(options.video, options.fps, SIDE, settings)
    return open_frames(options.video, options.fps, SIDE)


def _check_places(options: WatchOptions) -> None:
    """Refuse what could not be written or read in the end."""
    if options.video is None and options.resume is None:
        raise StreamError(
            "there is nothing to watch: give a video, a folder of pictures, a camera, --demo, or --resume NAME"
        )
    for option, name in (("--save", options.save), ("--resume", options.resume)):
        if name is not None and options.store is None:
            raise StreamError(f"{option} {name}: give the folder that streams are saved to with --store")
        if name is not None and NAME.fullmatch(name) is None:
            raise StreamError(f"{option} {name!r}: use letters, digits, dots, dashes and underscores")


def _report(options: WatchOptions, session: WatchSession, source: FrameSource | None, saved: Path | None) -> None:
    """Print what became of the stream."""
    live = {} if source is None else source.to_json()
    if options.as_json:
        # A camera's address may hold passwords.
        shown = live_name(options.video) if options.video is not None and options.is_live else options.video
        facts = {"video": shown, "model": options.model, **({"live": live} if live else {}), **session.to_json()}
        typer.echo(json.dumps(facts | ({} if saved is None else {"saved": str(saved)}), indent=2))
        return
    notes = console(options.plain, stderr=True)
    for line in text.summary(session.stream, session.speed):
        notes.print(line, style="dim", soft_wrap=True, markup=False)
    if live:
        notes.print("live: " + ", ".join(f"{name} {count}" for name, count in live.items()), style="dim")
    if saved is not None:
        notes.print(f"saved: {saved}", soft_wrap=True, markup=False)
