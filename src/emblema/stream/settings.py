"""What a user sets on a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal, get_args

from emblema.errors import StreamError

Positions = Literal["native", "packed"]
Drop = Literal["block", "oldest", "newest"]
REMOVED = frozenset(
    """ablation batched representatives weighted retrieve_while_encoding retrieval pool breadth scoring parts prefetch
    guess levels splitting tau_small tau_large scale geometry direction largest first clusters""".split()  # noqa: SIM905
)
"""Former settings: choices of the paper, which the method `mosaic-paper` makes."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of one stream, for every method.

    Attributes:
        sinks: first frames of the stream, always visible (StreamingVLM); the turn's opening always is.
        window: latest frames, visible to the next frames and to questions.
        block: frames that are encoded together; each sees the memory as it was before the block.
        budget: frames retrieved in each layer; None retrieves everything.
        positions: `native` positions grow with the stream; `packed` moves visible frames next to one another, by exact
            relocation from the rows as first written, so that a stream of any length stays in the model's range.
        queue: frames that may wait to be encoded.
        drop: what to do with a frame that another thread pushes to a full queue: let it wait (`block`), drop the
            `oldest` that waits, or drop it (`newest`).
        skip: leave out frames that differ by less than this share from the last one kept; None keeps all.
        host_bytes: bytes of frames' rows and codes that memory holds, about; older ones go to the engine's folder.
            None holds all that came since the stream was opened or loaded.
        keep_seconds: frames that came longer before the latest one are forgotten; None forgets none.
        keep_bytes: the oldest frames are forgotten once rows and codes would take more, in memory and on disk together;
            None forgets none. Window and block stay.
        save_as: a name under which the stream saves itself to the engine's folder as blocks end; None if it does not. A
            stream that is loaded goes on under the name that it was loaded by.
        save_blocks, save_seconds: it does so when so many blocks, or frames of so many seconds, came since it last did,
            whichever is sooner; None for the one that does not count.
    """

    sinks: int = 1
    window: int = 16
    block: int = 8
    budget: int | None = 64
    positions: Positions = "native"
    queue: int = 64
    drop: Drop = "block"
    skip: float | None = None
    host_bytes: int | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    save_as: str | None = None
    save_blocks: int | None = 16
    save_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_counts(self, {"sinks": 0, "window": 0, "block": 1, "queue": 1})
        for name in ("budget", "host_bytes", "keep_bytes", "save_blocks"):
            if getattr(self, name) is not None:
                _check_counts(self, {name: 1})
        _check_choices(self, {"positions": Positions, "drop": Drop})
        if self.skip is not None and not (isinstance(self.skip, int | float) and 0 < self.skip < 1):
            raise StreamError(f"skip is {self.skip!r}: it must be a share between 0 and 1, or None")
        for name in ("keep_seconds", "save_seconds"):
            age = getattr(self, name)
            if age is not None and not (isinstance(age, int | float) and not isinstance(age, bool) and 0 < age < inf):
                raise StreamError(f"{name} is {age!r}: it must be a number of seconds above 0, or None")
        if self.save_as is not None and self.save_blocks is None and self.save_seconds is None:
            raise StreamError("save_as needs save_blocks or save_seconds: say how often the stream saves itself")
        if self.positions == "packed" and self.budget is None:
            raise StreamError("packed positions need a budget: what is seen has to have an end")

    def lines_together(self, frame_bytes: int) -> int | None:
        """Return how many frames of so many bytes memory gives up together; None if it never does."""
        if not self.releases:
            return None
        least = min(bound for bound in (self.host_bytes, self.keep_bytes, 2**40) if bound is not None)
        return min(64, max(1, least // (8 * frame_bytes)))

    @property
    def releases(self) -> bool:
        """Whether memory gives up frames."""
        return (self.host_bytes, self.keep_seconds, self.keep_bytes) != (None, None, None)


def change_settings(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return settings with some of them changed by name.

    Raises:
        StreamError: there is no setting of a name, or a value is not right.
    """
    known = {setting.name for setting in fields(StreamSettings)}
    for name in sorted(changes.keys() - known):
        if name in REMOVED:
            raise StreamError(f"the setting {name!r} was removed: the method 'mosaic-paper' chooses as the paper does")
        raise StreamError(f"there is no setting {name!r}: choose from {', '.join(sorted(known))}")
    return replace(settings, **changes)


def _check_counts(settings: object, least: Mapping[str, int]) -> None:
    for name, bound in least.items():
        value = getattr(settings, name)
        if type(value) is not int or value < bound:
            raise StreamError(f"{name} is {value!r}: it must be a whole number, {bound} or more")


def _check_choices(settings: object, choices: Mapping[str, Any]) -> None:
    for name, kind in choices.items():
        value, known = getattr(settings, name), get_args(kind)
        if value not in known:
            raise StreamError(f"{name} is {value!r}: choose {', '.join(known[:-1])} or {known[-1]}")
