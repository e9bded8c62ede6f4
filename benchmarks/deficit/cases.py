"""From items to questions about chunks with antecedents, visible and slid, and the mask that isolates the loss.

The loss is isolated at the chunk's own positions, blind to its antecedents alone (Kamera, section 2).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.deficit.answerlog import MULTI, SINGLE
from benchmarks.deficit.subject import Case, CaseAnswer, Subject, in_context, subject_segment
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.prompts import SETTINGS, Piece, answer_token, expected, pieces, question_prompt, slides
from benchmarks.tasks.registry import task_of
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.kv.chunk import Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.patch import deficit
from emblema.link.prompt import ChunkPart, Prompt

GREY = (128, 128, 128)
SIDE = 224
Front = tuple[tuple[int, ...] | tuple[str, bool], ...]
SHIFT = 1000
"""Positions that the position control moves everything on by."""
Controls = dict[str, list[LayerRows]]
"""Deficits of the chunk as it is conditioned otherwise than by its antecedents in their places."""


@dataclass(frozen=True, slots=True)
class ItemCases:
    """An item's cases, the subject of each among them; what was `made` is to be forgotten when all is measured."""

    cases: tuple[Case, ...]
    made: tuple[Piece, ...]

    @property
    def subject(self) -> Subject:
        """The chunk that figures of chunks are taken of: of the last setting, slid where the task slides."""
        return self.cases[-1].subject


def gather(engine: Engine, item: TaskItem, multi: int, single: int) -> ItemCases | None:
    """Return an item's first questions of each hop in both settings; None where no chunk comes after another."""
    made = pieces(engine, item)
    subjects: dict[Front, Subject] = {}
    cases = []
    for setting in SETTINGS if slides(item) else SETTINGS[:1]:
        for index in _asked(item, multi, single):
            prompt = question_prompt(engine, item, index, made, setting)
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
            cases.append(Case(subjects[front], prompt, setting, hop, answer_token(engine, expected(question))))
    return ItemCases(tuple(cases), made) if cases else None


def items_of(task: str, seed: int, count: int) -> list[TaskItem]:
    """Return `count` items of a task.

    Raises:
        PromptError: there is no such task.
    """
    return list(task_of(task).items(seed, count))


def grey(engine: Engine) -> Encoded | None:
    """Return a flat grey picture, encoded: neutral filler. None for a model that is given no pictures."""
    try:
        (piece,) = engine.encode(Image.new("RGB", (SIDE, SIDE), GREY), kind="image")
    except EmblemaError:
        return None
    return piece.encoded


def _asked(item: TaskItem, multi: int, single: int) -> Iterator[int]:
    left = {True: multi, False: single}
    for index, question in enumerate(item.questions):
        if left[question.multi_hop] > 0:
            left[question.multi_hop] -= 1
            yield index


def _front(prompt: Prompt) -> Front:
    return tuple(
        (segment.part.chunk.id, segment.part.slid) if isinstance(segment.part, ChunkPart) else segment.part.token_ids
        for segment in prompt.segments
    )


def _pictures(item: TaskItem, made: Sequence[Piece], subject: Subject) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the last antecedent and the chunk as arrays, where both are drawn pictures."""
    shown = {
        piece[0].id: np.asarray(media.content.convert("RGB"))
        for media, piece in zip(item.media, made, strict=True)
        if isinstance(media.content, Image.Image)
    }
    ids = [chunk.id for _, chunk in subject.front.chunk_segments[-2:]]
    return (shown[ids[0]], shown[ids[1]]) if all(name in shown for name in ids) else None


def controls_of(subject: Subject, filler: Encoded | None) -> Controls:
    """Return the chunk conditioned `SHIFT` positions further on, and on neutral filler in its antecedents' places."""
    found = {"moved": _deltas(subject, moved(subject.front, SHIFT))}
    return found if filler is None else found | {"filler": _deltas(subject, filled(subject.front, filler))}


def isolation_answers(case: Case, others: Controls) -> dict[str, CaseAnswer]:
    """Return the loss, which is `blocked`: the chunk computed in its place, blind to its antecedents; and its controls.

    `unblocked` runs the mask's path with nothing hidden. `moved` is what position costs where conditioning is there;
    what it costs without, `blind` against `blocked` tells.
    """
    found = {"blocked": case.conditioned(case.subject.antecedents), "unblocked": case.conditioned(((0, 0),))}
    return found | {name: case.ask(deltas) for name, deltas in others.items()}


def _deltas(subject: Subject, front: Prompt) -> list[LayerRows]:
    rows, _, _ = in_context(subject.adapter, front)
    return [deficit(own, base) for own, base in zip(rows, subject.canonical, strict=True)]


def moved(front: Prompt, shift: int) -> Prompt:
    """Return the same rows, every position further on."""
    segments = tuple(replace(segment, position=segment.position + shift) for segment in front.segments)
    return Prompt(segments, front.axes, front.next_position + shift)


def filled(front: Prompt, filler: Encoded) -> Prompt:
    """Return the same rows and positions with neutral filler in place of what the antecedents show."""
    segments = list(front.segments)
    for index, segment in enumerate(front.segments[:-1]):
        if isinstance(segment.part, ChunkPart):
            chunk = segment.part.chunk
            shown = replace(chunk, encoded=neutral(chunk.encoded, filler))
            segments[index] = replace(segment, part=ChunkPart(shown))
    return Prompt(tuple(segments), front.axes, front.next_position)


def neutral(encoded: Encoded, filler: Encoded) -> Encoded:
    """Return a chunk whose media rows all hold the mean of the filler's; a passage of text holds its own mean."""
    visual = encoded.visual
    embeds = encoded.embeds.clone()
    if not bool(visual.any()):
        embeds[:] = embeds.mean(dim=0)
        return replace(encoded, embeds=embeds)
    embeds[visual] = filler.embeds[filler.visual].mean(dim=0).to(embeds)
    deepstack = tuple(
        _mean(layer).expand_as(own).to(own) for own, layer in zip(encoded.deepstack, filler.deepstack, strict=True)
    )
    return replace(encoded, embeds=embeds, deepstack=deepstack)


def _mean(rows: Tensor) -> Tensor:
    return torch.mean(rows.float(), dim=0, keepdim=True)
