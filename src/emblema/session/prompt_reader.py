"""Reading a prompt: what a caller gives (parts, or messages in OpenAI's form) becomes parts of text and chunks."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.errors import MediaError, ModelError, PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.prompt import ChunkPart, Part, TextPart
from emblema.media.audio import Audio
from emblema.media.given import GivenMedia, read_item
from emblema.media.load import DocumentPages, LoadedMedia
from emblema.media.settings import PLAIN
from emblema.media.video import Video
from emblema.models.prepare import Preparer
from emblema.session.chat_template import ChatTemplate, ChatTurn, Item
from emblema.session.rendering import TextPiece, refuse_long, render, tokenize
from emblema.session.tool_calls import in_plain_turns, read_calls


@dataclass(frozen=True, slots=True)
class SlidPart:
    """A chunk or clip that the window has moved past: it conditioned the chunks after it; no text row attends it."""

    piece: Chunk | Clip


def slid(piece: Chunk | Clip) -> SlidPart:
    """Mark a part of a prompt as slid: it is absent for every text row, as after a window moved on."""
    return SlidPart(piece)


ROLE = re.compile(r"[A-Za-z0-9_-]{1,32}")

PromptPart = str | Chunk | Clip | EncodedChunk | Sequence[EncodedChunk] | Path | LoadedMedia | SlidPart | Sequence[int]
Message = Mapping[str, Any]
PromptLike = str | Sequence[PromptPart] | Sequence[Message]


MediaReader = Callable[[GivenMedia], Sequence[ChunkPart]]
"""Reads media, or a piece that the encoder made; returns a part for each chunk."""


def items_of(part: PromptPart, read: MediaReader | None = None) -> tuple[Item, ...]:
    """Return the items of a part of a prompt; media are read by `read`, or refused without it.

    Raises:
        PromptError: the part is none of the kinds that a prompt is made of.
    """
    if isinstance(part, str):
        return (readable(part),)
    if isinstance(part, Chunk):
        return (ChunkPart(part),)
    if isinstance(part, Clip):
        return tuple(ChunkPart(chunk) for chunk in part)
    if isinstance(part, SlidPart) and isinstance(part.piece, Chunk | Clip):
        return tuple(ChunkPart(item.chunk, slid=True) for item in items_of(part.piece) if isinstance(item, ChunkPart))
    if read is not None and isinstance(part, list | tuple) and part and isinstance(part[0], EncodedChunk):
        return tuple(item for piece in part for item in read(GivenMedia(piece, None)))
    if read is not None and (isinstance(part, EncodedChunk) or _is_media(part)):
        return tuple(read(GivenMedia(part, None)))
    if isinstance(part, list | tuple) and all(type(token) is int and 0 <= token < 2**63 for token in part):
        return (tuple(part),)
    raise PromptError(
        f"a part of the prompt is a {type(part).__name__}: give text, a chunk or clip from engine.add, a picture, the "
        "path of a file, what engine.encode made, or token ids"
    )


def _is_media(part: Any) -> bool:
    """Return whether a part of a prompt is media itself: as an object, a path, or a list of frames."""
    if isinstance(part, list | tuple):
        return bool(part) and all(not isinstance(frame, list | tuple) and _is_media(frame) for frame in part)
    if isinstance(part, Path | Image.Image | DocumentPages | Video | Audio):
        return True
    return hasattr(part, "read") or (hasattr(part, "__array__") and hasattr(part, "shape"))


def readable(text: Any) -> str:
    """Return a text, if tokenizers can take it.

    Raises:
        PromptError: it is no string, or has half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise PromptError(f"a text of the prompt is a {type(text).__name__}: give a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"a text of the prompt is not valid Unicode at character {error.start}") from error
    return text


def turns_of(messages: Sequence[Message], read: MediaReader) -> list[ChatTurn]:
    """Return turns of messages in OpenAI's form; media in them are read by `read`.

    Raises:
        PromptError: a message has no role, or a content item of an unknown type.
    """
    turns = []
    for index, message in enumerate(messages):
        role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
        content = "" if content is None and calls else content
        if not isinstance(role, str) or content is None:
            raise PromptError(f"message {index} needs a role and a content")
        if ROLE.fullmatch(role) is None:
            raise PromptError(f"message {index} has the role {role[:40]!r}: a role is a short word such as user")
        fields = {name: message[name] for name in ("tool_call_id", "name") if role == "tool" and name in message}
        if calls:
            fields["tool_calls"] = read_calls(calls, index)
        if isinstance(content, str):
            turns.append(ChatTurn(role, (readable(content),), fields))
            continue
        if not isinstance(content, list | tuple):
            raise PromptError(f"message {index} has a content of type {type(content).__name__}: give a text or a list")
        items: list[Item] = []
        for item in content:
            items += _items_of_content(item, index, read)
        turns.append(ChatTurn(role, tuple(items), fields))
    return turns


def _items_of_content(item: Any, index: int, read: MediaReader) -> tuple[Item, ...]:
    if not isinstance(item, Mapping):
        return items_of(item, read)
    kind = item.get("type", "text" if "text" in item else None)
    if kind == "text":
        return (readable(item.get("text")),)
    try:
        found = read_item(item)
    except MediaError as error:
        raise PromptError(f"message {index}: {error}") from error
    if found is None:
        raise PromptError(
            f"message {index} has a content item of type {str(kind)[:40]!r}: use text, image, image_url, video, "
            "video_url, audio or file"
        )
    if isinstance(found.source, Chunk | Clip | SlidPart):
        found.settings.refuse_all("media that are prefilled")
        return items_of(found.source)
    return tuple(read(found))


async def load_named(given: PromptLike, load: Callable[[GivenMedia], Awaitable[LoadedMedia]]) -> PromptLike:
    """Return a prompt with what it names by path, address or bytes loaded; what is wrong with it is left in it.

    Args:
        given: as `PromptReader.parts` takes it.
        load: loads media.

    Raises:
        MediaError: of `load`.
    """
    if not isinstance(given, list | tuple):
        return given

    async def loaded(part: Any) -> Any:
        if _is_media(part):
            return await load(GivenMedia(part, None))
        content = part.get("content") if isinstance(part, Mapping) else None
        if not isinstance(content, list | tuple):
            return part
        return {**part, "content": [await of_item(item) for item in content]}

    async def of_item(item: Any) -> Any:
        if not isinstance(item, Mapping):
            return await load(GivenMedia(item, None)) if _is_media(item) else item
        try:
            found = read_item(item)
        except MediaError:
            return item
        if found is None or isinstance(found.source, Chunk | Clip | SlidPart | EncodedChunk):
            return item
        if found.settings == PLAIN and isinstance(found.source, LoadedMedia):
            return item
        return {"type": "file", "file": await load(found)}

    return [await loaded(part) for part in given]


class PromptReader:
    """Turns prompts into parts for one model.

    Args:
        preparer: of the model; None takes token ids only.
        text_bytes: how much text one prompt may hold, in UTF-8.
    """

    def __init__(self, preparer: Preparer | None, text_bytes: int) -> None:
        self._template = None if preparer is None else ChatTemplate(preparer, text_bytes)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            ModelError: the model came without a processor.
        """
        if self._template is None:
            raise ModelError("this model came without a processor: only token ids with template=False can be prefilled")
        return self._template

    def parts(
        self, given: PromptLike, template: bool, read: MediaReader, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[Part]:
        """Return prompt parts of what a caller gave; `template` wraps parts in one user turn, `read` reads media.

        Where the chat template has no place for `tools`, or for calls of them, they are told as text.

        Raises:
            PromptError: it is empty, of another shape, or holds more text than is allowed.
        """
        if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
            raise PromptError(f"the prompt is a {type(given).__name__}: give a list of parts, or a list of messages")
        try:
            parts: list[PromptPart | Message] = [given] if isinstance(given, str) else list(given)
        except TypeError as error:
            raise PromptError(f"the prompt, a {type(given).__name__}, cannot be read as a list: {error}") from error
        if not parts:
            raise PromptError("the prompt is empty: give it at least one part of text or a chunk")
        messages = [part for part in parts if isinstance(part, Mapping)]
        if messages:
            if len(messages) != len(parts):
                raise PromptError("a prompt is made of parts or of messages, not of both")
            called = tools or any(part.get("tool_calls") or part.get("role") == "tool" for part in messages)
            if called and not self.template.takes_tools:
                messages, tools = in_plain_turns(messages, tools, system=self.template.takes_system), ()
            return render(turns_of(messages, read), self.template, tools)
        items = [item for part in parts if not isinstance(part, Mapping) for item in items_of(part, read)]
        if template:
            return render([ChatTurn("user", tuple(items))], self.template)
        return self.plain(items)

    def plain(self, items: Sequence[Item]) -> list[Part]:
        """Return prompt parts of items as they are, control tokens in the text included; nothing is added.

        A model without a processor takes token ids only.

        Raises:
            PromptError: the texts are longer than is allowed.
        """
        template = self.template if any(isinstance(item, str) for item in items) else None
        if template is not None:
            refuse_long(items, template.text_bytes)
        pieces = [TextPiece(item, trusted=True) if isinstance(item, str) else item for item in items]
        return tokenize(pieces, None if template is None else template.tokenizer, (), begin=False)

    def operator_text(self, text: str) -> TextPart:
        """Return the operator's own text as it is: it may spell control tokens."""
        return TextPart(tuple(self.template.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def passage(self, text: str) -> tuple[int, ...]:
        """Return token ids of a text passage, which cannot spell control tokens.

        Raises:
            PromptError: it is empty, no text, or longer than is allowed.
        """
        template = self.template
        refuse_long([readable(text)], template.text_bytes)
        pieces = tokenize([TextPiece(text, trusted=False)], template.tokenizer, template.controls, begin=False)
        ids = tuple(token for part in pieces if isinstance(part, TextPart) for token in part.token_ids)
        if not ids:
            raise PromptError("the text passage is empty")
        return ids
