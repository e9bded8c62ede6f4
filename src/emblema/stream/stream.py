"""A stream: frames come, are encoded block by block, and questions are answered at any time."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.kv.chunk import Chunk
from emblema.stream.answering import Moment, StreamPiece, StreamReply, StreamUsage, ask, difference
from emblema.stream.chunks import ChunkMaker, parts
from emblema.stream.feed import Feed
from emblema.stream.local import Local
from emblema.stream.method import Bytes, Method, Sight
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.saving import Savable, load, save
from emblema.stream.seam import Asked, Decoder, Host

RESERVE = 64
"""Rows that a question's table keeps room for before it has to grow."""


class Stream(Feed):
    """Hours of video behind one question. Made by `Engine.stream`; the thread that made it owns it.

    Other threads may `push` and nothing else.

    Attributes:
        settings: how it remembers.
        log: times and codes of the frames seen.

    Raises:
        UnsupportedModelError: the model's layers cannot read a memory.
        StreamError: there is no method of that name.
    """

    @overload
    def ask(
        self, text: Any, at: float | None = ..., window: int | None = ..., stream: Literal[False] = ..., **knobs: Any
    ) -> StreamReply: ...

    @overload
    def ask(
        self, text: Any, at: float | None = ..., window: int | None = ..., *, stream: Literal[True], **knobs: Any
    ) -> Iterator[StreamPiece]: ...

    def ask(
        self, text: Any, at: float | None = None, window: int | None = None, stream: bool = False, **knobs: Any
    ) -> StreamReply | Iterator[StreamPiece]:
        """Answer a question about what has been seen; question and answer leave nothing behind in the stream.

        Args:
            text: the question, or its token ids.
            at: ask about this moment, in seconds: what came later is not seen.
            window: see only so many frames before that.
            stream: hand back the pieces as they are made; the last carries the reply.
            knobs: as `Engine.generate`: `max_new_tokens`, `temperature`, `top_p`, `stop`, `seed`.

        Raises:
            StreamError: nothing had been seen by then, or the stream is closed.
            PromptError: the question or a knob is not right, or there is no room for it in the model's context.
        """
        began = time.perf_counter()
        answer = _Answer(self, text, at, window, self._host.decoder(knobs), began)
        return answer.pieces() if stream else answer.reply()

    def prefill(self, text: Any, at: float | None = None, window: int | None = None) -> Tensor:
        """As `ask`, up to the logits behind the question, [vocab] float32."""
        logits = self._prefilled(text, self._sight(at, window), 0).logits
        self.settle()
        return logits

    def settle(self) -> None:
        """Do what was put off until clusters were on the device anyhow; every question and block does."""
        if self._memory is not None:
            self._memory[1].settle()

    def _sight(self, at: float | None, window: int | None) -> Sight:
        self._refuse_others()
        self._intake.refuse_closed()
        self._encode(whole_blocks=False)
        high = self.frames if at is None else self.log.until(at)
        if high == 0:
            when = "yet" if at is None else f"by {at:g} s"
            raise StreamError(f"nothing had been seen {when}: push frames before the question")
        if window is not None and (type(window) is not int or window < 1):
            raise StreamError(f"window is {window!r}: it must be a whole number of frames, 1 or more")
        low = 0 if window is None else max(0, high - window)
        return Sight(low, high, max(low, high - self.settings.window))

    def _prefilled(self, text: Any, sight: Sight, most: int) -> Asked:
        assert self._memory is not None  # something has been seen
        local, method = self._memory
        return ask(self._host.adapter, method, local, sight, self._host.closing(text), most, min(most, RESERVE))

    @property
    def bytes(self) -> Bytes:
        """What the stream holds, weights apart, by place; codes of frames are on the host for every method."""
        if self._memory is None:
            return Bytes({}, {})
        local, method = self._memory
        held = method.bytes()
        return Bytes(
            {"local": local.bytes, "phases": local.phases.bytes, **held.device}, {"codes": self.log.bytes, **held.host}
        )

    @property
    def counts(self) -> dict[str, float]:
        """What the memory has counted since the stream began: transfers, bytes moved, splits and more."""
        return {} if self._memory is None else dict(self._memory[1].counts())

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """Frames of each visual cluster by its number, in order; none for a method that has no clusters."""
        if self._memory is None or not isinstance(self._memory[1], Mosaic):
            return {}
        found = self._memory[1].visual.level.clusters
        return {id: tuple(sorted(cluster.frames)) for id, cluster in found.items()}

    def save(self, name: str) -> Path:
        """Write the stream to the engine's folder, frames that wait encoded first; one saved under the name goes.

        Raises:
            StreamError: there is no folder, nothing has been seen, this is no name, or the method cannot be saved.
            StoreError: the folder cannot be written.
        """
        local, method = self._seen()
        last, size = self._intake.last, self._intake.size
        about = {"last": last, "size": size, "dropped": self.dropped}
        return save(self._host, name, about, self.log, local, method)

    @classmethod
    def load(cls, host: Host, name: str) -> Self:
        """A stream that was saved, as it was: it gives the same answers, and goes on.

        Raises:
            StreamError: there is none of that name, or it was another model's or another template's.
            StoreError: it is damaged.
        """
        state, settings = load(host, name)
        stream = cls(host, state.facts["method"], settings)
        stream.log.resume(state.part("log"))
        local, method = stream._begun(stream.log.offsets.to(host.adapter.device))
        local.resume(state.part("local"))
        if not isinstance(method, Savable):
            raise StoreError(f"the stream {name!r} says that its method is {method.name!r}, which is never saved")
        method.resume(state.part("memory"))
        facts = state.facts
        stream._intake.resume(facts["last"], tuple(facts["size"]), facts["dropped"])
        return stream

    def chunks(self, most: int = 64) -> list[Chunk]:
        """The stream's frames as chunks in the engine's store, to be set into any prompt at any position.

        One for each visual cluster, its frames in order, and one for those that have not left the window. Their rows
        are those that the stream wrote; if the store loses one, it is prefilled alone from what the encoder made.

        Args:
            most: frames of a chunk; a larger cluster gives several.

        Raises:
            StreamError: nothing has been seen, the method has no clusters, or `most` is no whole number of 1 or more.
        """
        if type(most) is not int or most < 1:
            raise StreamError(f"most is {most!r}: it must be a whole number of frames, 1 or more")
        local, method = self._seen()
        if not isinstance(method, Mosaic):
            raise StreamError(f"a stream with the method {method.name!r} has no clusters: use mosaic")
        maker = ChunkMaker(self._host.adapter, self.log, local, method, self._host.markers())
        return [self._host.keep(*maker.chunk(frames)) for frames in parts(local, method, most)]

    def _seen(self) -> tuple[Local, Method]:
        self._intake.refuse_closed()
        self.advance()
        if self._memory is None:
            raise StreamError("nothing has been seen yet: push frames first")
        return self._memory

    def close(self) -> None:
        """Take no more frames, and give back what is held. Closing twice does nothing."""
        self._intake.close()
        if self._memory is not None:
            self._memory[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Answer:
    """One answer under way: the question is prefilled, and what it retrieved is held until it is complete."""

    def __init__(
        self, stream: Stream, text: Any, at: float | None, window: int | None, decoder: Decoder, began: float
    ) -> None:
        self._stream, self._decoder, self._began = stream, decoder, began
        self._sight = stream._sight(at, window)
        self._before = stream.counts
        self._asked = stream._prefilled(text, self._sight, decoder.most)
        self._rows = self._asked.table.length

    def reply(self) -> StreamReply:
        return [piece.reply for piece in self.pieces() if piece.reply is not None][-1]

    def pieces(self) -> Iterator[StreamPiece]:
        usage: StreamUsage | None = None
        moments: tuple[Moment, ...] = ()
        text = ""
        for piece in self._decoder(self._asked):
            if usage is None:
                usage, moments = self._usage(time.perf_counter() - self._began)
            text += piece.text
            if not piece.reason:
                if piece.text:
                    yield StreamPiece(piece.text)
                continue
            usage = usage.of(len(piece.token_ids))
            yield StreamPiece(piece.text, StreamReply(text, piece.token_ids, piece.reason, usage, moments))

    def _usage(self, seconds: float) -> tuple[StreamUsage, tuple[Moment, ...]]:
        """Once the first token is there."""
        stream, sight = self._stream, self._sight
        assert stream._memory is not None
        method = stream._memory[1]
        shares = sorted(method.retrieved().items())
        moments = tuple(Moment(frame, stream.log.times[frame], share) for frame, share in shares)
        stream.settle()
        counts = difference(stream.counts, self._before)
        return StreamUsage(method.name, sight.high - sight.low, len(moments), self._rows, seconds, counts), moments
