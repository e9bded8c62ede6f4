"""The frames of a stream that were encoded: the latest as rows, the others in a memory, and what is kept on disk."""

from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from emblema.errors import CapacityError, StoreError, StreamError
from emblema.models.frames import encode_frames
from emblema.session.session import Session
from emblema.stream.archive import FrameArchive
from emblema.stream.forward import encode_block
from emblema.stream.frames import FrameLog, TimedFrame
from emblema.stream.method import MemoryBytes, Method, StreamContext
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.positions import FramePositions, PhaseTables
from emblema.stream.recent import RecentWindow
from emblema.stream.settings import StreamSettings
from emblema.stream.state import StreamState
from emblema.stream.turn import StreamTurn
from emblema.stream.visible import retained_from

BATCH = 16
"""Frames that are too old are forgotten together, one for so many that are kept."""


class SeenFrames:
    """Encodes frames block by block, and keeps what is seen of them. One thread uses it.

    Args:
        session: of the stream.
        make: the memory's class.
        settings: of the stream.
        turn: token ids around the frames.

    Attributes:
        log: times and codes of the frames.
    """

    def __init__(self, session: Session, make: type[Method], settings: StreamSettings, turn: StreamTurn) -> None:
        self.log = FrameLog(settings.block if settings.releases else None)
        self._session, self._adapter = session, session.adapter
        self._make, self._settings, self._turn = make, settings, turn
        self._parts: tuple[RecentWindow, Method] | None = None
        self._archive: FrameArchive | None = None
        # Blocks since the last save, and the time of its last frame; None before the first frame.
        self._unsaved_blocks = 0
        self._saved_at: float | None = None

    def __len__(self) -> int:
        return len(self.log)

    @property
    def begun(self) -> bool:
        """Whether there is a frame."""
        return self._parts is not None

    @property
    def parts(self) -> tuple[RecentWindow, Method]:
        """The latest frames, and the memory of the others; StreamError before the first frame."""
        if self._parts is None:
            raise StreamError("nothing has been seen yet: push frames first")
        return self._parts

    @property
    def room(self) -> int:
        """Frames that the block under way still takes."""
        return self._settings.block if self._parts is None else self._parts[0].room

    @property
    def first(self) -> int:
        """The first frame that is not too old to be seen."""
        return 0 if self._parts is None else retained_from(self.log, self._settings, self._parts[1].frame_bytes)

    @property
    def bytes(self) -> MemoryBytes:
        """Bytes by place and purpose."""
        if self._parts is None:
            return MemoryBytes({}, {})
        recent, memory = self._parts
        own = memory.bytes()
        device = {"local": recent.bytes, "phases": recent.phases.bytes, **own.device}
        return MemoryBytes(device, {"codes": self.log.bytes, **own.host})

    @property
    def counts(self) -> dict[str, float]:
        """What the memory and the disk have counted."""
        disk = {} if self._archive is None else asdict(self._archive.counts)
        return {} if self._parts is None else {**self._parts[1].counts(), **disk}

    def refuse_beyond_context(self, last: int) -> None:
        """Refuse frames up to `last` outside the model's context; before the first block their size is not known."""
        if self._parts is None:
            return
        context, end = self._adapter.context_length, self._parts[0].positions.corner(last)
        if end > context:
            raise CapacityError(
                f"frame {last} would end at position {end}, but the model's context holds {context}: "
                "open the stream with positions='packed'"
            )

    def encode(self, frames: list[TimedFrame]) -> None:
        """Take frames into the block under way, which has room for them.

        Raises:
            StoreError: rows on disk cannot be read; no frame was taken.
        """
        preparer = self._session.chunk_builder.preparer
        codes = encode_frames(self._adapter, preparer, [frame.picture for frame in frames])
        recent, memory = self._begin(codes.offsets)
        table, before = recent.table, recent.table.length
        try:
            encode_block(memory, recent, codes)
        except StoreError:
            table.truncate(before)
            raise
        self.log.add(codes, [frame.at for frame in frames])

    def end_block(self) -> bool:
        """End the complete block; return whether the settings have the stream saved now.

        Raises:
            StoreError: the folder of `host_bytes` cannot be written.
        """
        recent, memory = self.parts
        evicted = recent.end_block()
        if evicted is None:
            memory.settle()
        else:
            memory.admit(evicted)
        self._forget_expired()
        if self._settings.host_bytes is not None:
            self.archived()[0].keep_budget()
        return self._settings.save_as is not None and self._is_save_due()

    def archived(self) -> tuple[FrameArchive, FrameMemory]:
        """Return what keeps frames on disk, and the memory that it keeps them of.

        Raises:
            StreamError: nothing has been seen, or the method cannot be saved.
        """
        memory = self.parts[1]
        if not isinstance(memory, FrameMemory):
            raise StreamError(f"a stream with the method {memory.name!r} cannot be saved: use mosaic")
        if self._archive is None:
            self._archive = FrameArchive(stream_folder(self._session), self._settings, self.log, memory)
        return self._archive, memory

    def forget(self, frames: range) -> None:
        """Take frames out of all that is in memory."""
        recent, memory = self.parts
        self.log.forget(frames)
        memory.forget(frames)
        recent.forget(frames)

    def save(self, name: str, state: StreamState) -> Path:
        """Write what has come since the last save, with the rest of the stream's state; return the file of that."""
        archive, memory = self.archived()
        for part, kept in {"log": self.log.state(), "local": self.parts[0].state(), "memory": memory.state()}.items():
            state.put(part, kept)
        path = archive.save(name, state)
        self._unsaved_blocks, self._saved_at = 0, self.log.times[-1]
        return path

    def restore(self, name: str, state: StreamState, held: bool) -> None:
        """Go on from a saved state; `held` says whether the folder's lock is held."""
        self.log.restore(state.part("log"))
        recent = self._begin(self.log.offsets.to(self._adapter.device))[0]
        archive, memory = self.archived()
        recent.restore(state.part("local"))
        memory.restore(state.part("memory"), archive.restore(name, state, held))
        self._saved_at = self.log.times[-1]

    def close(self) -> None:
        """Give back threads and the file."""
        if self._parts is not None:
            self._parts[1].close()
        if self._archive is not None:
            self._archive.close()

    def _begin(self, offsets: Tensor) -> tuple[RecentWindow, Method]:
        """Return window and memory; made for frames of `offsets` if there is none yet."""
        if self._parts is None:
            adapter, settings, turn = self._adapter, self._settings, self._turn
            positions = FramePositions.of(settings, len(turn.opening), offsets)
            phases = PhaseTables(adapter.tables)
            context = StreamContext(adapter, settings, positions, self.log, turn.opening, turn.ending, phases)
            self._parts = RecentWindow(context), self._make(context)
        return self._parts

    def _forget_expired(self) -> None:
        """Forget frames that are too old or too many, in batches: what a batch costs does not grow with its frames."""
        until = self.first
        expired = self.log.gone.live(0, min(until, self.parts[0].done))
        if len(expired) >= max(self._settings.block, (len(self) - until) // BATCH):
            self.forget(range(int(expired[0]), int(expired[-1]) + 1))
            if self._archive is not None:
                self._archive.erase()

    def _is_save_due(self) -> bool:
        """Count a block; return whether the stream saves itself after it."""
        settings, times = self._settings, self.log.times
        self._unsaved_blocks += 1
        self._saved_at = times[0] if self._saved_at is None else self._saved_at
        if settings.save_blocks is not None and self._unsaved_blocks >= settings.save_blocks:
            return True
        return settings.save_seconds is not None and times[-1] - self._saved_at >= settings.save_seconds


def stream_folder(session: Session) -> Path | None:
    """Return the folder of the owner's saved streams; None if there is none."""
    disk = session.store.disk
    return None if disk is None else Path(disk.path) / "streams" / session.store.owner
