"""MuSiQue: paragraphs of text and a question of several hops; jsonl. The supporting paragraphs become chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import Form, Source, file_name, write_lines
from benchmarks.data.notes import FIELD, annotated, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media
from emblema.errors import PromptError

_EARLIER = re.compile(r"#(\d{1,3})")


def read(source: Source) -> Iterator[Item]:
    """Items: the supporting paragraphs in order (Kamera's two-chunk setup), the question, then its hops."""
    return (_item(record) for record in source.records())


def _item(record: Record) -> Item:
    record.need("id", "paragraphs", "question", "answer")
    parts = []
    for paragraph in record.objects("paragraphs"):
        paragraph.need("title", "paragraph_text", "is_supporting")
        if paragraph.flag("is_supporting", False):
            parts.append(Media("text", f"{paragraph.text('title')}\n{paragraph.text('paragraph_text')}"))
    if not parts:
        raise record.wrong("none of the 'paragraphs' is supporting")
    aliases = tuple(record.texts("answer_aliases")) if record.has("answer_aliases") else ()
    code = record.text("id")
    questions = [ItemQuestion(code, (record.text("question"),), record.text("answer"), aliases=aliases)]
    hops = record.objects("question_decomposition") if record.has("question_decomposition") else []
    answers = [hop.text("answer") for hop in hops]
    for place, hop in enumerate(hops):
        questions.append(ItemQuestion(f"{code}-{place}", (_filled(hop, answers),), answers[place], multi_hop=False))
    return annotated(record, Item(code, "musique", "musique", tuple(parts), tuple(questions)))


def _filled(hop: Record, answers: list[str]) -> str:
    """A hop's question with `#1` replaced by the answer of the first hop, and so on."""

    def answer(found: re.Match[str]) -> str:
        number = int(found.group(1))
        if not 1 <= number <= len(answers):
            raise hop.wrong(f"it names the answer of hop {number}; there are {len(answers)}")
        return answers[number - 1]

    return _EARLIER.sub(answer, hop.text("question"))


def write(items: Sequence[Item], out: Path) -> Path:
    """`<task>.jsonl`, a line for each item."""
    lines = []
    for item in items:
        paragraphs = []
        for place, media in enumerate(item.media):
            if not isinstance(media.content, str) or "\n" not in media.content:
                raise PromptError(
                    f"item {item.id}: this form takes passages of text, each with a title on its own line"
                )
            title, text = media.content.split("\n", 1)
            paragraphs.append({"idx": place, "title": title, "paragraph_text": text, "is_supporting": True})
        asked, *hops = item.questions
        decomposition = [
            {"id": place, "question": hop.text, "answer": hop.answer, "paragraph_support_idx": None}
            for place, hop in enumerate(hops)
        ]
        lines.append(
            {
                "id": item.id,
                "paragraphs": paragraphs,
                "question": asked.text,
                "question_decomposition": decomposition,
                "answer": asked.answer,
                "answer_aliases": list(asked.aliases),
                "answerable": True,
                FIELD: noted(item),
            }
        )
    return write_lines(out / f"{file_name(items[0].task)}.jsonl", lines)


FORM = Form("musique", "MuSiQue", ("*.jsonl",), read, write)
