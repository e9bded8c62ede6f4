"""How an item is put to a model: turns in either style, what is expected, and whether a reply is right.

`words`: the bare question, answered by a word; what the bundled models were trained on. `letters`: options and the
request for a letter as the data set's own evaluation writes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from benchmarks.tasks.items import Item, ItemQuestion, Media, Part

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
class Turn:
    """One message: `user` or `assistant`, its text and media in order."""

    role: str
    parts: tuple[Part, ...]


def style_of(item: Item, index: int, wanted: Style) -> Style:
    """The style a question is asked in: letters only where it has options and the right one may be known."""
    return wanted if item.questions[index].options else "words"


def turns(item: Item, index: int, style: Style = "words") -> tuple[Turn, ...]:
    """The messages that end with question `index`; in a dialogue the earlier turns stand before it, answered."""
    front: tuple[Part, ...] = (
        (item.instruction + "\n",) if item.instruction and style == "letters" else ()
    ) + item.parts
    if not item.dialogue:
        return (Turn("user", (*front, *asked(item.form, item.questions[index], style))),)
    said: list[Turn] = []
    for earlier in item.questions[:index]:
        said.append(Turn("user", (*front, *asked(item.form, earlier, style))))
        said.append(Turn("assistant", (expected(earlier, style),)))
        front = ()
    return (*said, Turn("user", (*front, *asked(item.form, item.questions[index], style))))


def asked(form: str, question: ItemQuestion, style: Style = "words") -> tuple[Part, ...]:
    """A question's own parts as they are put in a style."""
    if style == "words":
        return question.parts
    if not question.options:
        return (*question.parts, _SHORT) if form == "mm-niah" else question.parts
    lines: list[Part] = [_BEFORE_OPTIONS.get(form, "")]
    for letter, option in zip(LETTERS, question.options, strict=False):
        lines += ["\n" + _OPTION.get(form, "{}. ").format(letter), option]
    return _joined([_FRONT.get(form, ""), *question.parts, *lines, _END.get(form, _LETTER)])


def expected(question: ItemQuestion, style: Style = "words") -> str:
    """The right reply in a style: a letter, or the answer's text."""
    if style == "letters" and question.options and question.correct >= 0:
        return LETTERS[question.correct]
    return question.answer


def chosen(question: ItemQuestion, reply: str) -> int:
    """Index of the option that a reply names by its letter or by its text, -1 if none or several."""
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
    """Exact answer: the right option is named, or the text is the answer or an alias, case and punctuation apart.

    Where the right option is not known, nothing is right.
    """
    if question.options:
        return question.correct >= 0 and chosen(question, reply) == question.correct
    return normal(reply) in {normal(each) for each in (question.answer, *question.aliases)}


def normal(text: str) -> str:
    """Lower case, no punctuation, no articles (unless there is nothing else), single spaces."""
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
