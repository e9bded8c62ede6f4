"""Rendering turns as prompt parts: the template writes the markup, and no user text becomes a control token."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from emblema.errors import ContextLengthError, PromptError
from emblema.link.prompt import ChunkPart, Part, TextPart
from emblema.session.chat_template import CLOSE, OPEN, ChatTemplate, ChatTurn, Item, TokenIds, special_tokens
from emblema.session.tool_calls import texts_in


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A stretch of text. Text that a user wrote is not trusted to spell control tokens."""

    text: str
    trusted: bool


TemplatePiece = TextPiece | ChunkPart | TokenIds
Span = tuple[int, int]


def render(turns: Sequence[ChatTurn], template: ChatTemplate, tools: Sequence[Mapping[str, Any]] = ()) -> list[Part]:
    """Return prompt parts of a conversation, wrapped by the model's chat template with its generation prompt.

    The template writes private marks in the place of texts, and media itself, so that no user text can pass for a
    picture or a control token. Functions and calls of them are the template's to write, and may not hold any.

    Raises:
        PromptError: the model has no chat template, it did not write all texts and media, or the texts are longer than
            is allowed.
    """
    told = [*texts_in(tools), *(text for turn in turns for text in texts_in(turn.fields))]
    refuse_long([*told, *(item for turn in turns for item in turn.items)], template.text_bytes)
    _refuse_controls(told, template)
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
            elif isinstance(item, str):
                # White space is outside the mark, where a template that trims can see it.
                stripped = item.strip()
                before, after = item.split(stripped, 1) if stripped else (item, "")
                mark = f"{OPEN}{len(held)}{CLOSE}" if stripped else ""
                contents.append({"type": "text", "text": f"{before}{mark}{after}"})
                held += [stripped] if stripped else []
            else:
                contents.append({"type": "text", "text": f"{OPEN}{len(held)}{CLOSE}"})
                held.append(item)
        messages.append({"role": turn.role, "content": template.content(turn.role, contents), **turn.fields})
    pieces = _split(template.write(messages, tools=tools), held, media)
    return tokenize(pieces, template.tokenizer, template.controls, begin=True)


