"""How the parts of a window are spelled: token by token as a prompt of the same parts would be."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from emblema.engine.conversation import ROLE, Turn, items_of, readable
from emblema.engine.rendering import plain, render
from emblema.engine.template import AFTER, BEFORE, ChatTemplate
from emblema.errors import PromptError
from emblema.kv.chunk import ChunkKind
from emblema.link.prompt import Part, TextPart
from emblema.window.seam import Run, TokenIds

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

ANCHOR = (0,)
"""Stands for a chunk where text is spelled; its own token does not come out."""


class Spelling:
    """Spells texts for one engine: in its chat template, behind a system turn if there is one, or as they are.

    Raises:
        PromptError: there is a system turn and no template.
    """

    def __init__(self, engine: "Engine", template: bool, system: str | None) -> None:
        self._engine, self._templated = engine, template
        if system is not None and not template:
            raise PromptError("without a template there is no system turn: append its text as the first part")
        self._system = () if system is None else (Turn("system", (readable(system),), plain=True),)
        self._around: dict[ChunkKind, tuple[str, str]] = {}

    def opening(self) -> TokenIds:
        return self._texts((ANCHOR,))[0] if self._templated else ()

    def spell(self, run: Run, text: str) -> TokenIds:
        front = () if run.opens else (ANCHOR,)
        index = 0 if run.opens else 2
        whole = self._texts((*front, *run.texts, readable(text), ANCHOR))[index]
        if whole[: len(run.token_ids)] == run.token_ids:
            return whole[len(run.token_ids) :]
        return self._texts((ANCHOR, text, ANCHOR))[2]

    def close(self, run: Run, question: str | Sequence[int]) -> TokenIds:
        asked: tuple[Any, ...] = () if question == "" else items_of(question)
        if self._templated or isinstance(question, str):
            index = 0 if run.opens else 2
            whole = _joined(self._texts((*(() if run.opens else (ANCHOR,)), *run.texts, *asked)), index)
            ids = whole[len(run.token_ids) :]
            if whole[: len(run.token_ids)] != run.token_ids:
                ids = _joined(self._texts((ANCHOR, *asked)), 2)
        else:
            ids = tuple(chain.from_iterable(asked))
        if not ids:
            raise PromptError("there is nothing to ask: give a question, or token ids")
        return ids

    def turn(self, role: str, text: str) -> TokenIds:
        if not self._templated:
            raise PromptError("without a template there are no roles: append the turn's markup as text")
        if not isinstance(role, str) or ROLE.fullmatch(role) is None:
            raise PromptError(f"there is no role {role!r}: a role is a short word such as assistant")
        turns = [Turn("user", (ANCHOR,)), Turn(role, (readable(text),)), Turn("user", (ANCHOR,))]
        return _ids(render([*self._system, *turns], self._engine.template))[2]

    def around(self, kind: ChunkKind) -> tuple[str, str]:
        """What the template writes right before and behind a piece of media that stands between texts."""
        if not self._templated:
            return "", ""
        if kind not in self._around:
            self._around[kind] = written_around(self._engine.template, kind)
        return self._around[kind]

    def _texts(self, items: Sequence[Any]) -> list[TokenIds]:
        """Token ids of items, in order: runs of text, each behind the token ids that stand between them."""
        if self._templated:
            return _ids(render([*self._system, Turn("user", tuple(items))], self._engine.template))
        return _ids(plain(items, self._engine.tokenizer if any(isinstance(one, str) for one in items) else None))


def written_around(template: ChatTemplate, kind: ChunkKind) -> tuple[str, str]:
    """What a chat template writes right before and behind a piece of media between texts.

    One that moves media to the front of a turn writes nothing there: a window keeps its parts in their order.
    """
    if kind == "text":
        return "", ""
    content, mark = template.media(kind)
    texts = [{"type": "text", "text": text} for text in (BEFORE, AFTER)]
    written = template.write([{"role": "user", "content": [texts[0], content, texts[1]]}], answer=False)
    between = written.partition(BEFORE)[2].partition(AFTER)[0]
    before, found, after = between.partition(mark)
    return (before, after) if found else ("", "")


def _ids(parts: Sequence[Part]) -> list[TokenIds]:
    return [part.token_ids for part in parts if isinstance(part, TextPart)]


def _joined(texts: Sequence[TokenIds], start: int) -> TokenIds:
    return tuple(chain.from_iterable(texts[start:]))
