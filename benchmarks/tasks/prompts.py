"""How an item is put to a model: turns and prompts in both settings, and whether a reply is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.tasks.items import ItemQuestion, Part, TaskItem
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip
from emblema.session.prompt_reader import PromptPart, slid

Turn = tuple[str, tuple[Part, ...]]
"""One message: `user` or `assistant`, its text and media in order."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def turns(item: TaskItem, index: int) -> list[Turn]:
    """Return the messages that end with question `index`; in a dialogue after its earlier turns, answered."""
    said: list[Turn] = []
    for each in item.questions[:index] if item.dialogue else ():
        said += [("user", each.parts), ("assistant", (each.answer,))]
    said.append(("user", item.questions[index].parts))
    return [("user", (*item.parts, *said[0][1])), *said[1:]]


def chosen(question: ItemQuestion, reply: str) -> int:
    """Return index of the option that a reply names by its letter or by its text, -1 if none or several."""
    letters = LETTERS[: len(question.options)]
    bare = reply.strip().strip(".:*() ")
    if len(bare) == 1 and bare.upper() in letters:
        return letters.index(bare.upper())
    head = re.match(rf"\s*\(?([{letters}])[).:]", reply) if letters else None
    named = re.findall(rf"(?:answer|option)(?: is)?:?\s*\(?([{letters}])\b", reply) if letters else []
    if head or len(set(named)) == 1:
        return letters.index(head.group(1) if head else named[0])
    words = normal(reply)
    said = [
        place
        for place, option in enumerate(question.options)
        if isinstance(option, str) and f" {normal(option)} " in f" {words} "
    ]
    return said[0] if len(said) == 1 else -1


def right(question: ItemQuestion, reply: str) -> bool:
    """Return whether the right option is named, or the text is the answer or an alias, case and punctuation apart.

    Where the right option is not known, nothing is right.
    """
    if question.options:
        return question.correct >= 0 and chosen(question, reply) == question.correct
    return normal(reply) in {normal(each) for each in (question.answer, *question.aliases)}


def normal(text: str) -> str:
    """Return lower case, no punctuation, no articles (unless there is nothing else), single spaces."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


SETTINGS = ("visible", "slid")
Piece = tuple[Chunk, ...]


def pieces(engine: Engine, item: TaskItem) -> tuple[Piece, ...]:
    """Return the chunks of every piece of media, in the order of `item.media`.

    A video's are at one frame a second, two frames a chunk.
    """
    made: list[Chunk | Clip] = [
        engine.add(text=str(media.content))
        if media.kind == "text"
        else engine.add(media.content, kind=media.kind, fps=1.0, frames_per_segment=2)
        for media in item.media
    ]
    return tuple((each,) if isinstance(each, Chunk) else tuple(each) for each in made)


def messages(item: TaskItem, index: int, made: Sequence[Piece], setting: str) -> list[dict[str, Any]]:
    """Return the prompt of a question as messages for `Engine.prefill`, with the chunks of `pieces` as media.

    Raises:
        PromptError: the setting is none of `SETTINGS`.
    """
    if setting not in SETTINGS:
        raise PromptError(f"unknown setting {setting!r}: choose one of {', '.join(SETTINGS)}")
    known = {id(media): piece for media, piece in zip(item.media, made, strict=True)}

    def laid(part: Part) -> list[PromptPart]:
        if isinstance(part, str):
            return [part] if part else []
        piece = known[id(part)]
        gone = round(part.slides * len(piece)) if setting == "slid" else 0
        return [*(slid(chunk) for chunk in piece[:gone]), *piece[gone:]]

    return [
        {"role": role, "content": [shown for part in parts for shown in laid(part)]}
        for role, parts in turns(item, index)
    ]


def slides(item: TaskItem) -> bool:
    """Return whether anything is absent in the setting slid."""
    return any(media.slides > 0 for media in item.media)


def answer_token(engine: Engine, answer: str) -> int | None:
    """Return the first token of an answer; None where the model's vocabulary does not hold it."""
    tokenizer = engine.template.tokenizer
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return None if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None) else int(ids[0])


def forget(engine: Engine, made: Sequence[Piece]) -> None:
    """Let go of an item's chunks and of the prompts that they were in."""
    engine.forget_prompts()
    for chunk in (chunk for piece in made for chunk in piece):
        engine.store.delete(chunk.id)
