"""How an item is put to a model: turns and prompts in both settings, what is expected, whether a reply is right.

`words`: the bare question, answered by a word; what the bundled models were trained on. `letters`: options and the
request for a letter as the data set's own evaluation writes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.tasks.items import ItemQuestion, Media, Part, TaskItem
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip
from emblema.link.prompt import Prompt
from emblema.session.prompt_reader import PromptPart, slid

Style = Literal["words", "letters"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SHORT = "\nAnswer the question using a single word or phrase."
_LETTER = "\nAnswer with the option's letter from the given choices directly."
_FRONT = {
    "video-mme": "Select the best answer to the following multiple-choice question based on the video. "
    "Respond with only the letter of the correct option.\n",
    "muirbench": "Question: ",
    "egoschema": "Question: ",
}
_BEFORE_OPTIONS = {"muirbench": "\nChoices:", "milebench": "\nChoice list:"}
_OPTION = {"muirbench": "({}) "}
_END = {
    "muirbench": "\nHint: Please provide the correct option letter, such as A, B, C, D, directly.\nAnswer:",
    "milebench": "\nYour answer is: ",
    "video-mme": "\nThe best answer is:",
}


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """One message: `user` or `assistant`, its text and media in order."""

    role: str
    parts: tuple[Part, ...]


def style_of(item: TaskItem, index: int, wanted: Style) -> Style:
    """Return the style a question is asked in: letters only where it has options and the right one may be known."""
    return wanted if item.questions[index].options else "words"


def turns(item: TaskItem, index: int, style: Style = "words") -> tuple[PromptTurn, ...]:
    """Return the messages that end with question `index`; in a dialogue after its earlier turns, answered."""
    front: tuple[Part, ...] = (
        (item.instruction + "\n",) if item.instruction and style == "letters" else ()
    ) + item.parts
    if not item.dialogue:
        return (PromptTurn("user", (*front, *asked(item.form, item.questions[index], style))),)
    said: list[PromptTurn] = []
    for earlier in item.questions[:index]:
        said.append(PromptTurn("user", (*front, *asked(item.form, earlier, style))))
        said.append(PromptTurn("assistant", (expected(earlier, style),)))
        front = ()
    return (*said, PromptTurn("user", (*front, *asked(item.form, item.questions[index], style))))


def asked(form: str, question: ItemQuestion, style: Style = "words") -> tuple[Part, ...]:
    """Return a question's own parts as they are put in a style."""
    if style == "words":
        return question.parts
    if not question.options:
        return (*question.parts, _SHORT) if form == "mm-niah" else question.parts
    lines: list[Part] = [_BEFORE_OPTIONS.get(form, "")]
    for letter, option in zip(LETTERS, question.options, strict=False):
        lines += ["\n" + _OPTION.get(form, "{}. ").format(letter), option]
    return _joined([_FRONT.get(form, ""), *question.parts, *lines, _END.get(form, _LETTER)])


def expected(question: ItemQuestion, style: Style = "words") -> str:
    """Return the right reply in a style: a letter, or the answer's text."""
    if style == "letters" and question.options and question.correct >= 0:
        return LETTERS[question.correct]
    return question.answer


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


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, Media):
            joined.append(part)
        elif joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return tuple(joined)


SETTINGS = ("visible", "slid")
Piece = tuple[Chunk, ...]


def add(engine: Engine, media: Media) -> Piece:
    """Return the chunks of a piece of media; a video's at one frame a second, two frames a chunk."""
    if media.kind == "text":
        made: Chunk | Clip = engine.add(text=str(media.content))
    else:
        made = engine.add(media.content, kind=media.kind, fps=1.0, frames_per_segment=2)
    return (made,) if isinstance(made, Chunk) else tuple(made)


def pieces(engine: Engine, item: TaskItem) -> tuple[Piece, ...]:
    """Return the chunks of every piece of media, in the order of `item.media`."""
    return tuple(add(engine, media) for media in item.media)


def messages(
    item: TaskItem, index: int, made: Sequence[Piece], setting: str, style: Style = "words"
) -> list[dict[str, Any]]:
    """Return the prompt of a question as messages for `Engine.prefill`, with the chunks of `pieces` as media.

    Raises:
        PromptError: the setting is none of `SETTINGS`.
    """
    return [{"role": role, "content": parts} for role, parts in _laid(item, index, made, setting, style)]


def plain_parts(
    item: TaskItem, index: int, made: Sequence[Piece], setting: str, style: Style = "words"
) -> list[PromptPart]:
    """Return the same as parts in one row, for models without a chat template; turns end with a newline."""
    said = [parts for _, parts in _laid(item, index, made, setting, style)]
    return [part for parts in said[:-1] for part in (*parts, "\n")] + said[-1]


def _laid(
    item: TaskItem, index: int, made: Sequence[Piece], setting: str, style: Style
) -> list[tuple[str, list[PromptPart]]]:
    if setting not in SETTINGS:
        raise PromptError(f"unknown setting {setting!r}: choose one of {', '.join(SETTINGS)}")
    known = {id(media): piece for media, piece in zip(item.media, made, strict=True)}

    def laid(part: Part) -> list[PromptPart]:
        if isinstance(part, str):
            return [part] if part else []
        piece = known[id(part)]
        gone = round(part.slides * len(piece)) if setting == "slid" else 0
        return [*(slid(chunk) for chunk in piece[:gone]), *piece[gone:]]

    return [(turn.role, [shown for part in turn.parts for shown in laid(part)]) for turn in turns(item, index, style)]


def slides(item: TaskItem) -> bool:
    """Return whether anything is absent in the setting slid."""
    return any(media.slides > 0 for media in item.media)


def answer_token(engine: Engine, answer: str) -> int | None:
    """Return the first token of an answer; None where the model's vocabulary does not hold it."""
    tokenizer = engine.template.tokenizer
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return None if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None) else int(ids[0])


def question_prompt(
    engine: Engine, item: TaskItem, index: int, made: Sequence[Piece], setting: str, style: Style = "words"
) -> Prompt:
    """Return a question's prompt: by the model's chat template, or as parts in a row where it has none."""
    if engine.template.preparer.chat_template:
        return engine.prompt(messages(item, index, made, setting, style))
    return engine.prompt(plain_parts(item, index, made, setting, style), template=False)


def forget(engine: Engine, made: Sequence[Piece]) -> None:
    """Let go of an item's chunks and of the prompts that they were in."""
    engine.forget_prompts()
    for chunk in (chunk for piece in made for chunk in piece):
        engine.store.delete(chunk.id)
