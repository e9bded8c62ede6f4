"""The user turn around a stream's frames: opening, start marker, frames, end marker, question, the answer's opening."""

from collections.abc import Sequence
from dataclasses import dataclass

from emblema.session.chat_template import TokenIds
from emblema.session.session import Session
from emblema.session.turn_tokenizer import AFTER_CHUNK, PLACE, TurnTokenizer


@dataclass(frozen=True, slots=True)
class QuestionTokens:
    """What comes after the frames.

    Attributes:
        token_ids: end marker, question, end of the turn, opening of the answer; former questions and answers before
            the question.
        asking: the tokens of the question itself and of the conversation before it, as a range of these; retrieval
            goes by them.
        conversation: the tokens after the end marker.
        remark: what the reply will say of the question's words.
    """

    token_ids: TokenIds
    asking: range
    conversation: TokenIds
    remark: str | None = None


class StreamTurn:
    """The token ids of one stream's turn.

    Attributes:
        markers: token ids right before and after a piece of media.
        opening: token ids before the frames.
        ending: token ids after any question; one or more.

    Raises:
        PromptError: the template refuses the system turn, or there is a system turn and no template.
    """

    def __init__(self, session: Session, template: bool, system: str | None) -> None:
        self._tokenizer = TurnTokenizer(session.prompt_reader, template, system)
        before, after = session.chunk_builder.preparer.markers("image")
        self.markers: tuple[TokenIds, TokenIds] = tuple(before), tuple(after)
        self.opening: TokenIds = (*self._tokenizer.opening(), *before)
        # What the template writes after a question without words.
        self._bare = self._tokenizer.closing(AFTER_CHUNK, "") if template else ()
        self.ending: TokenIds = (*after, *self._bare) or PLACE

    def question(self, text: str | Sequence[int], former: TokenIds = ()) -> QuestionTokens:
        """Return the token ids after the frames for a question.

        Args:
            text: the question, or its token ids.
            former: a conversation that it follows, up to its last answer.

        Raises:
            PromptError: there is nothing to ask.
        """
        asked, bare, marker = self._tokenizer.closing(AFTER_CHUNK, text), self._bare, self.markers[1]
        if former:
            asked = (*former, *self._tokenizer.next_turn(text))
        pairs = zip(asked[::-1], bare[::-1], strict=False)
        shared = next((count for count, (token, other) in enumerate(pairs) if token != other), len(bare))
        asking = range(len(marker), len(marker) + len(asked) - shared)
        return QuestionTokens((*marker, *asked), asking or range(len(marker) + len(asked)), asked)
