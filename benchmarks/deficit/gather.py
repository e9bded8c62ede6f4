"""From a task's items to questions about chunks behind antecedents, in the settings visible and slid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from benchmarks.deficit.answerlog import MULTI, SINGLE
from benchmarks.deficit.subject import Case, Subject, subject_segment
from benchmarks.tasks import TaskItem, task_of
from benchmarks.tasks.prompts import SETTINGS, Piece, expected, messages, pieces, plain_parts, slides
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.kv.chunk import Chunk, Encoded
from emblema.link.prompt import ChunkPart, Prompt

GREY = (128, 128, 128)
SIDE = 224
Front = tuple[tuple[int, ...] | tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class ItemCases:
    """An item's cases, the subject of each among them; `chunks` are to be forgotten when all is measured."""

    cases: tuple[Case, ...]
    chunks: tuple[Chunk, ...]

    @property
    def subject(self) -> Subject:
        """The chunk that figures of chunks are taken of: of the last setting, slid where the task slides."""
        return self.cases[-1].subject


def gather(engine: Engine, item: TaskItem, multi: int, single: int) -> ItemCases | None:
    """An item's first questions of each hop in both settings; None where no chunk stands behind another."""
    made = pieces(engine, item)
    chunks = tuple(chunk for piece in made for chunk in piece)
    subjects: dict[Front, Subject] = {}
    cases = []
    for setting in SETTINGS if slides(item) else SETTINGS[:1]:
        for index in _asked(item, multi, single):
            prompt = prompt_of(engine, item, index, made, setting)
            try:
                segment = subject_segment(prompt)
            except PromptError:
                continue
            front = _front(prompt.until(segment.stop))
            if front not in subjects:
                subjects[front] = Subject.of(engine.adapter, prompt, item.episode)
                subjects[front].pictures = _pictures(item, made, subjects[front])
            question = item.questions[index]
            hop = MULTI if question.multi_hop else SINGLE
            cases.append(Case(subjects[front], prompt, setting, hop, _token(engine, expected(question))))
    return ItemCases(tuple(cases), chunks) if cases else None


def items_of(task: str, seed: int, count: int) -> list[TaskItem]:
    """`count` items of a task.

    Raises:
        PromptError: there is no such task.
    """
    return list(task_of(task).items(seed, count))


def prompt_of(engine: Engine, item: TaskItem, index: int, made: Sequence[Piece], setting: str) -> Prompt:
    """A question's prompt: by the model's chat template, or as parts in a row where it has none."""
    if engine.template.preparer.chat_template:
        return engine.prompt(messages(item, index, made, setting))
    return engine.prompt(plain_parts(item, index, made, setting), template=False)


def grey(engine: Engine) -> Encoded | None:
    """A flat grey picture, encoded: neutral filler. None for a model that is given no pictures."""
    try:
        (piece,) = engine.encode(Image.new("RGB", (SIDE, SIDE), GREY), kind="image")
    except EmblemaError:
        return None
    return piece.encoded


def forget(engine: Engine, chunks: Sequence[Chunk]) -> None:
    """Let go of an item's chunks."""
    engine.forget_prompts()
    for chunk in chunks:
        engine.store.delete(chunk.id)


def _asked(item: TaskItem, multi: int, single: int) -> Iterator[int]:
    left = {True: multi, False: single}
    for index, question in enumerate(item.questions):
        if left[question.multi_hop] > 0:
            left[question.multi_hop] -= 1
            yield index


def _front(prompt: Prompt) -> Front:
    return tuple(
        (one.part.chunk.id, one.part.slid) if isinstance(one.part, ChunkPart) else one.part.token_ids
        for one in prompt.segments
    )


def _token(engine: Engine, answer: str) -> int | None:
    """The first token of an answer; None where the vocabulary does not hold it."""
    tokenizer = engine.template.tokenizer
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return None if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None) else int(ids[0])


def _pictures(item: TaskItem, made: Sequence[Piece], subject: Subject) -> tuple[np.ndarray, np.ndarray] | None:
    """The last antecedent and the chunk as arrays, where both are drawn pictures."""
    shown = {
        piece[0].id: np.asarray(media.content.convert("RGB"))
        for media, piece in zip(item.media, made, strict=True)
        if isinstance(media.content, Image.Image)
    }
    ids = [chunk.id for _, chunk in subject.front.chunk_segments[-2:]]
    return (shown[ids[0]], shown[ids[1]]) if all(one in shown for one in ids) else None
