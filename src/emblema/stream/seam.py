"""What a stream asks of an engine, so that it knows neither processors nor templates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image
from torch import Tensor

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.models.adapter import Adapter
from emblema.models.frames import FrameCodes
from emblema.models.table import KVTable
from emblema.session.decoding import RowRunner

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """What stands behind the frames: the end marker, the question, the end of the turn, the answer's opening.

    Attributes:
        token_ids: all of it.
        question: the tokens of the question itself, as a range of these; what retrieval goes by.
    """

    token_ids: TokenIds
    question: range


@dataclass(frozen=True, slots=True)
class Asked:
    """A question prefilled, ready to decode behind.

    Attributes:
        runner: runs further rows behind it.
        table: its own rows; decoding appends to them.
        position: where the next row stands.
        logits: of the last row, [vocab] float32.
    """

    runner: RowRunner
    table: KVTable
    position: int
    logits: Tensor


class Decoder(Protocol):
    """Decodes an answer.

    Attributes:
        most: tokens that it may make.
    """

    most: int

    def __call__(self, asked: Asked) -> Iterator["Decoded"]:
        """The answer as it is made; the last of what comes says why it ended."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A piece of text; with the last one all tokens, and why the answer ended: `stop` or `length`."""

    text: str
    token_ids: TokenIds = ()
    reason: str = ""


class Host(Protocol):
    """An engine as a stream sees it."""

    @property
    def adapter(self) -> Adapter: ...

    @property
    def folder(self) -> Path | None:
        """Where streams are saved; None if the engine keeps nothing on disk."""

    def opening(self) -> TokenIds:
        """What stands in front of the frames, the start marker of media among it."""

    def closing(self, question: str | Sequence[int]) -> Closing:
        """What stands behind them.

        Raises:
            PromptError: there is nothing to ask.
        """

    def markers(self) -> tuple[TokenIds, TokenIds]:
        """What a piece of media stands between."""

    def keep(self, encoded: Encoded, rows: Sequence[LayerRows]) -> Chunk:
        """Keep frames of a stream in the store, as a chunk that a prompt can be given."""

    def ending(self) -> TokenIds:
        """What stands behind any question; at least one token."""

    def picture(self, frame: Any) -> Image.Image:
        """A frame as a picture.

        Raises:
            MediaError: it cannot be read, or is outside the limits.
        """

    def video(self, source: Any, fps: float) -> Iterator[tuple[float, Image.Image]]:
        """The frames of a video with their times.

        Raises:
            MediaError: it cannot be read; frames that came before stay.
        """

    def codes(self, pictures: Sequence[Image.Image]) -> FrameCodes:
        """What the encoder makes of frames of one size."""

    def decoder(self, knobs: Mapping[str, Any]) -> "Decoder":
        """Decoding as the knobs of sampling say.

        Raises:
            PromptError: a knob is not right.
        """
