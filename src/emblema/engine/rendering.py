"""Turns become prompt parts: the chat template writes the markup, chunks take the place of its media marks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emblema.engine.conversation import Item, Turn
from emblema.engine.template import ChatTemplate, special_tokens
from emblema.errors import PromptError
from emblema.link.prompt import ChunkPart, Part, TextPart

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of text; what a user wrote is not trusted to spell control tokens."""

    text: str
    trusted: bool


Piece = Text | ChunkPart | TokenIds


def render(turns: Sequence[Turn], template: ChatTemplate) -> list[Part]:
    """Prompt parts of a conversation, wrapped by the model's chat template with its generation prompt.

    Texts stand in the template's output as private marks while media are written by the template itself, so that no
    user text can pass for a picture or a control token.

    Raises:
        PromptError: the model has no chat template, or it did not write every piece of media once.
    """
    held: list[Item] = []
    media: list[tuple[str, ChunkPart]] = []
    messages = []
    for turn in turns:
        contents: list[dict[str, str]] = []
        for item in turn.items:
            if isinstance(item, ChunkPart) and item.chunk.kind != "text":
                content, mark = template.media(item.chunk.kind)
                media.append((mark, item))
                contents.append(content)
            else:
                contents.append({"type": "text", "text": f"\ue000{len(held)}\ue001"})
                held.append(item)
        messages.append({"role": turn.role, "content": contents[0]["text"] if turn.plain else contents})
    pieces = _split(template.write(messages), held, media)
    return tokenize(pieces, template.tokenizer, template.controls, begin=True)


def plain(items: Sequence[Item], tokenizer: Any | None) -> list[Part]:
    """Prompt parts of items taken as they are, control tokens in the text included; nothing is added."""
    pieces: list[Piece] = [Text(item, trusted=True) if isinstance(item, str) else item for item in items]
    return tokenize(pieces, tokenizer, (), begin=False)


def _split(written: str, held: Sequence[Item], media: Sequence[tuple[str, ChunkPart]]) -> list[Piece]:
    """The template's text cut at its marks, with what each mark stands for."""
    names = {name for name, _ in media}
    pattern = "|".join([r"\ue000\d+\ue001", *(re.escape(name) for name in sorted(names, key=len, reverse=True))])
    queues = {name: [part for other, part in media if other == name] for name in names}
    pieces: list[Piece] = []
    cursor = 0
    for match in re.finditer(pattern, written):
        pieces.append(Text(written[cursor : match.start()], trusted=True))
        cursor = match.end()
        if match[0][0] == "\ue000":
            item = held[int(match[0][1:-1])]
            pieces.append(Text(item, trusted=False) if isinstance(item, str) else item)
        elif queues[match[0]]:
            pieces.append(queues[match[0]].pop(0))
        else:
            raise PromptError("the chat template wrote more pictures than the prompt has")
    pieces.append(Text(written[cursor:], trusted=True))
    if any(queues.values()):
        raise PromptError("the chat template left a picture out: this model takes fewer media than the prompt has")
    return pieces


def tokenize(pieces: Sequence[Piece], tokenizer: Any | None, controls: Iterable[str], *, begin: bool) -> list[Part]:
    """Parts of pieces: all text in one string, so that tokens come out as the stock processor's would.

    Chunks and token ids stand in that string as one control token, at which the ids are cut again. Where text that is
    not trusted would take part in spelling a control token, the string is cut inside that spelling.

    Args:
        controls: strings that the tokenizer reads as control tokens.
        begin: let the tokenizer put its own first token in front, if the string does not start with it.
    """
    inserted = [piece for piece in pieces if not isinstance(piece, Text)]
    if tokenizer is None or not any(isinstance(piece, Text) for piece in pieces):
        return [_part(piece) for piece in inserted]
    anchor = _anchor(pieces, tokenizer)
    if inserted and anchor is None:
        raise PromptError("the text holds every control token of the model: take one of them out of it")
    whole = "".join(piece.text if isinstance(piece, Text) else str(anchor) for piece in pieces)
    begin = begin and not (tokenizer.bos_token and whole.startswith(tokenizer.bos_token))
    edges = [0, *_forged(pieces, whole, controls, str(anchor)), len(whole)]
    ids: list[int] = []
    for index, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
        ids += tokenizer(whole[start:stop], add_special_tokens=begin and index == 0)["input_ids"]
    cut = None if anchor is None else tokenizer.convert_tokens_to_ids(anchor)
    parts: list[Part] = []
    run: list[int] = []
    waiting = iter(inserted)
    for token in ids:
        if inserted and token == cut:
            parts += [TextPart(tuple(run)), _part(next(waiting))]
            run = []
        else:
            run.append(token)
    return [*parts, TextPart(tuple(run))]


def _part(piece: Piece) -> Part:
    if isinstance(piece, ChunkPart):
        return piece
    return TextPart(piece) if isinstance(piece, tuple) else TextPart(())


def _anchor(pieces: Sequence[Piece], tokenizer: Any) -> str | None:
    """A control token that no text holds; the model's own placeholder for pictures if possible."""
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    likely = [token for token in special_tokens(tokenizer) if "image" in token.lower() or "img" in token.lower()]
    for token in dict.fromkeys([*likely, *special_tokens(tokenizer)]):
        if token not in (tokenizer.bos_token, tokenizer.unk_token) and not any(token in text for text in texts):
            return token
    return None


def _forged(pieces: Sequence[Piece], whole: str, controls: Iterable[str], anchor: str) -> list[int]:
    """Places at which to cut the string, one inside every control token that untrusted text helps to spell."""
    doubtful: list[tuple[int, int]] = []
    cursor = 0
    for piece in pieces:
        length = len(piece.text) if isinstance(piece, Text) else len(anchor)
        if isinstance(piece, Text) and not piece.trusted and length:
            doubtful.append((cursor, cursor + length))
        cursor += length
    cuts: set[int] = set()
    for control in controls:
        start = whole.find(control)
        while start >= 0:
            stop = start + len(control)
            if any(first < stop and start < last for first, last in doubtful):
                cuts.add(start + 1)
            start = whole.find(control, start + 1)
    return sorted(cuts - {0, len(whole)})
