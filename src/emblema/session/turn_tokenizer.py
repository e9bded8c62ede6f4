"""Tokens of one user turn, written piece by piece as a prompt of the same pieces would spell them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from emblema.errors import PromptError
from emblema.kv.chunk import ChunkKind
from emblema.link.prompt import Part, TextPart
from emblema.session.chat_template import ChatTurn, TokenIds
from emblema.session.prompt_reader import ROLE, PromptReader, items_of, readable
from emblema.session.rendering import render

PLACE = (0,)
"""Takes a chunk's place where text is spelled; its own token does not come out."""


@dataclass(frozen=True, slots=True)
class PrecedingText:
    """The text directly before a place.

    Attributes:
        texts: its strings, back to the last chunk.
        token_ids: their tokens, as they were written.
        opens: whether the opening of the turn is part of them, as no chunk comes before.
    """

    texts: tuple[str, ...]
    token_ids: TokenIds
    opens: bool


AFTER_CHUNK = PrecedingText((), (), False)
"""Right after a chunk."""


class TurnTokenizer:
    """Tokenizes the pieces of one user turn: in the model's chat template, after a system turn if any, or as they are.

    Args:
        reader: the model's prompt reader.
        template: whether pieces are written by the chat template.
        system: text of a system turn.

    Raises:
        PromptError: there is a system turn and no template.
    """

    def __init__(self, reader: PromptReader, template: bool = True, system: str | None = None) -> None:
        self.templated = template
        self._reader = reader
        if system is not None and not template:
            raise PromptError("without a template there is no system turn: append its text as the first part")
        self._system = () if system is None else (ChatTurn("system", (readable(system),)),)
        self._around: dict[ChunkKind, tuple[str, str]] = {}

    def opening(self) -> TokenIds:
        """Return the tokens before a turn's first piece; none where no template is used."""
        return self._texts((PLACE,))[0] if self.templated else ()

    def text(self, before: PrecedingText, text: str) -> TokenIds:
        """Return token ids of a text after others, as they would be in one string.

        Where that changed the ids of the others, the text is tokenized apart from them.

        Raises:
            PromptError: it is no text.
        """
        whole = self._after(before, readable(text), PLACE)[0]
        if whole[: len(before.token_ids)] == before.token_ids:
            return whole[len(before.token_ids) :]
        return self._after(AFTER_CHUNK, text, PLACE)[0]

    def closing(self, before: PrecedingText, question: str | Sequence[int]) -> TokenIds:
        """Return token ids of a question with the end of the turn and the opening of the answer.

        Raises:
            PromptError: there is nothing to ask.
        """
        asked: tuple[Any, ...] = () if question == "" else items_of(question)
        if self.templated or isinstance(question, str):
            whole = _joined(self._after(before, *asked))
            ids = whole[len(before.token_ids) :]
            if whole[: len(before.token_ids)] != before.token_ids:
                ids = _joined(self._after(AFTER_CHUNK, *asked))
        else:
            ids = _joined(asked)
        if not ids:
            raise PromptError("there is nothing to ask: give a question, or token ids")
        return ids

    def next_turn(self, question: str | Sequence[int]) -> TokenIds:
        """Return token ids from the end of an answer to the opening of the next, with a question between them."""
        asked: tuple[Any, ...] = items_of(question)
        if not self.templated:
            return _joined(_ids(self._reader.plain(asked)))
        turns = [ChatTurn("user", (PLACE,)), ChatTurn("assistant", (PLACE,)), ChatTurn("user", asked)]
        return _joined(_ids(render([*self._system, *turns], self._reader.template))[4:])

    def turn(self, role: str, text: str) -> TokenIds:
        """Return token ids of another speaker's turn, between the user's own.

        Raises:
            PromptError: no template is used, or it refuses the role.
        """
        if not self.templated:
            raise PromptError("without a template there are no roles: append the turn's markup as text")
        if not isinstance(role, str) or ROLE.fullmatch(role) is None:
            raise PromptError(f"there is no role {role!r}: a role is a short word such as assistant")
        turns = [ChatTurn("user", (PLACE,)), ChatTurn(role, (readable(text),)), ChatTurn("user", (PLACE,))]
        return _ids(render([*self._system, *turns], self._reader.template))[2]

    def around(self, kind: ChunkKind) -> tuple[str, str]:
        """Return what the template writes right before and after a piece of media that comes between texts."""
        if not self.templated:
            return "", ""
        if kind not in self._around:
            self._around[kind] = self._reader.template.around(kind)
        return self._around[kind]

    def _after(self, before: PrecedingText, *items: Any) -> list[TokenIds]:
        """Return the runs of token ids from the preceding text on; the items continue its last run."""
        if before.opens:
            return self._texts((*before.texts, *items))
        return self._texts((PLACE, *before.texts, *items))[2:]

    def _texts(self, items: Sequence[Any]) -> list[TokenIds]:
        """Return the token ids of items: runs of text, and between them those items that are token ids."""
        if self.templated:
            return _ids(render([*self._system, ChatTurn("user", tuple(items))], self._reader.template))
        return _ids(self._reader.plain(items))


def _ids(parts: Sequence[Part]) -> list[TokenIds]:
    return [part.token_ids for part in parts if isinstance(part, TextPart)]


def _joined(texts: Sequence[TokenIds]) -> TokenIds:
    return tuple(chain.from_iterable(texts))
