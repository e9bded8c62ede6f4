"""Data sets of multimodal questions as items.

`load_items(path, form)` reads a person's own copy of a data set; nothing is downloaded, nothing of theirs shipped:

    form          file of records                     media
    mm-niah       annotations/<task>.jsonl            images/
    muirbench     *.parquet, or jsonl                 in the table, or beside it
    milebench     <dataset>.json                      images/
    video-mme     *.parquet, or jsonl                 data/, videos/ or video/, <videoID>.mp4
    egoschema     questions.json, subset_answers.json videos/<q_uid>.mp4
    mmdu          benchmark.json                      as named, or images/
    sparkleseval  annotations/*sparkleseval*.json     images/<image_id>.jpg
    musique       *.jsonl                             none
    emblema       items.jsonl                         as named

Media have to lie inside the data set's folder. Parquet needs pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.records import DataError, DataLimits, DataRecord, document, records
from benchmarks.data.source import (
    DataSource,
    divided,
    interleave,
    marked,
    merged,
    none_left,
    option_index,
    records_file,
)
from benchmarks.tasks.items import ItemQuestion, Media, MediaKind, Part, TaskItem
from benchmarks.tasks.prompts import LETTERS
from emblema.errors import PromptError

MEDIA_KINDS: tuple[MediaKind, ...] = ("image", "video", "audio", "text")
IMAGE_MARK = "<image>"
MILEBENCH_MARK = re.compile(r"\{(?:image|table)#(\d{1,6})\}")
VIDEO_MME_PLACES = ("data", "videos", "video", "")
VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", "")
_LETTER = re.compile(r"^\(?[A-Z][.):]\s*")
EGOSCHEMA_OPTIONS = tuple(f"option {number}" for number in range(5))
UNASKED = "Which of the following describes the video?"
EGOSCHEMA_PLACES = ("videos", "good_clips_git", "")
MMDU_MARK = "<ImageHere>"
MMDU_PLACES = ("", "images", "mmdu_pics")
SPARKLES_MARK = "<Img><ImageHere></Img>"
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png")
_EARLIER_HOP = re.compile(r"#(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Form:
    """A data set's form.

    Attributes:
        title: what people call the data set; `usual`: patterns of its file of records, for when a folder is given.
        read: items of a source.
    """

    name: str
    title: str
    usual: tuple[str, ...]
    read: Callable[[DataSource], Iterator[TaskItem]]


def _each(
    item: Callable[[DataSource, DataRecord], TaskItem], *, together: bool = False
) -> Callable[[DataSource], Iterator[TaskItem]]:
    """Return a reader of a record at a time; neighbours that show the same media become one item if `together`."""

    def read(source: DataSource) -> Iterator[TaskItem]:
        items = marked(item(source, record) for record in records(source.path, source.limits))
        return merged(items) if together else items

    return read


def _read_own(source: DataSource) -> Iterator[TaskItem]:
    return (_own_item(source, record) for record in records(source.path, source.limits))


def _own_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a line in Emblema's own form, which can say everything an item holds."""
    questions = record.objects("questions")
    if not questions:
        raise record.wrong("'questions' is empty")
    return TaskItem(
        record.text("id"),
        record.text("task"),
        "emblema",
        _own_parts(source, record, "parts"),
        tuple(_own_question(source, question) for question in questions),
        record.flag("dialogue", False),
        record.text("instruction", ""),
        record.text("episode", ""),
    )


def _own_question(source: DataSource, record: DataRecord) -> ItemQuestion:
    options = _own_parts(source, record, "options") if record.has("options") else ()
    correct = record.number("correct") if record.has("correct") else -1
    if correct >= len(options):
        raise record.wrong(f"'correct' is {correct}; there are {len(options)} options")
    return ItemQuestion(
        record.text("id"),
        _own_parts(source, record, "parts"),
        record.text("answer"),
        options,
        correct,
        record.flag("multi_hop", True),
        record.text("kind", ""),
        tuple(record.texts("aliases", needed=False)),
    )


