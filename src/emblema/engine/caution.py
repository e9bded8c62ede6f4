"""Token ids of a string of which parts are not trusted: no control token comes of what a user wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emblema.errors import PromptError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of text; what a user wrote is not trusted to spell control tokens."""

    text: str
    trusted: bool


def untrusted_spans(pieces: Sequence[Any], width: int) -> list[Span]:
    """Where untrusted text stands in the string of all pieces; whatever is no text is `width` characters wide."""
    spans = []
    cursor = 0
    for piece in pieces:
        length = len(piece.text) if isinstance(piece, Text) else width
        if isinstance(piece, Text) and not piece.trusted and length:
            spans.append((cursor, cursor + length))
        cursor += length
    return spans


def cautious_ids(
    whole: str, untrusted: Sequence[Span], tokenizer: Any, controls: set[str], *, begin: bool
) -> list[int]:
    """Token ids of a string, cut wherever untrusted text would help to spell a control token.

    Spellings are looked for in the string, and where the tokenizer tells offsets, in its tokens too: it may normalise
    text before it looks for control tokens.

    Raises:
        PromptError: a control token of one character stands in untrusted text; it cannot be cut.
    """
    cuts = {_cut(span, untrusted) for span in _spelled(whole, controls) if _touches(span, untrusted)}
    known = set(tokenizer.convert_tokens_to_ids(sorted(controls))) - {tokenizer.unk_token_id}
    while True:
        ids: list[int] = []
        forged: list[Span] = []
        edges = [0, *sorted(cuts - {0, len(whole)}), len(whole)]
        for index, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
            options = {"return_offsets_mapping": True} if tokenizer.is_fast else {}
            found = tokenizer(whole[start:stop], add_special_tokens=begin and index == 0, **options)
            ids += found["input_ids"]
            spans = [(start + first, start + last) for first, last in found.get("offset_mapping", [])]
            pairs = zip(found["input_ids"], spans, strict=False)
            forged += [span for token, span in pairs if token in known and _touches(span, untrusted)]
        if not forged:
            return ids
        cuts |= {_cut(span, untrusted) for span in forged}


def _spelled(whole: str, controls: set[str]) -> list[Span]:
    spans = []
    for control in controls:
        start = whole.find(control)
        while start >= 0:
            spans.append((start, start + len(control)))
            start = whole.find(control, start + 1)
    return spans


def _touches(span: Span, untrusted: Sequence[Span]) -> bool:
    return any(first < span[1] and span[0] < last for first, last in untrusted)


def _cut(span: Span, untrusted: Sequence[Span]) -> int:
    """A place inside a spelling, in its untrusted part if it can be, so that a trusted control token stays whole."""
    start, stop = span
    if stop - start < 2:
        raise PromptError("a text of the prompt holds a control token of the model that is one character: leave it out")
    touched = min(first for first, last in untrusted if first < stop and start < last)
    return min(max(start + 1, touched), stop - 1)
