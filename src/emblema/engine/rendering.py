"""Turns become prompt parts: the chat template writes the markup, chunks take the place of its media marks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emblema.engine.conversation import Item, Turn
from emblema.engine.template import ChatTemplate
from emblema.errors import PromptError
from emblema.link.prompt import ChunkPart, Part, TextPart


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
                contents.append({"type": "text", "text": _mark(len(held))})
                held.append(item)
        messages.append({"role": turn.role, "content": contents[0]["text"] if turn.plain else contents})
    return _parts(_split(template.write(messages), held, media), template.tokenizer, template.controls, begin=True)


def plain(items: Sequence[Item], tokenizer: Any | None) -> list[Part]:
    """Prompt parts of items taken as they are, control tokens in the text included; nothing is added."""
    return _parts(
        [_Text(item, trusted=True) if isinstance(item, str) else item for item in items], tokenizer, set(), begin=False
    )


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    trusted: bool


def _mark(index: int) -> str:
    return f"\ue000{index}\ue001"


def _split(written: str, held: Sequence[Item], media: Sequence[tuple[str, ChunkPart]]) -> list[Any]:
    names = {name for name, _ in media}
    pattern = "|".join([r"\ue000\d+\ue001", *(re.escape(name) for name in sorted(names, key=len, reverse=True))])
    queues = {name: [part for other, part in media if other == name] for name in names}
    pieces: list[Any] = []
    cursor = 0
    for match in re.finditer(pattern, written):
        pieces.append(_Text(written[cursor : match.start()], trusted=True))
        cursor = match.end()
        if match[0][0] == "\ue000":
            item = held[int(match[0][1:-1])]
            pieces.append(_Text(item, trusted=False) if isinstance(item, str) else item)
        elif queues[match[0]]:
            pieces.append(queues[match[0]].pop(0))
        else:
            raise PromptError("the chat template wrote more pictures than the prompt has")
    pieces.append(_Text(written[cursor:], trusted=True))
    if any(queues.values()):
        raise PromptError("the chat template left a picture out: this model takes fewer media than the prompt has")
    return pieces


def _parts(pieces: Sequence[Any], tokenizer: Any, controls: set[str], *, begin: bool) -> list[Part]:
    parts: list[Part] = []
    run: list[_Text] = []
    first = begin

    def close() -> None:
        nonlocal first
        ids = _tokenize(run, tokenizer, controls, first) if run or first else ()
        if ids:
            parts.append(TextPart(ids))
        first = False
        run.clear()

    for piece in pieces:
        if isinstance(piece, _Text):
            run.append(piece)
            continue
        close()
        parts.append(piece if isinstance(piece, ChunkPart) else TextPart(tuple(piece)))
    close()
    return parts


def _tokenize(run: Sequence[_Text], tokenizer: Any, controls: set[str], first: bool) -> tuple[int, ...]:
    """Token ids of texts in a row. Untrusted text that spells a control token is cut into ordinary tokens."""
    whole = "".join(piece.text for piece in run)
    begin = first and not (tokenizer.bos_token and whole.startswith(tokenizer.bos_token))
    if not any(control in piece.text for piece in run if not piece.trusted for control in controls):
        return tuple(tokenizer(whole, add_special_tokens=begin)["input_ids"]) if whole or begin else ()
    ids: list[int] = list(tokenizer("", add_special_tokens=begin)["input_ids"])
    for piece in run:
        ids += tokenizer(piece.text, add_special_tokens=False, split_special_tokens=not piece.trusted)["input_ids"]
    return tuple(ids)