def _own_parts(source: DataSource, record: DataRecord, field: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for place, value in enumerate(record.values(field)):
        if isinstance(value, str):
            parts.append(value)
            continue
        if not isinstance(value, dict):
            raise record.wrong(f"'{field}[{place}]' is {repr(value)[:60]}, not a text or an object")
        media = DataRecord(record.path, f"{record.where}, {field}[{place}]", value)
        kind, slides = media.text("kind"), value.get("slides", 0.0)
        if kind not in MEDIA_KINDS:
            raise media.wrong(f"'kind' is {kind[:20]!r}: use one of {', '.join(MEDIA_KINDS)}")
        if isinstance(slides, bool) or not isinstance(slides, int | float) or not 0 <= slides <= 1:
            raise media.wrong(f"'slides' is {repr(slides)[:40]}, not a share from 0 to 1")
        file = None if kind == "text" else source.find(media, media.text("file"), ("",))
        parts.append(Media(kind, media.text("text") if file is None else file, float(slides)))
    return tuple(parts)


def _mm_niah_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a line of MM-NIAH: a document of text and pictures, `<image>` where a picture is."""
    meta = record.object("meta")
    left = iter([source.picture(record, value, "images") for value in record.values("images_list")])
    parts = interleave(record, record.text("context"), IMAGE_MARK, left)
    asked = interleave(record, record.text("question"), IMAGE_MARK, left)
    none_left(record, left, IMAGE_MARK)
    options: list[Part] = [*meta.texts("choices", needed=False)]
    if meta.has("choices_image_path") and not options:
        options += [source.picture(record, value, "images") for value in meta.values("choices_image_path")]
    answer, correct = record.value("answer"), -1
    if options:
        correct = option_index(record, answer, options)
        chosen = options[correct]
        answer = chosen if isinstance(chosen, str) else LETTERS[correct]
    elif isinstance(answer, list):
        answer = json.dumps(answer)
    code = record.text("id")
    question = ItemQuestion(code, asked, str(answer), tuple(options), correct)
    return TaskItem(code, source.path.stem, "mm-niah", parts, (question,))


def _muirbench_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a row of MuirBench; a question's unanswerable twin shares its episode."""
    media = [source.picture(record, value, "", "images") for value in record.values("image_list")]
    left = iter(media)
    text, texts = record.text("question"), record.texts("options")
    if not any(IMAGE_MARK in each for each in (text, *texts)):
        text = IMAGE_MARK * len(media) + text
    parts = interleave(record, text, IMAGE_MARK, left)
    options = tuple(_muirbench_option(record, option, left) for option in texts)
    none_left(record, left, IMAGE_MARK)
    shown, asked = divided(parts)
    correct = option_index(record, record.value("answer"), texts)
    answer = texts[correct].strip() if isinstance(options[correct], str) else LETTERS[correct]
    code = record.text("idx")
    twin = record.text("counterpart_idx", "") or code
    question = ItemQuestion(code, asked, answer, options, correct)
    episode = min((code, twin), key=lambda name: (len(name), name))
    return TaskItem(code, record.text("task", "muirbench"), "muirbench", shown, (question,), episode=episode)


def _muirbench_option(record: DataRecord, option: str, left: Iterator[Media]) -> Part:
    if IMAGE_MARK not in option:
        return option
    found = [part for part in interleave(record, option, IMAGE_MARK, left) if isinstance(part, Media)]
    if len(found) != 1:
        raise record.wrong(f"the option {option[:60]!r} has {len(found)} pictures")
    return found[0]


def _read_milebench(source: DataSource) -> Iterator[TaskItem]:
    """Return the items of the document's `data`, questions about the same pictures and text together."""
    whole = document(source.path, source.limits)
    if not isinstance(whole, dict):
        raise DataError(source.path, "it is not an object with 'meta_data' and 'data'")
    around = DataRecord(source.path, "", whole)
    instructions = around.object("meta_data").texts("task_instruction")
    return merged(marked(_milebench_item(source, record, instructions) for record in around.objects("data")))


def _milebench_item(source: DataSource, record: DataRecord, instructions: list[str]) -> TaskItem:
    """Return the item of a sample of MileBench: `{image#i}` or `{table#i}` where the i-th picture is."""
    instance, told = record.object("task_instance"), record.number("task_instruction_id")
    if told >= len(instructions):
        raise record.wrong(f"there is no task instruction {told} in 'meta_data'")
    media = [source.picture(record, value, "images") for value in instance.values("images_path")]
    parts, asked = divided(_milebench_parts(record, instance.text("context"), media))
    options = instance.texts("choice_list", needed=False)
    response, correct = record.text("response"), -1
    if options:
        correct = option_index(record, response, options)
        response = options[correct]
    code, task = record.text("sample_id"), source.path.stem
    question = ItemQuestion(code, asked, response, tuple(options), correct)
    return TaskItem(f"{task}-{code}", task, "milebench", parts, (question,), instruction=instructions[told])


def _milebench_parts(record: DataRecord, context: str, media: list[Media]) -> tuple[Part, ...]:
    parts: list[Part] = []
    pieces = MILEBENCH_MARK.split(context)
    for text, number in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if text:
            parts.append(text)
        if number:
            if not 1 <= int(number) <= len(media):
                raise record.wrong(f"the context names picture {number}; there are {len(media)}")
            parts.append(media[int(number) - 1])
    return tuple(parts)


def _video_mme_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a question of Video-MME, a row of the hub's table."""
    video = Media("video", source.find(record, record.text("videoID"), VIDEO_MME_PLACES, VIDEO_SUFFIXES))
    options = tuple(_LETTER.sub("", option) for option in record.texts("options"))
    correct = option_index(record, record.value("answer"), options)
    asked, kind = (record.text("question"),), record.text("task_type", "")
    question = ItemQuestion(record.text("question_id"), asked, options[correct], options, correct, kind=kind)
    return TaskItem(record.text("video_id"), "video-mme", "video-mme", (video,), (question,))


def _read_egoschema(source: DataSource) -> Iterator[TaskItem]:
    path = source.path.with_name("subset_answers.json")
    found = document(path, source.limits) if path.is_file() else {}
    if not isinstance(found, dict):
        raise DataError(path, "it is not an object with an answer for each video")
    answers = DataRecord(path, "", found)
    return marked(_egoschema_item(source, record, answers) for record in records(source.path, source.limits))


def _egoschema_item(source: DataSource, record: DataRecord, answers: DataRecord) -> TaskItem:
    """Return the item of a video of EgoSchema; without an answer the right option is not known."""
    code = record.text("q_uid")
    options = tuple(record.text(name) for name in EGOSCHEMA_OPTIONS)
    correct = answers.number(code) if code in answers.fields else -1
    if correct >= len(options):
        raise answers.wrong(f"{code!r} has the answer {correct}; options are numbered from 0 to 4")
    video = Media("video", source.find(record, code, EGOSCHEMA_PLACES, (".mp4",)))
    # Some published copies of the file leave the question out.
    text = record.text("question", UNASKED)
    question = ItemQuestion(code, (text,), options[correct] if correct >= 0 else "", options, correct)
    return TaskItem(code, "egoschema", "egoschema", (video,), (question,))


def _exchanges(record: DataRecord, field: str) -> list[tuple[DataRecord, DataRecord]]:
    """Return a dialogue's messages by turn: the user's and the assistant's."""
    messages = record.objects(field)
    if len(messages) < 2 or len(messages) % 2:
        raise record.wrong(f"{field!r} has {len(messages)} messages: a user's and an assistant's for each turn")
    return list(zip(messages[::2], messages[1::2], strict=True))


def _mmdu_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a dialogue of MMDU: the user's turns are questions, the assistant's the reference answers.

    A picture that no turn has a place for is not shown, as in the data set's own evaluation.
    """
    left = iter([source.picture(record, value, *MMDU_PLACES) for value in record.values("image")])
    code = record.text("id")
    questions = []
    for turn, exchange in enumerate(_exchanges(record, "conversations")):
        for message, role in zip(exchange, ("user", "assistant"), strict=True):
            if message.text("from") != role:
                raise message.wrong(f"it is from {message.text('from')[:20]!r}; here stands one from {role!r}")
        asked = interleave(record, exchange[0].text("value"), MMDU_MARK, left)
        questions.append(ItemQuestion(f"{code}-{turn}", asked, exchange[1].text("value")))
    return TaskItem(code, "mmdu", "mmdu", (), tuple(questions), dialogue=True)


def _sparkleseval_item(source: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a dialogue of SparklesEval; `<Img><ImageHere></Img>` is where a picture is named."""
    code = record.text("evaluation_id")
    questions = []
    for turn, (user, assistant) in enumerate(_exchanges(record, "dialogue")):
        names = [image.text("image_id") for image in user.objects("images")] if user.has("images") else []
        left = iter([Media("image", source.find(user, name, ("images",), PICTURE_SUFFIXES)) for name in names])
        asked = interleave(user, user.text("content"), SPARKLES_MARK, left)
        none_left(user, left, SPARKLES_MARK)
        questions.append(ItemQuestion(f"{code}-{turn}", asked, assistant.text("content")))
    return TaskItem(code, "sparkleseval", "sparkleseval", (), tuple(questions), dialogue=True)


def _musique_item(_: DataSource, record: DataRecord) -> TaskItem:
    """Return the item of a line of MuSiQue: the supporting paragraphs (Kamera's two chunks), the question, its hops."""
    shown = [each for each in record.objects("paragraphs") if each.flag("is_supporting", False)]
    if not shown:
        raise record.wrong("none of the 'paragraphs' is supporting")
    parts = tuple(Media("text", f"{each.text('title')}\n{each.text('paragraph_text')}") for each in shown)
    code, aliases = record.text("id"), tuple(record.texts("answer_aliases", needed=False))
    questions = [ItemQuestion(code, (record.text("question"),), record.text("answer"), aliases=aliases)]
    hops = record.objects("question_decomposition") if record.has("question_decomposition") else []
    answers = [hop.text("answer") for hop in hops]
    for place, hop in enumerate(hops):
        asked = _hop_question(hop, answers)
        questions.append(ItemQuestion(f"{code}-{place}", (asked,), answers[place], multi_hop=False))
    return TaskItem(code, "musique", "musique", parts, tuple(questions))


def _hop_question(hop: DataRecord, answers: list[str]) -> str:
    """Return a hop's question with `#1` replaced by the answer of the first hop, and so on."""

    def answer(found: re.Match[str]) -> str:
        number = int(found.group(1))
        if not 1 <= number <= len(answers):
            raise hop.wrong(f"it names the answer of hop {number}; there are {len(answers)}")
        return answers[number - 1]

    return _EARLIER_HOP.sub(answer, hop.text("question"))


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("emblema", "Emblema's own form", ("items.jsonl",), _read_own),
        Form("mm-niah", "MM-NIAH", ("annotations/*.jsonl",), _each(_mm_niah_item, together=True)),
        Form("muirbench", "MuirBench", ("data/*.parquet", "*.jsonl"), _each(_muirbench_item, together=True)),
        Form("milebench", "MileBench", ("*.json",), _read_milebench),
        Form("video-mme", "Video-MME", ("videomme/*.parquet", "*.jsonl"), _each(_video_mme_item, together=True)),
        Form("egoschema", "EgoSchema", ("questions.json",), _read_egoschema),
        Form("mmdu", "MMDU", ("benchmark.json",), _each(_mmdu_item)),
        Form("sparkleseval", "SparklesEval", ("annotations/*sparkleseval*.json",), _each(_sparkleseval_item)),
        Form("musique", "MuSiQue", ("*.jsonl",), _each(_musique_item)),
    )
}


def load_items(path: str | Path, form: str, *, limits: DataLimits | None = None) -> Iterator[TaskItem]:
    """Return the items of a data set on this machine, read as they are asked for.

    Args:
        path: the file of records, or the data set's folder where it has one such file.
        form: one of `FORMS`.

    Raises:
        DataError: a file is missing, broken or incomplete, or names media outside the folder; it names file and record.
        PromptError: there is no such form.
    """
    if form not in FORMS:
        raise PromptError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
    chosen = FORMS[form]
    return _checked(DataSource(records_file(Path(path), chosen.usual, chosen.title), limits or DataLimits()), chosen)


def _checked(source: DataSource, form: Form) -> Iterator[TaskItem]:
    count = 0
    for item in form.read(source):
        count += 1
        shown = [part for question in item.questions for part in (*question.parts, *question.options)]
        characters = sum(len(part) for part in (*item.parts, *shown) if isinstance(part, str))
        if characters > source.limits.characters or len(item.media) > source.limits.media:
            raise DataError(source.path, f"item {item.id[:80]!r} is larger than the limit of text or pictures")
        yield item
    if count == 0:
        raise DataError(source.path, f"it holds no items of {form.title}")
