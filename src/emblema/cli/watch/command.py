"""`emblema stream` after its options: everything is checked before a model is loaded."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from emblema.cli.screen import console
from emblema.cli.watch import text
from emblema.cli.watch.lines import LineViewer
from emblema.cli.watch.session import ScheduledQuestion, WatchSession
from emblema.cli.watch.source import FrameSource, open_frames, open_live
from emblema.errors import PromptError, StreamError
from emblema.media.live import is_live, live_name
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.standing import StandingQuestion, StandingQuestions
from emblema.stream.state import NAME
from emblema.stream.stream import Stream

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

TIME = r"\s*((?:\d+:){0,2}\d+(?:\.\d+)?)\s*"
TIMED, SPAN = re.compile(TIME + ":(.*)", re.DOTALL), re.compile(f"{TIME}-{TIME}")

SIDE = 448
"""Longest side of a frame in pixels; larger ones are scaled down."""

EngineLoader = Callable[[], AbstractContextManager["Engine"]]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of `emblema stream`; see its help.

    Attributes:
        settings: of the stream, by name, those that were given.
        most: tokens of an answer.
    """

    video: str | None
    ask: Sequence[str]
    ask_at: Sequence[str]
    between: str | None
    standing: Sequence[str]
    every: float | None
    live: bool
    model: str
    fps: float
    settings: dict[str, Any]
    store: Path | None
    save: str | None
    resume: str | None
    forget: str | None
    most: int
    as_json: bool
    plain: bool

    @property
    def is_live(self) -> bool:
        """Whether what is watched is a camera."""
        return self.live or is_live(self.video)

    @property
    def shown(self) -> str | None:
        """What is watched, a camera without passwords."""
        return live_name(self.video) if self.video is not None and self.is_live else self.video


def watch(options: WatchOptions, load: EngineLoader) -> int:
    """Run the command; return its exit code.

    Raises:
        EmblemaError: an option is wrong, nothing can be seen, or a question that was given cannot be answered.
    """
    questions = read_questions(options.ask, options.ask_at)
    between, settings = read_span(options.between), _settings(options)
    forgotten = read_span(options.forget, "--forget")
    standing = _standing(options)
    _refuse_places(options)
    source = _source(options, settings)
    typing = not (questions or options.as_json) and sys.stdin.isatty()
    with load() as engine, _opened(engine, options, settings) as stream:
        begin = 0.0 if stream.last is None or options.is_live else stream.last + 1 / options.fps
        if options.resume and forgotten is not None:
            _forget(stream, forgotten)
        expected = None if source is None or source.count is None else stream.frames + source.count
        out, notes = console(options.plain), console(options.plain, stderr=True)
        viewer = LineViewer(None if options.as_json else out, notes, expected, typing)
        asked = StandingQuestions(stream, standing)
        session = WatchSession(stream, viewer, questions, options.most, between, asked)
        session.run(iter(()) if source is None else source.frames, begin)
        _leave(options, stream, session, source)
    if session.interrupted and not typing:
        return 130
    return 1 if session.cut else 0


def read_questions(later: Sequence[str], timed: Sequence[str]) -> list[ScheduledQuestion]:
    """Read questions as options give them: those after all frames, and those with a time in front.

    Raises:
        PromptError: one is empty, or has no time in front.
    """
    questions = [ScheduledQuestion(None, question.strip()) for question in later]
    for question in timed:
        parts = TIMED.fullmatch(question)
        if parts is None:
            raise PromptError(f'--ask-at {question!r}: write seconds, or minutes, and the question: 90:"…" or 1:30:"…"')
        questions.append(ScheduledQuestion(_seconds(parts[1]), parts[2].strip()))
    if any(not question.text for question in questions):
        raise PromptError("a question is empty: write what you want to know")
    return questions


def _forget(stream: Stream, span: tuple[float, float]) -> None:
    """Delete what came in a span of time, of a camera counted from its first frame."""
    origin = stream.log.times[0]
    offset = origin if origin >= text.WALL_CLOCK else 0.0
    stream.forget((offset + span[0], offset + span[1]))


def read_span(text: str | None, option: str = "--between") -> tuple[float, float] | None:
    """Read a span of time as the option gives it, in seconds.

    Raises:
        PromptError: it is no span.
    """
    if text is None:
        return None
    parts = SPAN.fullmatch(text)
    span = (0.0, -1.0) if parts is None else (_seconds(parts[1]), _seconds(parts[2]))
    if span[0] > span[1]:
        raise PromptError(f"{option} {text!r}: write two times, the earlier first: 90-120 or 1:30-2:00")
    return span


def _seconds(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def _settings(options: WatchOptions) -> StreamSettings:
    """Return the stream's settings; positions are packed, for any length."""
    if options.resume is not None:
        if options.settings:
            raise StreamError(f"--resume {options.resume}: a saved stream keeps its settings; leave the others out")
        return StreamSettings()
    return change_settings(StreamSettings(positions="packed"), options.settings)


def _source(options: WatchOptions, settings: StreamSettings) -> FrameSource | None:
    """Open what is watched."""
    if options.video is None:
        return None
    if options.is_live:
        return open_live(options.video, options.fps, SIDE, settings)
    return open_frames(options.video, options.fps, SIDE)


def _standing(options: WatchOptions) -> list[StandingQuestion]:
    """Return the standing questions."""
    return [StandingQuestion(text, options.every, 2, 0.0, None, options.most) for text in options.standing]


def _refuse_places(options: WatchOptions) -> None:
    """Refuse what could not be written or read in the end."""
    if options.video is None and options.resume is None:
        raise StreamError(
            "there is nothing to watch: give a video, a folder of pictures, a camera, --demo, or --resume NAME"
        )
    if options.forget is not None and options.resume is None:
        raise StreamError("--forget deletes from a saved stream: give its name with --resume")
    if options.save is None and "save_as" in options.settings:
        raise StreamError("--save-every saves the stream under a name: give it with --save")
    for option, name in (("--save", options.save), ("--resume", options.resume)):
        if name is not None and options.store is None:
            raise StreamError(f"{option} {name}: give the folder that streams are saved to with --store")
        if name is not None and NAME.fullmatch(name) is None:
            raise StreamError(f"{option} {name!r}: use letters, digits, dots, dashes and underscores")
    if "host_bytes" in options.settings and options.store is None:
        raise StreamError("--host-mib: give the folder that older rows go to with --store")


def _opened(engine: "Engine", options: WatchOptions, settings: StreamSettings) -> Stream:
    return engine.stream(settings=settings) if options.resume is None else engine.load_stream(options.resume)


def _leave(options: WatchOptions, stream: Stream, session: WatchSession, source: FrameSource | None) -> None:
    """Save the stream where that was asked for, and print what became of it."""
    notes, status = console(options.plain, stderr=True), session.status
    saved = {}
    try:
        if options.save is not None and stream.frames:
            saved = {"saved": str(stream.save(options.save))}
    finally:
        # What was answered is printed whatever becomes of the rest.
        live = {} if source is None else source.to_json()
        if options.as_json:
            told = {"live": live} if live else {}
            facts = {"video": options.shown, "model": options.model, **told, **session.to_json(), **saved}
            typer.echo(json.dumps(facts, indent=2))
        else:
            for line in text.summary(status):
                notes.print(line, style="dim", soft_wrap=True, markup=False)
            if live:
                notes.print("live: " + ", ".join(f"{name} {count}" for name, count in live.items()), style="dim")
            for name, place in saved.items():
                notes.print(f"{name}: {place}", soft_wrap=True, markup=False)
