"""Turns become prompt parts: the chat template writes the markup, chunks take the place of its media marks."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from emblema.engine.caution import Text, cautious_ids, untrusted_spans
from emblema.engine.conversation import Item, Turn
from emblema.engine.template import ChatTemplate, special_tokens
from emblema.errors import PromptError
from emblema.link.prompt import ChunkPart, Part, TextPart

TokenIds = tuple[int, ...]


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
            elif isinstance(item, str):
                # White space stands outside the mark, where a template that trims can see it.
                bare = item.strip()
                before, after = item.split(bare, 1) if bare else (item, "")
                mark = f"\ue000{len(held)}\ue001" if bare else ""
                contents.append({"type": "text", "text": f"{before}{mark}{after}"})
                held.append(bare)
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
        begin: let the tokenizer put its own first token in front, if the template's text does not start with it.

    Raises:
        PromptError: the pieces cannot be told apart in the tokens, or a control token cannot be kept out of a text.
    """
    inserted = [piece for piece in pieces if not isinstance(piece, Text)]
    if tokenizer is None or not any(isinstance(piece, Text) for piece in pieces):
        return [_part(piece) for piece in inserted]
    anchor = _anchor(pieces, tokenizer) if inserted else ""
    whole = "".join(piece.text if isinstance(piece, Text) else anchor for piece in pieces)
    front = pieces[0].text if isinstance(pieces[0], Text) and pieces[0].trusted else ""
    begin = begin and not (tokenizer.bos_token and front.startswith(tokenizer.bos_token))
    ids = cautious_ids(whole, untrusted_spans(pieces, len(anchor)), tokenizer, set(controls), begin=begin)
    if not inserted:
        return [TextPart(tuple(ids))]
    cut = tokenizer.convert_tokens_to_ids(anchor)
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


def _part(piece: Piece) -> Part:
    if isinstance(piece, ChunkPart):
        return piece
    return TextPart(piece) if isinstance(piece, tuple) else TextPart(())


def _anchor(pieces: Sequence[Piece], tokenizer: Any) -> str:
    """A control token that the text does not hold; the model's own placeholder for pictures if possible."""
    text = "".join(piece.text if isinstance(piece, Text) else "\0" for piece in pieces)
    added = {str(token): token for token in getattr(tokenizer, "added_tokens_decoder", {}).values()}
    own = {tokenizer.bos_token, tokenizer.unk_token, *tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"])}
    found = [token for token in special_tokens(tokenizer) if token in added and token not in own and token not in text]
    # One that strips spaces or wants to stand alone would change the text around it.
    plain = [
        token
        for token in found
        if not any(getattr(added[token], option, False) for option in ("lstrip", "rstrip", "single_word", "normalized"))
    ]
    likely = [token for token in plain or found if "image" in token.lower() or "img" in token.lower()]
    if not found:
        raise PromptError("the text holds every control token of the model: take one of them out of it")
    return str((likely or plain or found)[0])
