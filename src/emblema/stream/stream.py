"""A stream: frames come, are encoded block by block, and questions are answered at any time."""

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self, overload

from torch import Tensor

from emblema.errors import StoreError, StreamError, UnsupportedModelError
from emblema.kv.chunk import Chunk
from emblema.media import DEFAULT_LIMITS, MediaLimits, load_image, sample_frames
from emblema.media.source import is_address
from emblema.models.adapter import Adapter
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.replies import ReplyText
from emblema.session.session import Session
from emblema.stream.chunks import ChunkWriter, chunk_frames
from emblema.stream.forward import MemoryRunner, prefill_question
from emblema.stream.frame_file import hold_folder
from emblema.stream.frames import FrameQueue, TimedFrame
from emblema.stream.method import MemoryBytes, Method, VisibleRange
from emblema.stream.methods import find_method
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.recent import RecentWindow
from emblema.stream.reply import Moment, StreamPiece, StreamReply, StreamUsage
from emblema.stream.seen import SeenFrames, stream_folder
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.state import StreamState, read_state, state_path
from emblema.stream.turn import QuestionTokens, StreamTurn
from emblema.stream.visible import span_of, visible_range


class Stream:
    """Hours of video, to be asked at any time. Made by `Engine.stream`; the thread that made it owns it.

    Other threads may `push` and nothing else.

    Attributes:
        method: name of the memory.
        settings: how much is seen, and how it remembers.
        log: times and codes of the frames seen.
        turn: token ids around the frames.

    Raises:
        UnsupportedModelError: the model's layers cannot read a memory, or are on several devices.
        StreamError: there is no method of that name.
        PromptError: the template refuses the system turn, or there is a system turn and no template.
    """

    def __init__(
        self,
        session: Session,
        method: str | type[Method],
        settings: StreamSettings,
        template: bool = True,
        system: str | None = None,
    ) -> None:
        _refuse_unreadable(session.adapter)
        make = find_method(method, settings)
        wanted = (settings.keep_seconds, settings.keep_bytes, settings.host_bytes, settings.save_as)
        if not make.saves and any(value is not None for value in wanted):
            raise StreamError("keep_seconds, keep_bytes, host_bytes and save_as need the method mosaic")
        if settings.host_bytes is not None and stream_folder(session) is None:
            raise StreamError("host_bytes needs an engine with a folder: open it with store=")
        if settings.save_as is not None:
            state_path(stream_folder(session), settings.save_as)
        self.method, self.settings = make.name, settings
        self._session, self.turn = session, StreamTurn(session, template, system)
        self._seen = SeenFrames(session, make, settings, self.turn)
        self.log = self._seen.log
        self._queue, self._owner = FrameQueue(settings), threading.get_ident()

    @property
    def frames(self) -> int:
        """Frames seen so far, without those that wait."""
        return len(self.log)

    @property
    def last(self) -> float | None:
        """Seconds of the last frame that came, encoded or not, also one that was left out; None before the first."""
        return self._queue.last

    @property
    def waiting(self) -> int:
        """Frames that wait to be encoded."""
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """Frames that were dropped because others came faster than they were encoded."""
        return self._queue.dropped

    @property
    def skipped(self) -> int:
        """Frames that were left out because they showed nothing new."""
        return self._queue.skipper.skipped

    @property
    def recent(self) -> RecentWindow:
        """The rows that are always seen; StreamError before the first frame is encoded."""
        return self._seen.parts[0]

    @property
    def memory(self) -> Method:
        """The memory of the other frames; StreamError before the first frame is encoded."""
        return self._seen.parts[1]

    @property
    def bytes(self) -> MemoryBytes:
        """Bytes that the stream takes besides the weights, by place and purpose."""
        return self._seen.bytes

    @property
    def counts(self) -> dict[str, float]:
        """What the memory has counted since the stream began: transfers, bytes moved, cuts and more."""
        return self._seen.counts

    def push(self, frames: Any, at: float | Sequence[float] | None = None) -> int:
        """Take in a frame, or several.

        If the owner pushes, complete blocks are encoded before this returns. What other threads push waits in a queue,
        and is dropped or waits for room as the settings say.

        Args:
            frames: anything that a picture can be loaded from, or a list of such; all of one size.
            at: seconds at which it came, or a time for each; by default each one second after the one before.

        Returns:
            How many were taken.

        Raises:
            MediaError: a frame cannot be read, or has another size; none of those given is taken.
            StreamError: time went back, or the stream is closed; likewise.
            CapacityError: the stream would leave the model's context.
            StoreError: the folder of `host_bytes` or `save_as` cannot be written; the frames were taken.
        """
        given = list(frames) if isinstance(frames, list | tuple) else [frames]
        times = self._queue.times(at, len(given))
        self._seen.refuse_beyond_context(self.frames + self.waiting + len(given))
        limits = self._session.limits
        ready = [TimedFrame(load_image(frame, limits), when) for frame, when in zip(given, times, strict=True)]
        owned = threading.get_ident() == self._owner
        taken = self._queue.put(ready, wait=not owned)
        if owned:
            self._encode(whole_blocks=True)
        return taken

    def push_video(self, source: Any, fps: float = 0.5) -> int:
        """Take in the frames that a video shows at 0, 1/fps, 2/fps, … seconds, after what has been seen.

        Returns:
            How many were taken.

        Raises:
            MediaError: it cannot be read, or is cut short; the frames that could be read are taken all the same.
        """
        last, taken = self._queue.last, 0
        for when, picture in sample_frames(source, fps, self._video_limits(source)):
            taken += self.push(picture, at=when if last is None else last + 1 / fps + when)
        return taken

    def advance(self, blocks: int | None = None) -> int:
        """Encode frames that wait; return how many.

        Args:
            blocks: complete so many blocks at most, and begin none; None encodes all frames that wait.
        """
        self._refuse_others()
        return self._encode(blocks is not None, blocks)

    @overload
    def ask(
        self,
        text: Any,
        at: float | None = ...,
        window: int | None = ...,
        between: Sequence[float] | None = ...,
        after: StreamReply | None = ...,
        stream: Literal[False] = ...,
        **knobs: Any,
    ) -> StreamReply: ...

    @overload
    def ask(
        self,
        text: Any,
        at: float | None = ...,
        window: int | None = ...,
        between: Sequence[float] | None = ...,
        after: StreamReply | None = ...,
        *,
        stream: Literal[True],
        **knobs: Any,
    ) -> Iterator[StreamPiece]: ...

    def ask(
        self,
        text: Any,
        at: float | None = None,
        window: int | None = None,
        between: Sequence[float] | None = None,
        after: StreamReply | None = None,
        stream: bool = False,
        **knobs: Any,
    ) -> StreamReply | Iterator[StreamPiece]:
        """Answer a question about what has been seen; question and answer do not become part of the stream.

        Args:
            text: the question, or its token ids.
            at: ask about this moment, in seconds: what came later is not seen.
            window: see only so many frames before that.
            between: seconds of two moments: see only what came from the first until the second.
            after: a reply of this or another stream; the question follows it, and retrieval goes by the whole
                conversation. Frames are seen as for any other question, those that came since included.
            stream: return the pieces as they are made; the last carries the reply.
            knobs: as `Engine.generate`: `max_new_tokens`, `temperature`, `top_p`, `stop`, `seed`.

        Raises:
            StreamError: nothing had been seen by then, an argument is not right, or the stream is closed.
            PromptError: the question or a knob is not right, or there is no room for it in the model's context.
        """
        began = time.perf_counter()
        sampling = Sampling.of(**knobs)
        question = replace(self._question(text, after), remark=self._session.remark_on([text]))
        visible = self._visible(at, window, between)
        before = self.counts
        prefill = self._prefill(question, visible, sampling.max_new_tokens)
        pieces = self._answer(sampling, question, *prefill, visible, before, began)
        return pieces if stream else [piece.reply for piece in pieces if piece.reply is not None][-1]

    def prefill(
        self,
        text: Any,
        at: float | None = None,
        window: int | None = None,
        between: Sequence[float] | None = None,
        after: StreamReply | None = None,
    ) -> Tensor:
        """Return the logits after the question, [vocab] float32; arguments and errors as `ask`."""
        question = self._question(text, after)
        logits = self._prefill(question, self._visible(at, window, between), 0)[1].logits
        self.memory.settle()
        return logits

    def settle(self) -> None:
        """Do the work that waited until a question was answered; every block does it, and some questions."""
        if self._seen.begun:
            self.memory.settle()

    def save(self, name: str) -> Path:
        """Write what has come since the last save to the engine's folder; frames that wait are encoded first.

        What was saved under that name is replaced by it, whole or not at all.

        Raises:
            StreamError: there is no folder, nothing has been seen, this is no name, or the method cannot be saved.
            StoreError: the folder cannot be written.
        """
        self._complete()
        return self._save(name)

    def _save(self, name: str) -> Path:
        """Save what is encoded."""
        state = StreamState(
            facts={
                "last": self._queue.last,
                "size": self._queue.size,
                "dropped": self.dropped,
                "model": self._session.adapter.fingerprint,
                "method": self.method,
                "settings": asdict(self.settings),
                "opening": list(self.turn.opening),
            }
        )
        if self.settings.skip is not None:
            state.put("skipper", self._queue.skipper.state())
        return self._seen.save(name, state)

    def forget(self, between: Sequence[float]) -> int:
        """Delete the frames that came from one moment until another: their rows, and all that they are found by.

        No question sees them any more. What was written of them to disk is overwritten when this returns, and a stream
        that has been saved is saved again. Their times stay.

        Args:
            between: seconds of the two moments.

        Returns:
            How many frames were deleted.

        Raises:
            StreamError: nothing has been seen, the span is none, the method forgets nothing, or the stream is closed.
            StoreError: the folder cannot be written; the frames are gone from memory, and the call may be repeated.
        """
        self._complete()
        frames = span_of(self.log, between)
        archive, memory = self._seen.archived()
        memory.settle()
        deleted = len(self.log.gone.live(frames.start, frames.stop))
        self._seen.forget(frames)
        if len(self.log) - 1 in frames:
            self._queue.skipper.forget()
        archive.erase() if archive.saved is None else self.save(archive.saved)
        return deleted

    @classmethod
    def load(cls, session: Session, name: str, template: bool = True, system: str | None = None) -> Self:
        """Return a stream that was saved, as it was: it gives the same answers, and goes on.

        Raises:
            StreamError: there is none of that name, or it was another model's or another template's.
            StoreError: it is damaged.
        """
        path, held = state_path(stream_folder(session), name), False
        try:
            with ExitStack() as lock:
                # Where nothing may be written nothing has to be held: the stream is read, and saved elsewhere.
                with suppress(OSError):
                    lock.enter_context(hold_folder(path.parent))
                    held = True
                return cls._restored(session, name, read_state(path), held, template, system)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise StoreError(f"the stream in {path} is damaged: {error}") from error

    @classmethod
    def _restored(
        cls, session: Session, name: str, state: StreamState, held: bool, template: bool, system: str | None
    ) -> Self:
        facts = state.facts
        if facts["model"] != session.adapter.fingerprint:
            raise StreamError(f"the stream {name!r} was saved with another model: load that one")
        settings = change_settings(StreamSettings(), facts["settings"])
        if settings.save_as is not None:
            settings = replace(settings, save_as=name)
        stream = cls(session, facts["method"], settings, template, system)
        if tuple(facts["opening"]) != stream.turn.opening:
            raise StreamError(f"the stream {name!r} was opened with another template or system text: give the same")
        try:
            stream._seen.restore(name, state, held)
        except BaseException:
            stream.close()
            raise
        if settings.skip is not None:
            stream._queue.skipper.restore(state.part("skipper"))
        stream._queue.restore(facts["last"], tuple(facts["size"]), facts["dropped"])
        return stream

    def chunks(self, most: int = 64) -> list[Chunk]:
        """Return the stream's frames as chunks in the engine's store, for any prompt at any position.

        A chunk has frames that follow one another: first those that left the window, then the others. Their rows
        are those that the stream wrote; if the store loses one, it is prefilled alone.

        Args:
            most: frames of a chunk.

        Raises:
            StreamError: nothing has been seen, the method keeps no frames, or `most` is no whole number of 1 or more.
        """
        if type(most) is not int or most < 1:
            raise StreamError(f"most is {most!r}: it must be a whole number of frames, 1 or more")
        recent, memory = self._complete()
        if not isinstance(memory, FrameMemory):
            raise StreamError(f"a stream with the method {memory.name!r} keeps no frames for chunks: use mosaic")
        writer = ChunkWriter(recent, memory, self.turn.markers)
        return [writer.store(frames, self._session.store) for frames in chunk_frames(recent, memory, most)]

    def close(self) -> None:
        """Take no more frames, and give back threads. Closing twice does nothing."""
        self._queue.close()
        self._seen.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _encode(self, whole_blocks: bool, most: int | None = None) -> int:
        done = blocks = 0
        while self.waiting and blocks != most:
            room = self._seen.room
            if whole_blocks and self.waiting < room:
                break
            frames = self._queue.take(room)
            self._take_in(frames)
            done, blocks = done + len(frames), blocks + 1
        return done

    def _take_in(self, frames: list[TimedFrame]) -> None:
        try:
            self._seen.encode(frames)
        except StoreError:
            self._queue.put_back(frames)
            raise
        if self.recent.room == 0 and self._seen.end_block() and self.settings.save_as is not None:
            self._save(self.settings.save_as)

    def _complete(self) -> tuple[RecentWindow, Method]:
        """Return window and memory with all frames that wait encoded."""
        self._queue.refuse_closed()
        self.advance()
        return self._seen.parts

    def _visible(self, at: float | None, window: int | None, between: Sequence[float] | None) -> VisibleRange:
        self._refuse_others()
        self._queue.refuse_closed()
        self._encode(whole_blocks=False)
        shown = None if self.settings.skip is None else self._queue.last
        return visible_range(self.log, self.settings.window, at, window, between, shown, self._seen.first)

    def _question(self, text: Any, after: StreamReply | None) -> QuestionTokens:
        if after is not None and not isinstance(after, StreamReply):
            raise StreamError(f"after is a {type(after).__name__}: give the reply that the question follows")
        return self.turn.question(text, () if after is None else after.conversation)

    def _prefill(self, question: QuestionTokens, visible: VisibleRange, most: int) -> tuple[MemoryRunner, DecodeStart]:
        recent, memory = self._seen.parts
        return prefill_question(memory, recent, visible, question, most)

    def _answer(
        self,
        sampling: Sampling,
        question: QuestionTokens,
        runner: MemoryRunner,
        start: DecodeStart,
        visible: VisibleRange,
        before: dict[str, float],
        began: float,
    ) -> Iterator[StreamPiece]:
        """Decode after a question; the usage is known with the first token."""
        ends = self._session.end_tokens
        text = ReplyText(self._session.tokenizer, ends, sampling)
        usage: StreamUsage | None = None
        moments: tuple[Moment, ...] = ()
        for token in decode(runner, start, Sampler(sampling), ends):
            piece, reason = text.push(token)
            if usage is None:
                seconds = time.perf_counter() - began
                shares = sorted(self.memory.retrieved().items())
                seen = range(visible.low, visible.high)
                moments = tuple(Moment(frame, self.log.times[frame], share) for frame, share in shares if frame in seen)
                self.memory.settle()
                counts = {name: count - before.get(name, 0) for name, count in self.counts.items()}
                usage = StreamUsage(
                    self.method,
                    self.log.gone.count_live(visible.low, visible.high),
                    len(moments),
                    start.row,
                    seconds,
                    counts,
                )
            if reason is not None:
                usage = replace(usage, completion_tokens=len(text.made))
                conversation = (*question.conversation, *(token for token in text.made if token not in ends))
                said = text.remark(question.remark)
                reply = StreamReply(text.text, tuple(text.made), reason, usage, moments, conversation, said)
                yield StreamPiece(piece, reply)
                return
            elif piece:
                yield StreamPiece(piece)

    def _video_limits(self, source: Any) -> MediaLimits:
        """Bound a video by its frames alone, unless a limit was set: they come one at a time and are not kept."""
        limits = replace(self._session.limits, video_frames=sys.maxsize, video_pixels=sys.maxsize)
        if limits.video_seconds == DEFAULT_LIMITS.video_seconds:
            limits = replace(limits, video_seconds=math.inf)
        if limits.file_bytes == DEFAULT_LIMITS.file_bytes and isinstance(source, str | Path) and not is_address(source):
            limits = replace(limits, file_bytes=sys.maxsize)
        return limits

    def _refuse_others(self) -> None:
        if threading.get_ident() != self._owner:
            raise StreamError("a stream is asked by the thread that opened it; others may push frames")


def _refuse_unreadable(adapter: Adapter) -> None:
    """Refuse markers that are media, and layers on several devices, with a window or a state, or of bare latents."""
    if adapter.sharded:
        raise UnsupportedModelError("the layers are on several devices: load the model on one for streams")
    if len(adapter.kind.media_tokens(adapter.model.config, "image")) > 1:
        raise UnsupportedModelError(f"{adapter.family}'s markers of pictures are media tokens: no stream writes them")
    if len(adapter.layouts) < len(adapter.layers):
        name = adapter.names[len(adapter.layouts)]
        raise UnsupportedModelError(f"{name} attends the rows of another layer: it cannot read a memory")
    for name, layer, layout in zip(adapter.names, adapter.layers, adapter.layouts, strict=True):
        if layout.kind == "linear":
            raise UnsupportedModelError(f"{name} keeps a state, which no frame can leave: no stream can use it")
        if (rows := layout.taps or layout.window) is not None:
            raise UnsupportedModelError(f"{name} sees its last {rows} rows only: it cannot read a memory")
        if layout.kind == "latent" and not any(hasattr(part, "expand_kv") for part in layer.modules()):
            raise UnsupportedModelError(f"{name} keeps latent rows and has no expand_kv: it cannot read a memory")
