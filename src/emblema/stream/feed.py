"""The half of a stream that takes frames in and runs them through the decoder, block by block."""

import math
import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from emblema.errors import CapacityError, StreamError, UnsupportedModelError
from emblema.models.adapter import Adapter
from emblema.stream.encoding import encode
from emblema.stream.intake import Frame, Intake
from emblema.stream.local import Local
from emblema.stream.log import FrameLog
from emblema.stream.method import Departed, Method, Scene
from emblema.stream.methods import method_named
from emblema.stream.phases import PhaseTables
from emblema.stream.positions import Places
from emblema.stream.seam import Host
from emblema.stream.settings import StreamSettings


class Feed:
    """Takes frames in. See `Stream`."""

    def __init__(self, host: Host, method: str, settings: StreamSettings) -> None:
        refuse_unreadable(host.adapter)
        self.settings, self.log = settings, FrameLog()
        self._host, self._name, self._make = host, method, method_named(method, settings)
        self._intake, self._owner = Intake(settings), threading.get_ident()
        self._opening = host.opening()
        self._memory: tuple[Local, Method] | None = None

    @property
    def method(self) -> str:
        """The memory's name."""
        return self._name

    @property
    def frames(self) -> int:
        """Frames seen so far; those that wait are not among them."""
        return len(self.log)

    @property
    def waiting(self) -> int:
        """Frames that wait to be encoded."""
        return len(self._intake)

    @property
    def dropped(self) -> int:
        """Frames that were dropped because others came faster than they were encoded."""
        return self._intake.dropped

    def push(self, frames: Any, at: float | Sequence[float] | None = None) -> int:
        """Take in a frame, or several.

        The owner's whole blocks are encoded before this returns; what other threads push waits in a queue, and is
        dropped or waits for room as the settings say.

        Args:
            frames: anything that a picture can be loaded from, or a list of such; all of one size.
            at: seconds at which it came, or a time for each; by default each one second behind the one before.

        Returns:
            How many were taken.

        Raises:
            MediaError: a frame cannot be read, or has another size; none of those given is taken then.
            StreamError: time went back, or the stream is closed; likewise.
            CapacityError: the stream would leave the model's context.
        """
        given = list(frames) if isinstance(frames, list | tuple) else [frames]
        times = self._times(at, len(given))
        self._refuse_beyond(len(given))
        ready = [Frame(self._host.picture(one), when) for one, when in zip(given, times, strict=True)]
        own = threading.get_ident() == self._owner
        taken = self._intake.put(ready, wait=not own)
        if own:
            self._encode(whole_blocks=True)
        return taken

    def push_video(self, source: Any, fps: float = 0.5) -> int:
        """Take in a video's frames as they stand on screen at 0, 1/fps, 2/fps, … seconds, behind what has been seen.

        Returns:
            How many were taken.

        Raises:
            MediaError: it cannot be read, or is cut short; the frames that could be read are taken all the same.
        """
        last, taken = self._intake.last, 0
        for when, picture in self._host.video(source, fps):
            taken += self.push(picture, at=when if last is None else last + 1 / fps + when)
        return taken

    def advance(self) -> int:
        """Encode all frames that wait, those of a block that is not whole too; how many there were."""
        self._refuse_others()
        return self._encode(whole_blocks=False)

    def _times(self, at: float | Sequence[float] | None, count: int) -> list[float]:
        if at is None:
            begin = -1.0 if self._intake.last is None else self._intake.last
            return [begin + step for step in range(1, count + 1)]
        times = list(at) if isinstance(at, Sequence) else [at]
        if len(times) != count:
            raise StreamError(f"{count} frames came with {len(times)} times: give a time for each")
        if not all(isinstance(time, int | float) and math.isfinite(time) for time in times):
            raise StreamError(f"the times {times!r} are not all numbers: give seconds")
        return [float(time) for time in times]

    def _encode(self, whole_blocks: bool) -> int:
        done = 0
        while self.waiting:
            room = self.settings.block if self._memory is None else self._memory[0].room
            if whole_blocks and self.waiting < room:
                break
            done += self._take_in(self._intake.take(room))
        return done

    def _take_in(self, frames: list[Frame]) -> int:
        adapter = self._host.adapter
        codes = self._host.codes([frame.picture for frame in frames])
        local, method = self._begun(codes.offsets)
        encode(adapter, method, local, codes, self.settings.batched)
        self.log.add(codes, [frame.at for frame in frames])
        if local.room == 0:
            self._end_block(local, method)
        return len(frames)

    def _refuse_beyond(self, more: int) -> None:
        """Refuse frames that would stand outside the model's context; the first block's are not known to."""
        if self._memory is None:
            return
        places, context = self._memory[0].places, self._host.adapter.context_length
        last = self.frames + self.waiting + more
        if places.corner(last) > context:
            raise CapacityError(
                f"frame {last} would end at position {places.corner(last)}, but the model's context holds {context}: "
                "open the stream with positions='packed'"
            )

    def _begun(self, offsets: Tensor) -> tuple[Local, Method]:
        if self._memory is None:
            adapter = self._host.adapter
            places = Places.of(self.settings, len(self._opening), offsets)
            phases = PhaseTables(adapter.tables)
            local = Local(adapter, self.settings, places, self._opening, phases)
            scene = Scene(adapter, self.settings, places, self.log, self._opening, self._host.ending(), phases)
            self._memory = local, self._make(scene)
        return self._memory

    def _end_block(self, local: Local, method: Method) -> None:
        leaving = local.advance()
        if leaving is None:
            method.settle()
        else:
            codes = self.log.codes(leaving.frames).to(self._host.adapter.device)
            method.admit(Departed(leaving.frames, leaving.layers, leaving.positions, codes))

    def _refuse_others(self) -> None:
        if threading.get_ident() != self._owner:
            raise StreamError("a stream is asked by the thread that opened it; others may push frames")


def refuse_unreadable(adapter: Adapter) -> None:
    """Refuse a model whose layers cannot read a memory.

    Raises:
        UnsupportedModelError: a layer has a sliding window of its own, or keeps latent rows that it does not expand.
    """
    for name, layer, layout in zip(adapter.names, adapter.layers, adapter.layouts, strict=True):
        if layout.window is not None:
            raise UnsupportedModelError(f"{name} sees its last {layout.window} rows only: it cannot read a memory")
        if layout.kind == "latent" and not any(hasattr(part, "expand_kv") for part in layer.modules()):
            raise UnsupportedModelError(f"{name} keeps latent rows and has no expand_kv: it cannot read a memory")
