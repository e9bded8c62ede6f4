"""What a window asks of an engine, so that it knows neither models nor templates."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from emblema.kv.chunk import Chunk, Encoded
from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan
from emblema.link.policy.costs import Rates
from emblema.link.policy.policy import Lane
from emblema.link.prompt import Part as LinkPart
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.taken_rows import ModelGeometry
from emblema.link.trace import Usage
from emblema.session.chat_template import TokenIds
from emblema.session.turn_tokenizer import PrecedingText
from emblema.store.keys import PatchKey


@dataclass(frozen=True, slots=True)
class Taken:
    """A source made into members.

    Attributes:
        members: chunks, and the text that the model's template writes around each of them.
        kind: what the source is.
        encoder_runs: how often the encoder ran; what the window or the store knows is not encoded again.
        rows: rows of chunks that were prefilled alone; only of those that had been deleted from the store.
    """

    members: tuple[Chunk | str, ...]
    kind: str
    encoder_runs: int
    rows: int = 0


class Linkage(Protocol):
    """A linked prompt, ready to decode from."""

    @property
    def prompt(self) -> Prompt: ...

    @property
    def plan(self) -> LinkPlan: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def linked(self) -> LinkedTable: ...


class Answer(Protocol):
    """A finished reply."""

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> TokenIds: ...

    @property
    def usage(self) -> Usage: ...


L = TypeVar("L", bound=Linkage)
A = TypeVar("A", bound=Answer, covariant=True)


class AnswerPiece(Protocol[A]):
    """A piece of an answer under way; the last has the whole."""

    @property
    def text(self) -> str: ...

    @property
    def reply(self) -> A | None: ...


class Host(Protocol[L, A]):
    """An engine as a window sees it."""

    @property
    def model(self) -> str:
        """The model's fingerprint."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's KV, all layers together."""

    @property
    def shape(self) -> ModelGeometry:
        """What turning rows has to know of the model."""

    @property
    def patches(self) -> int:
        """How many patches were formed for prompts linked so far, those handed over to be formed later among them."""

    def opening(self) -> TokenIds:
        """What stands in front of a turn's first part; empty where no template is used."""

    def spell(self, run: PrecedingText, text: str) -> TokenIds:
        """Token ids of a text behind others, as they would be in one string; apart from them where that changed theirs.

        Raises:
            PromptError: it is no text.
        """

    def close(self, run: PrecedingText, question: str | Sequence[int]) -> TokenIds:
        """Token ids of a question with the end of the turn and the opening of the answer.

        Raises:
            PromptError: there is nothing to ask.
        """

    def turn(self, role: str, text: str) -> TokenIds:
        """Token ids of another speaker's turn, between the user's own.

        Raises:
            PromptError: no template is used, or it refuses the role.
        """

    def take(self, source: Any, known: Callable[[str], Chunk | None], options: Mapping[str, Any]) -> Taken:
        """Chunks of a source, as handles: the encoder runs for what neither `known` nor the store has, no decoder."""

    def encode_text(self, token_ids: TokenIds) -> Encoded:
        """What the decoder is fed for text."""

    def lay(self, parts: Sequence[LinkPart]) -> Prompt:
        """A prompt of parts.

        Raises:
            PromptError: it is longer than the model's context.
        """

    def link(self, prompt: Prompt, strategy: str | Strategy, knobs: Mapping[str, Any] | None) -> L:
        """The prompt linked, with room for what the knobs of sampling allow; None: nothing is decoded behind it.

        Raises:
            PromptError: a knob is not right, or the model's context has no room.
        """

    def reply(self, linkage: L, strategy: str | Strategy, knobs: Mapping[str, Any], began: float) -> A:
        """The answer decoded behind a linked prompt."""

    def pieces(
        self, linkage: L, strategy: str | Strategy, knobs: Mapping[str, Any], began: float
    ) -> Iterator[AnswerPiece[A]]:
        """The answer in pieces, one a token, as they are decoded."""

    def trusts(self, kind: str, lane: Lane, strategy: str | Strategy) -> bool:
        """Whether a strategy may take a kind of content by a lane.

        Such as survivors, rows that were written behind others than stand before them now. `auto` asks what was
        measured of the lane, under its bounds; any other takes what there is.
        """

    @property
    def rates(self) -> Rates | None:
        """What rows were measured to cost on this machine; None before there was enough to tell."""

    def patch_keys(self, chunk: str) -> Collection[PatchKey]:
        """Keys of the patches that the store has of a chunk."""

    def rest(self) -> None:
        """What may be done when an answer is complete."""

    def gone(self, chunks: Collection[str]) -> frozenset[str]:
        """Those ids whose chunks were deleted, or have expired."""

    @property
    def deletions(self) -> int:
        """While it stays, `gone` says what it said."""

    def held(self, chunks: Collection[str]) -> bool:
        """Whether the store has the canonical rows of all chunks."""

    def stored(self, key: PatchKey) -> bool:
        """Whether the store has a patch."""
