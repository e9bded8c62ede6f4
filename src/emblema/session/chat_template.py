"""The model's chat template: turns, what it writes for a piece of media, and the text around a conversation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from emblema.errors import PromptError
from emblema.kv.chunk import ChunkKind
from emblema.link.prompt import ChunkPart
from emblema.models.prepare import Preparer
from emblema.session.tool_calls import BEGIN

BEFORE, AFTER = "\ue010", "\ue011"
"""Marks around media where the template is asked what it writes for them."""
OPEN, CLOSE = "\ue000", "\ue001"
"""Around the number of a text whose place the template is asked for."""

TokenIds = tuple[int, ...]
Item = str | TokenIds | ChunkPart
Content = str | list[dict[str, str]]
"""What a message holds, in a form that templates take: a string, or a list of items."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A message: its role and items, and what else the template is given of it, such as its calls of functions."""

    role: str
    items: tuple[Item, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _as_it_is(items: list[dict[str, str]]) -> Content:
    return items


def _joined(items: list[dict[str, str]]) -> Content:
    return "".join(item["text"] for item in items)


def _joined_item(items: list[dict[str, str]]) -> Content:
    return [_text("".join(item["text"] for item in items))]


def special_tokens(tokenizer: Any) -> list[str]:
    """Return strings that the tokenizer reads as a single control token anywhere."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = [str(token) for token in added.values() if getattr(token, "special", False)]
    return [token for token in dict.fromkeys([*tokenizer.all_special_tokens, *special]) if token]


class ChatTemplate:
    """Writes conversations in the model's own form; learns from the template itself how media are written.

    Args:
        preparer: of the model.
        text_bytes: how much text may be tokenized together, in UTF-8.
    """

    def __init__(self, preparer: Preparer, text_bytes: int) -> None:
        self.preparer, self.text_bytes = preparer, text_bytes
        self._media: dict[str, tuple[dict[str, str], str]] = {}
        self._forms: dict[str, Callable[[list[dict[str, str]]], Content]] = {}

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.preparer.tokenizer

    def write(
        self, messages: list[dict[str, Any]], *, answer: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return the template's text for messages and functions, with the opening of an answer.

        Raises:
            PromptError: the model has no chat template, or the template refuses the messages.
        """
        template = self.preparer.chat_template
        if not template:
            raise PromptError("this model has no chat template: pass template=False and write its markup as text")
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=answer,
                tools=list(tools) or None,
            )
        except Exception as error:
            # Templates are programs that come with the model, and may raise any exception.
            raise PromptError(f"the model's chat template refuses this conversation: {error}") from error
        return text

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template writes functions, calls of them, and what they gave."""
        marks = [f"{OPEN}{index}{CLOSE}" for index in range(3)]
        parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
        tool = {"type": "function", "function": {"name": "f", "description": marks[0], "parameters": parameters}}
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {"a": marks[1]}}}
        try:
            turns: list[dict[str, Any]] = [
                {"role": "user", "content": self.content("user", [_text("a")])},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": marks[2], "tool_call_id": "call00000", "name": "f"},
            ]
            written = self.write(turns, tools=[tool])
        except PromptError:
            return False
        return all(mark in written for mark in marks)

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template writes a system turn."""
        try:
            self.content("system", [_text("a")])
        except PromptError:
            return False
        return True

    @property
    def marks_calls(self) -> bool:
        """Whether the model writes calls in marks, or their JSON alone; it is asked for marks by plain text."""
        return not self.takes_tools or BEGIN in (self.preparer.chat_template or "")

    def content(self, role: str, items: list[dict[str, str]]) -> Content:
        """Return items of a turn in the first form whose texts the template writes, for that role.

        Templates walk over a list, take the first item of one, or take a string. A turn with media is always a list.

        Raises:
            PromptError: the model has no chat template, or it refuses the role or writes nothing of its texts.
        """
        if any(item["type"] != "text" for item in items):
            return items
        if role not in self._forms:
            self._forms[role] = self._form(role)
        return self._forms[role](items)

    def _form(self, role: str) -> Callable[[list[dict[str, str]]], Content]:
        """Find the form of a role's content by writing two marks in each."""
        marks = [f"{OPEN}{index}{CLOSE}" for index in range(2)]
        items = [{"type": "text", "text": mark} for mark in marks]
        refused: PromptError | None = None
        for form in (_as_it_is, _joined_item, _joined):
            turn = {"role": role, "content": form(items)}
            question = {"role": "user", "content": "a" if role == "user" else self.content("user", [_text("a")])}
            turns = {"user": [turn], "system": [turn, question]}.get(role, [question, turn])
            try:
                written = self.write(turns, answer=False)
            except PromptError as error:
                refused = refused or error
                continue
            if all(mark in written for mark in marks):
                return form
        raise refused or PromptError(
            f"the model's chat template writes nothing of the text of a turn of role {role!r}: give it in a user's turn"
        )

    def media(self, kind: ChunkKind) -> tuple[dict[str, str], str]:
        """Return the content item for a piece of media, and the mark that the template writes for it.

        Raises:
            PromptError: the template writes nothing for such media.
        """
        if kind not in self._media:
            names = {"image": ("image",), "page": ("image",), "video": ("video", "image"), "audio": ("audio",)}[kind]
            marks = [({"type": name}, self._mark({"type": name})) for name in names]
            found = next(((item, mark) for item, mark in marks if mark), None)
            if found is None:
                raise PromptError(f"the model's chat template writes nothing for a piece of kind {kind}")
            self._media[kind] = found
        return self._media[kind]

    def around(self, kind: ChunkKind) -> tuple[str, str]:
        """Return what the template writes right before and after a piece of media between texts.

        A template that moves media to the front of a turn writes nothing there.
        """
        if kind == "text":
            return "", ""
        content, mark = self.media(kind)
        between = self._between_marks(content).partition(BEFORE)[2].partition(AFTER)[0]
        before, found, after = between.partition(mark)
        return (before, after) if found else ("", "")

    def _between_marks(self, *items: dict[str, str]) -> str:
        """Return what the template writes for a user turn of items, with the marks as texts around them."""
        before, after = ({"type": "text", "text": mark} for mark in (BEFORE, AFTER))
        return self.write([{"role": "user", "content": [before, *items, after]}], answer=False)

    def _mark(self, item: dict[str, str]) -> str:
        """Return what the template writes for a content item, from its first to its last control token."""
        written, without = self._between_marks(item), self._between_marks()
        between = re.search(f"{BEFORE}(.*?){AFTER}", written, re.DOTALL)
        plain = re.search(f"{BEFORE}(.*?){AFTER}", without, re.DOTALL)
        if between is not None and plain is not None and between[1] != plain[1]:
            added = between[1]
        else:
            # The template moves media to the front of the turn.
            start = next((i for i, (a, b) in enumerate(zip(written, without, strict=False)) if a != b), len(without))
            added = written[start : start + len(written) - len(without)]
        controls = sorted(self.controls, key=len, reverse=True)
        found = list(re.finditer("|".join(re.escape(control) for control in controls), added)) if controls else []
        return added[found[0].start() : found[-1].end()] if found else added.strip()

    @property
    def controls(self) -> set[str]:
        """Texts that the tokenizer reads as a single control token."""
        kinds: tuple[ChunkKind, ...] = ("image", "video", "audio")
        ids = [self.preparer.family.placeholder(self.preparer.kit.config, kind) for kind in kinds]
        media = self.tokenizer.convert_ids_to_tokens([token for token in ids if token is not None])
        # Some models' turn markers are added tokens that are not called special; the template shows which.
        added = [str(token) for token in getattr(self.tokenizer, "added_tokens_decoder", {}).values()]
        written = [token for token in added if token.strip() and token in (self.preparer.chat_template or "")]
        found = {token for token in (*special_tokens(self.tokenizer), *media, *written) if token}
        return found - {self.tokenizer.unk_token}