def _refuse_controls(texts: Sequence[str], template: ChatTemplate) -> None:
    """Refuse texts of which the tokenizer, which may normalise them first, would make a control token."""
    if not texts:
        return
    whole, tokenizer, controls = "\n".join(texts), template.tokenizer, sorted(template.controls)
    known = dict(zip(tokenizer.convert_tokens_to_ids(controls), controls, strict=True))
    ids = set(tokenizer(whole, add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}
    found = known.keys() & ids
    if found or OPEN in whole or CLOSE in whole:
        named = repr(known[min(found)]) if found else "a private mark"
        raise PromptError(f"a tool, or a call of one, holds {named}, which is the model's own: leave it out")


def refuse_long(items: Iterable[Item], most: int) -> None:
    """Refuse texts that are too long together, before they are tokenized.

    Raises:
        ContextLengthError: they have more than so many bytes in UTF-8.
        PromptError: one is no valid Unicode.
    """
    try:
        size = sum(len(item) if len(item) > most else len(item.encode()) for item in items if isinstance(item, str))
    except UnicodeEncodeError as error:
        raise PromptError(f"a text of the prompt is not valid Unicode at character {error.start}") from error
    if size > most:
        raise ContextLengthError(
            f"the prompt's text has {size} bytes, more than the {most} that are tokenized: give less, or raise "
            "MediaLimits(text_bytes=…)"
        )


def _split(written: str, held: Sequence[Item], media: Sequence[tuple[str, ChunkPart]]) -> list[TemplatePiece]:
    """Cut the template's text at its marks, and put in their places what they mark."""
    names = {name for name, _ in media}
    pattern = "|".join([rf"{OPEN}\d+{CLOSE}", *(re.escape(name) for name in sorted(names, key=len, reverse=True))])
    queues = {name: [part for other, part in media if other == name] for name in names}
    pieces: list[TemplatePiece] = []
    cursor = 0
    missing = set(range(len(held)))
    for match in re.finditer(pattern, written):
        pieces.append(TextPiece(written[cursor : match.start()], trusted=True))
        cursor = match.end()
        if match[0][0] == OPEN:
            missing.discard(int(match[0][1:-1]))
            item = held[int(match[0][1:-1])]
            pieces.append(TextPiece(item, trusted=False) if isinstance(item, str) else item)
        elif queues[match[0]]:
            pieces.append(queues[match[0]].pop(0))
        else:
            raise PromptError("the chat template wrote more pictures than the prompt has")
    pieces.append(TextPiece(written[cursor:], trusted=True))
    if missing:
        lost = next(
            (repr(item[:40]) for index, item in enumerate(held) if index in missing and isinstance(item, str)), ""
        )
        raise PromptError(
            f"the chat template left {lost or 'a passage'} out: this model takes no such turn in this place"
        )
    if any(queues.values()):
        raise PromptError("the chat template left a picture out: this model takes fewer media than the prompt has")
    return pieces


def tokenize(
    pieces: Sequence[TemplatePiece], tokenizer: Any | None, controls: Iterable[str], *, begin: bool
) -> list[Part]:
    """Return parts of pieces, all text tokenized as one string, as the stock processor does.

    A control token takes the place of each chunk and of token ids in that string; the ids are cut there again. Where
    untrusted text would take part in spelling a control token, the string is cut inside that spelling.

    Args:
        pieces: in order.
        tokenizer: the model's; None where no piece is text.
        controls: strings that the tokenizer reads as control tokens.
        begin: let the tokenizer put its own first token in front, if the template's text does not start with it.

    Raises:
        PromptError: the pieces cannot be told apart in the tokens, or a control token cannot be kept out of a text.
    """
    inserted = [piece for piece in pieces if not isinstance(piece, TextPiece)]
    if tokenizer is None or not any(isinstance(piece, TextPiece) for piece in pieces):
        return [_part(piece) for piece in inserted]
    separator = _separator(pieces, tokenizer) if inserted else ""
    whole = "".join(piece.text if isinstance(piece, TextPiece) else separator for piece in pieces)
    front = pieces[0].text if isinstance(pieces[0], TextPiece) and pieces[0].trusted else ""
    begin = begin and not (tokenizer.bos_token and front.startswith(tokenizer.bos_token))
    ids = _cautious_ids(whole, _untrusted_spans(pieces, len(separator)), tokenizer, set(controls), begin=begin)
    if not inserted:
        return [TextPart(tuple(ids))]
    cut = tokenizer.convert_tokens_to_ids(separator)
    if ids.count(cut) != len(inserted):
        raise PromptError("this model's tokenizer loses the place of a chunk in this text: give the text as token ids")
    parts: list[Part] = []
    run: list[int] = []
    waiting = iter(inserted)
    for token in ids:
        if token == cut:
            parts += [TextPart(tuple(run)), _part(next(waiting))]
            run = []
        else:
            run.append(token)
    return [*parts, TextPart(tuple(run))]


def _part(piece: TemplatePiece) -> Part:
    if isinstance(piece, ChunkPart):
        return piece
    return TextPart(piece) if isinstance(piece, tuple) else TextPart(())


def _separator(pieces: Sequence[TemplatePiece], tokenizer: Any) -> str:
    """Choose a control token that the text does not hold; the model's own placeholder for pictures if possible."""
    text = "".join(piece.text if isinstance(piece, TextPiece) else "\0" for piece in pieces)
    added = {str(token): token for token in getattr(tokenizer, "added_tokens_decoder", {}).values()}
    own = {tokenizer.bos_token, tokenizer.unk_token, *tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"])}
    found = [token for token in special_tokens(tokenizer) if token in added and token not in own and token not in text]
    # A token that strips spaces, or is matched as a single word, would change the text around it.
    plain = [
        token
        for token in found
        if not any(getattr(added[token], option, False) for option in ("lstrip", "rstrip", "single_word", "normalized"))
    ]
    likely = [token for token in plain or found if "image" in token.lower() or "img" in token.lower()]
    if not found:
        raise PromptError("the text holds every control token of the model: take one of them out of it")
    return str((likely or plain or found)[0])


def _untrusted_spans(pieces: Sequence[TemplatePiece], width: int) -> list[Span]:
    """Return where untrusted text is in the string of all pieces; a piece that is no text takes `width` characters."""
    spans = []
    cursor = 0
    for piece in pieces:
        length = len(piece.text) if isinstance(piece, TextPiece) else width
        if isinstance(piece, TextPiece) and not piece.trusted and length:
            spans.append((cursor, cursor + length))
        cursor += length
    return spans


def _cautious_ids(
    whole: str, untrusted: Sequence[Span], tokenizer: Any, controls: set[str], *, begin: bool
) -> list[int]:
    """Return token ids of a string, cut wherever untrusted text would help to spell a control token.

    Spellings are searched for in the string, and where the tokenizer tells offsets, in its tokens too: it may normalise
    text before it searches for control tokens.

    Raises:
        PromptError: a control token of one character is in untrusted text; it cannot be cut.
    """
    cuts = {_cut(span, first) for span, first in _touching(_spelled(whole, controls), untrusted)}
    known = set(tokenizer.convert_tokens_to_ids(sorted(controls))) - {tokenizer.unk_token_id}
    while True:
        ids: list[int] = []
        spans: list[Span] = []
        edges = [0, *sorted(cuts - {0, len(whole)}), len(whole)]
        for start, tokens, offsets in _stretches(whole, edges, tokenizer, begin=begin):
            ids += tokens
            pairs = zip(tokens, offsets, strict=False)
            spans += [(start + first, start + last) for token, (first, last) in pairs if token in known]
        forged = {_cut(span, first) for span, first in _touching(spans, untrusted)}
        if not forged:
            return ids
        cuts |= forged


def _stretches(
    whole: str, edges: Sequence[int], tokenizer: Any, *, begin: bool
) -> Iterator[tuple[int, Sequence[int], Sequence[Span]]]:
    """Yield where each stretch of a string begins, its token ids, and their places if the tokenizer tells them."""
    options = {"return_offsets_mapping": True} if tokenizer.is_fast else {}
    found = tokenizer(whole[: edges[1]], add_special_tokens=begin, **options)
    yield 0, found["input_ids"], found.get("offset_mapping", [])
    # In one call: thousands of calls would take seconds.
    texts = [whole[start:stop] for start, stop in pairwise(edges[1:])]
    if texts:
        found = tokenizer(texts, add_special_tokens=False, **options)
        yield from zip(edges[1:-1], found["input_ids"], found.get("offset_mapping", [()] * len(texts)), strict=True)


def _spelled(whole: str, controls: set[str]) -> list[Span]:
    found = (
        (match.start(), control) for control in controls for match in re.finditer(f"(?={re.escape(control)})", whole)
    )
    return [(start, start + len(control)) for start, control in found]


def _touching(spans: Iterable[Span], untrusted: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Yield the spans that untrusted text has part in, each with where the first such text begins.

    Args:
        spans: in any order.
        untrusted: in their order, and apart.
    """
    ends = [last for _, last in untrusted]
    for span in spans:
        after = bisect_right(ends, span[0])
        if after < len(untrusted) and untrusted[after][0] < span[1]:
            yield span, untrusted[after][0]


def _cut(span: Span, touched: int) -> int:
    """Return a place inside a spelling, in its untrusted part if possible: a trusted control token stays whole."""
    start, stop = span
    if stop - start < 2:
        raise PromptError("a text of the prompt holds a control token of the model that is one character: leave it out")
    return min(max(start + 1, touched), stop - 1)
