"""`emblema stream` after its options: everything is checked before a model is loaded."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from emblema.cli.screen import console, output_folder
from emblema.cli.view import text
from emblema.cli.view.alerts import STDOUT, open_alerts
from emblema.cli.view.plain import PlainViewer
from emblema.cli.view.session import ScheduledQuestion, Viewer, WatchSession
from emblema.cli.view.source import FrameSource, open_frames, open_live
from emblema.cli.view.thumbnails import Thumbnails
from emblema.errors import EmblemaError, PromptError, StreamError
from emblema.media.live import is_live, live_name
from emblema.stream.methods import method_named
from emblema.stream.recorder import FrameRecorder
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.standing import StandingQuestion, StandingQuestions
from emblema.stream.state import NAME
from emblema.stream.stream import Stream

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

TIME = r"\s*((?:\d+:){0,2}\d+(?:\.\d+)?)\s*"
TIMED, SPAN = re.compile(TIME + ":(.*)", re.DOTALL), re.compile(f"{TIME}-{TIME}")

THUMBNAILS = ".frames.zip"
"""Follows a saved stream's name in the name of its thumbnails' file."""

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
    hold: int
    cooldown: float
    alerts: Path | None
    webhook: str | None
    webhook_hosts: Sequence[str]
    live: bool
    give_up: float
    record: Path | None
    record_mib: int
    clips: Path | None
    model: str
    fps: float
    side: int
    method: str
    settings: dict[str, Any]
    strip: Path | None
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

    def thumbnails(self, name: str) -> Path:
        """Return the file of a saved stream's thumbnails."""
        return (self.store or Path()) / "streams" / (name + THUMBNAILS)


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
    recorder = None if options.record is None else FrameRecorder(options.record, options.record_mib * 2**20)
    if options.resume is None:
        _refuse_recorded(options, recorder, 0.0)
    typing = not (questions or options.as_json) and sys.stdin.isatty()
    drawn = (
        not (options.plain or options.as_json or options.alerts == STDOUT)
        and console().is_terminal
        and (not typing or _has_keys())
    )
    note = partial(console(options.plain, stderr=True).print, soft_wrap=True, markup=False)
    with (
        open_alerts(options.alerts, options.webhook, options.webhook_hosts, note) as report,
        load() as engine,
        _opened(engine, options, settings) as stream,
    ):
        begin = 0.0 if stream.last is None or options.is_live else stream.last + 1 / options.fps
        if source is not None:
            _refuse_recorded(options, recorder, begin)
        thumbnails, layers = Thumbnails(), len(engine.adapter.layouts)
        if options.resume:
            thumbnails.load(options.thumbnails(options.resume))
            if forgotten is not None:
                _forget(stream, forgotten)
            thumbnails.forget(stream.log.gone)
            if forgotten is not None:
                thumbnails.save(options.thumbnails(options.resume))
        with _viewer(options, stream, source, thumbnails, typing, drawn) as viewer:
            asked = StandingQuestions(stream, standing)
            session = WatchSession(
                stream, viewer, thumbnails, layers, questions, options.most, between, asked, report, recorder
            )
            session.run(iter(()) if source is None else source.frames, begin)
        _leave(options, stream, session, thumbnails, drawn, source, recorder)
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
    """Return the stream's settings; positions are packed wherever the method allows it, for any length."""
    if options.resume is not None:
        if options.settings:
            raise StreamError(f"--resume {options.resume}: a saved stream keeps its settings; leave the others out")
        return StreamSettings()
    given = change_settings(StreamSettings(), options.settings)
    packed = method_named(options.method, given).bounded and given.budget is not None
    return change_settings(given, {"positions": "packed"}) if packed else given


def _source(options: WatchOptions, settings: StreamSettings) -> FrameSource | None:
    """Open what is watched."""
    if options.video is None:
        return None
    if options.is_live:
        return open_live(options.video, options.fps, options.side, options.give_up, settings)
    return open_frames(options.video, options.fps, options.side)


def _standing(options: WatchOptions) -> list[StandingQuestion]:
    """Return the standing questions; refuse what is told of none."""
    if not options.standing and (options.alerts is not None or options.webhook is not None):
        raise StreamError("--alerts and --webhook tell of standing questions: give one with --standing")
    if options.as_json and options.alerts == STDOUT:
        raise StreamError("--json and --alerts - both write to stdout: give --alerts a file")
    every, hold, cooldown, most = options.every, options.hold, options.cooldown, options.most
    return [StandingQuestion(text, every, hold, cooldown, None, most) for text in options.standing]


