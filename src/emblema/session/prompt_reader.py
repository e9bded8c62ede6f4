"""Reading a prompt: what a caller gives (parts, or messages in OpenAI's form) becomes parts of text and chunks."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.errors import ModelError, PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.link.prompt import ChunkPart, Part, TextPart
from emblema.media.audio import Audio
from emblema.media.load import DocumentPages, LoadedMedia
from emblema.media.source import is_address
from emblema.media.video import Video
from emblema.models.prepare import Preparer
from emblema.session.chat_template import ChatTemplate, ChatTurn, Item
from emblema.session.rendering import TextPiece, plain, refuse_long, render, tokenize


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


MediaReader = Callable[[Any, str | None], Sequence[ChunkPart]]
"""Reads a source of media, or a piece that the encoder made, of a kind or of any; returns a part for each chunk."""


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
    if read is not None and isinstance(part, EncodedChunk | Path | Image.Image | DocumentPages | Video | Audio):
        return tuple(read(part, None))
    if read is not None and isinstance(part, list | tuple) and part and isinstance(part[0], EncodedChunk):
        return tuple(item for piece in part for item in read(piece, None))
    if isinstance(part, list | tuple) and all(type(token) is int and 0 <= token < 2**63 for token in part):
        return (tuple(part),)
    raise PromptError(
        f"a part of the prompt is a {type(part).__name__}: give text, a chunk or clip from engine.add, a picture, the "
        "path of a file, what engine.encode made, or token ids"
    )


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
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or content is None:
            raise PromptError(f"message {index} needs a role and a content")
        if ROLE.fullmatch(role) is None:
            raise PromptError(f"message {index} has the role {role[:40]!r}: a role is a short word such as user")
        if isinstance(content, str):
            turns.append(ChatTurn(role, (readable(content),), plain=True))
            continue
        if not isinstance(content, list | tuple):
            raise PromptError(f"message {index} has a content of type {type(content).__name__}: give a text or a list")
        items: list[Item] = []
        for item in content:
            items += _items_of_content(item, index, read)
        turns.append(ChatTurn(role, tuple(items)))
    return turns


# Types of content items, and the kind of media that each must have; a file may have any.
_MEDIA_ITEMS = (("image", "image"), ("image_url", "image"), ("video", "video"), ("video_url", "video"), ("file", None))


def _items_of_content(item: Any, index: int, read: MediaReader) -> tuple[Item, ...]:
    if not isinstance(item, Mapping):
        return items_of(item, read)
    kind = item.get("type")
    if kind == "text":
        return (readable(item.get("text")),)
    found = _media_item(item)
    if found is None:
        raise PromptError(
            f"message {index} has a content item of type {kind!r}: use text, image, image_url, video, video_url or file"
        )
    source, media = found
    if isinstance(source, Chunk | Clip | SlidPart):
        return items_of(source)
    if not _may_be(kind, source):
        raise PromptError(f"message {index} has an {kind} that is no http, https or data address")
    return tuple(read(source, media))


def _media_item(item: Mapping[str, Any]) -> tuple[Any, str | None] | None:
    """Return the source of a content item and the kind that it must have; None where it is no item of media."""
    for name, media in _MEDIA_ITEMS:
        if item.get("type") == name and name in item:
            return item[name].get("url") if isinstance(item[name], Mapping) else item[name], media
    return None


def _may_be(type: Any, source: Any) -> bool:
    """Return whether an item of this type may have this source: clients name addresses, the embedding program files."""
    return not str(type).endswith("_url") or (isinstance(source, str) and is_address(source))


async def load_named(given: PromptLike, load: Callable[[Any, str | None], Awaitable[LoadedMedia]]) -> PromptLike:
    """Return a prompt with what it names by path, address or bytes loaded; what is wrong with it is left in it.

    Args:
        given: as `PromptReader.parts` takes it.
        load: loads a source of a kind, or of any.

    Raises:
        MediaError: of `load`.
    """
    if not isinstance(given, list | tuple):
        return given

    async def loaded(part: Any) -> Any:
        if isinstance(part, Path):
            return await load(part, None)
        content = part.get("content") if isinstance(part, Mapping) else None
        if not isinstance(content, list | tuple):
            return part
        return {**part, "content": [await of_item(item) for item in content]}

    async def of_item(item: Any) -> Any:
        found = _media_item(item) if isinstance(item, Mapping) else None
        if found is None:
            return await load(item, None) if isinstance(item, Path) else item
        source, media = found
        named = isinstance(source, str | Path | bytes) and _may_be(item["type"], source)
        return {"type": "file", "file": await load(source, media)} if named else item

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

    def parts(self, given: PromptLike, template: bool, read: MediaReader) -> list[Part]:
        """Return prompt parts of what a caller gave; `template` wraps parts in one user turn, `read` reads media.

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
            return render(turns_of(messages, read), self.template)
        items = [item for part in parts if not isinstance(part, Mapping) for item in items_of(part, read)]
        if template:
            return render([ChatTurn("user", tuple(items))], self.template)
        return self.plain(items)

    def plain(self, items: Sequence[Item]) -> list[Part]:
        """Return prompt parts of items without a template; a model without a processor takes token ids only."""
        has_text = any(isinstance(item, str) for item in items)
        return plain(items, self.template if has_text else None)

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