def _refuse_places(options: WatchOptions) -> None:
    """Refuse what could not be written or read in the end."""
    if options.video is None and options.resume is None:
        raise StreamError("there is nothing to watch: give a video, a folder of pictures, a camera, or --resume NAME")
    if options.clips is not None and options.record is None:
        raise StreamError(
            "--clips: a stream keeps no pictures; give a folder that frames are recorded in with --record"
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
    if options.save is not None and options.resume is None and options.method != "mosaic":
        raise StreamError(f"--save {options.save}: a stream with the method {options.method!r} cannot be saved")
    strip = options.strip
    if strip is not None and (strip.is_dir() or not strip.absolute().parent.is_dir()):
        raise EmblemaError(f"--strip {strip}: no picture can be written there; give a file in a folder that is there")


def _refuse_recorded(options: WatchOptions, recorder: FrameRecorder | None, begin: float) -> None:
    """Refuse a folder with frames of later times: none could be added, and clips would show another video."""
    times, begin = [] if recorder is None else recorder.times, time.time() if options.is_live else begin
    # A frame that was recorded just before the last run was stopped comes again, its time rounded.
    if times and times[-1] > begin + 1e-6:
        raise StreamError(
            f"--record {options.record}: frames that are there end at {times[-1]:.15g} s, those that come begin at "
            f"{begin:.15g} s; give another folder, or empty it"
        )


def _opened(engine: "Engine", options: WatchOptions, settings: StreamSettings) -> Stream:
    return engine.stream(options.method, settings) if options.resume is None else engine.load_stream(options.resume)


@contextmanager
def _viewer(
    options: WatchOptions, stream: Stream, source: FrameSource | None, thumbnails: Thumbnails, typing: bool, drawn: bool
) -> Iterator[Viewer]:
    out, notes = console(options.plain), console(options.plain, stderr=True)
    expected = None if source is None or source.count is None else stream.frames + source.count
    name = options.resume if source is None else source.name
    if drawn:
        from emblema.cli.view.panel import PanelViewer

        with PanelViewer(out, name or "", _about(options, stream), expected, thumbnails, typing) as panel:
            yield panel
        return
    quiet = options.as_json or options.alerts == STDOUT
    yield PlainViewer(None if quiet else out, notes, expected, typing)


def _about(options: WatchOptions, stream: Stream) -> str:
    return f"{stream.method}, {Path(options.model).name}"


def _leave(
    options: WatchOptions,
    stream: Stream,
    session: WatchSession,
    thumbnails: Thumbnails,
    drawn: bool,
    source: FrameSource | None,
    recorder: FrameRecorder | None,
) -> None:
    """Write what is to be kept, and print where the stream is unless that was drawn.

    Raises:
        EmblemaError: something could not be written; raised after the rest is written, and all is printed.
    """
    notes, status = console(options.plain, stderr=True), session.status
    places: dict[str, str] = {}
    troubles: list[str] = []
    if options.strip is not None and session.answers:
        with _collected(troubles):
            places["strip"] = _draw_strip(options, stream, session, thumbnails, options.strip)
    elif options.strip is not None:
        notes.print("no question was answered: there is nothing to draw", style="yellow")
    if options.save is not None and stream.frames:
        with _collected(troubles):
            places["saved"] = str(stream.save(options.save))
            thumbnails.forget(stream.log.gone)
            thumbnails.save(options.thumbnails(options.save))
    if options.clips is not None and recorder is not None:
        with _collected(troubles):
            note = partial(notes.print, soft_wrap=True, markup=False)
            places |= _write_clips(options.clips, session, recorder, note)
    live = {} if source is None else source.to_json()
    if options.as_json:
        told = {"live": live} if live else {}
        facts = {"video": options.shown, "model": options.model, **told, **session.to_json(), **places}
        typer.echo(json.dumps(facts, indent=2))
    else:
        for line in () if drawn else text.summary(status):
            notes.print(line, style="dim", soft_wrap=True, markup=False)
        if live:
            notes.print("live: " + ", ".join(f"{name} {count}" for name, count in live.items()), style="dim")
        for name, place in places.items():
            notes.print(f"{name}: {place}", soft_wrap=True, markup=False)
    if troubles:
        raise EmblemaError("; ".join(troubles))


@contextmanager
def _collected(troubles: list[str]) -> Iterator[None]:
    """Add what fails to a list, so that the rest is written all the same."""
    try:
        yield
    except EmblemaError as error:
        troubles.append(str(error))


def _draw_strip(
    options: WatchOptions, stream: Stream, session: WatchSession, thumbnails: Thumbnails, path: Path
) -> str:
    from emblema.cli.view.strip import draw

    status, name = session.status, Path(options.shown or options.resume or "").name
    title = " \u00b7 ".join((name, _about(options, stream), text.frames(status, None), text.clusters(status)))
    try:
        return str(draw(session.answers, thumbnails, title, path))
    except OSError as error:
        raise EmblemaError(f"--strip {path}: it cannot be written ({error.strerror}); give another file") from error


def _write_clips(
    folder: Path, session: WatchSession, recorder: FrameRecorder, note: Callable[[str], None]
) -> dict[str, str]:
    """Write a clip of each answer's strongest evidence; return where they are."""
    output_folder(folder, "--clips")
    places = {}
    for number, answer in enumerate(session.answers, 1):
        spans = answer.reply.evidence()
        if not spans:
            continue
        best = max(spans, key=lambda span: (span.share, span.end - span.start))
        try:
            recorder.export_clip(best.start, best.end, folder / f"answer-{number}.mp4")
        except EmblemaError as error:
            note(f"no clip of answer {number}: {error}")
            continue
        places[f"clip {number}"] = str(folder / f"answer-{number}.mp4")
    return places


def _has_keys() -> bool:
    """Return whether a terminal can be read key by key here."""
    return find_spec("termios") is not None
