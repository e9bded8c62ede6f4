"""Streams and their questions as rows for the decoder: table indices, positions, who may see what.

A batch holds streams of one length. Its context is the opening and the frames, four rows each; its asked rows are the
questions with their answers, each question blind to the others and to frames behind the time when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.tasks.streams import GeneratedStream, TimedQuestion, seen
from benchmarks.tasks.streams.questions import TEMPLATES
from benchmarks.tasks.tiles import TILE_COUNT
from training.layout import chatter, words
from training.streams.hints import ROLES, hints
from training.streams.labels import label
from training.words import INDEX, VOCABULARY

OPENING = "<|im_start|> user <|vision_start|>"
SYSTEM = "<|im_start|> system you are a helpful assistant . <|im_end|>"
FORMS = tuple(text for group in TEMPLATES.values() for text in group)
STEP = 2
"""Positions from one frame to the next: the larger of its rows and columns."""


@dataclass(frozen=True)
class Setting:
    """How streams are shown.

    window: frames that a frame sees before it, None for all. keep: share of frames that questions see beside the
    evidence and the `recent` last ones, their positions packed; None: all, where they stand. system, chatter: an
    opening with a system turn, with so many random words. jump: most positions left out at two places of the stream.
    ends: whether the answers stand behind the questions, so that their ends are learnt too.
    """

    window: int | None = None
    keep: float | None = None
    recent: int = 8
    system: bool = False
    chatter: int = 0
    jump: int = 0
    variants: int = 1
    ends: bool = True


@dataclass
class Batch:
    """Tensors of B streams: C context rows each, then S asked rows (questions of one padded length).

    table: [B, C + S] rows of the table of words and cells. positions: [3, B, C + S]; read: [3, B, C] where questions
    see the context, None: in the same place. encoding: [C, C] mask of the context, None: causal. sees: [B, 1, S,
    C + S]. answers: [n, 4] (row among the B * S asked, word, form, stream). cells: name -> [B, 4 * frames] labels.
    opening: context rows in front of the frames. longest: asked rows of a question.
    ends: whether the row behind an answer's is the answer. says: [m, 4] (row among the B * S asked, word that it may
    say, how likely, role). looked: [l, 3] (stream, row among its S asked, role) of rows that may look into the
    stream; looks: [k, 3] (which of `looked`, context row, share of its look).
    """

    table: torch.Tensor
    positions: torch.Tensor
    read: torch.Tensor | None
    encoding: torch.Tensor | None
    sees: torch.Tensor
    answers: torch.Tensor
    cells: dict[str, torch.Tensor]
    opening: int
    longest: int
    ends: bool
    says: torch.Tensor
    looked: torch.Tensor
    looks: torch.Tensor

    @property
    def context(self) -> int:
        """Context rows of a stream."""
        return self.table.shape[1] - self.sees.shape[2]


def form_of(asked: TimedQuestion) -> int:
    """Index of a question's wording among FORMS."""
    said = asked.text.split()
    for number, form in enumerate(FORMS):
        pattern = form.split()
        if len(said) == len(pattern) and all(b in ("{}", a) for a, b in zip(said, pattern, strict=True)):
            return number
    raise ValueError(f"no form of {asked.text!r}")


def collate(
    random: np.random.Generator,
    streams: Sequence[GeneratedStream],
    asked: Sequence[Sequence[TimedQuestion]],
    setting: Setting,
) -> Batch:
    """Streams of one length and their questions as a batch."""
    frames = len(streams[0])
    front = words(SYSTEM if setting.system else "") + words("<|im_start|> user")
    opening = len(front) + setting.chatter + 1
    context = opening + 4 * frames
    said = [[words(_said(each, setting.ends)) for each in group] for group in asked]
    most, longest = max(map(len, asked)), max(len(text) for group in said for text in group)
    total = context + most * longest
    table = np.zeros((len(streams), total), dtype=np.int64)
    positions = np.zeros((3, len(streams), total), dtype=np.int64)
    read = np.zeros((3, len(streams), context), dtype=np.int64)
    sees = np.zeros((len(streams), most * longest, total), dtype=bool)
    own = np.kron(np.eye(most, dtype=bool), np.tril(np.ones((longest, longest), dtype=bool)))
    sees[:, :, context:] = own
    answers, labels = [], []
    says: list[tuple[int, int, float, int]] = []
    looked: list[tuple[int, int, int]] = []
    looks: list[tuple[int, int, float]] = []
    for index, (stream, group) in enumerate(zip(streams, asked, strict=True)):
        held = label(stream)
        labels.append(held)
        shift = TILE_COUNT * random.integers(setting.variants, size=held.tiles.shape)
        table[index, :opening] = front + chatter(random, setting.chatter) + [INDEX["<|vision_start|>"]]
        table[index, opening:context] = (len(VOCABULARY) + held.tiles + shift).reshape(-1)
        place = opening + STEP * np.arange(frames + 1)
        for _ in range(2 if setting.jump else 0):
            still = np.flatnonzero(held.begins[:, 0] == 0)
            if len(still):
                place[int(random.choice(still)) :] += int(random.integers(setting.jump + 1))
        kept = _kept(random, frames, group, setting)
        packed = opening + STEP * np.concatenate([[0], np.cumsum(kept)])
        for target, begins in ((positions, place), (read, packed if setting.keep is not None else place)):
            target[:, index, :opening] = np.arange(opening)
            target[:, index, opening:context] = _spread(begins[:-1])
        ends = packed if setting.keep is not None else place
        shown = {at: seen(stream, at) for at in {question.at for question in group}}
        for number, (question, text) in enumerate(zip(group, said[index], strict=True)):
            first = number * longest
            rows = slice(first, first + longest)
            table[index, context + first : context + first + len(text)] = text
            positions[:, index, context + first : context + first + longest] = ends[question.at] + np.arange(longest)
            sees[index, rows, :opening] = True
            sees[index, rows, opening:context] = np.repeat(kept & (np.arange(frames) < question.at), 4)
            start = index * most * longest + first
            for hint in hints(shown[question.at], question):
                row = start + 1 + hint.place
                role = list(ROLES).index(hint.role)
                says += [(row, INDEX[word], 1 / len(hint.says), role) for word in hint.says]
                if hint.looks:
                    looked.append((index, row - index * most * longest, role))
                    looks += [
                        (
                            len(looked) - 1,
                            opening + 4 * frame + cell if frame >= 0 else opening - 1,
                            1 / len(hint.looks),
                        )
                        for frame, cell in hint.looks
                    ]
            answers.append((start + len(text) - 1 - setting.ends, INDEX[question.answer], form_of(question), index))
    cells = {
        name: torch.from_numpy(np.stack([getattr(each, name).reshape(-1) for each in labels]))
        for name in ("land", "glyph", "colour", "begins", "before", "order")
    }
    return Batch(
        torch.from_numpy(table),
        torch.from_numpy(positions),
        torch.from_numpy(read) if setting.keep is not None else None,
        window_mask(opening, frames, setting.window),
        torch.from_numpy(sees)[:, None],
        torch.tensor(answers),
        cells,
        opening,
        longest,
        setting.ends,
        torch.tensor(says, dtype=torch.float64).reshape(-1, 4),
        torch.tensor(looked, dtype=torch.long).reshape(-1, 3),
        torch.tensor(looks, dtype=torch.float64).reshape(-1, 3),
    )


def _said(asked: TimedQuestion, ends: bool) -> str:
    return f"<|vision_end|> {asked.text} <|im_end|> <|im_start|> assistant" + f" {asked.answer}" * ends


def _spread(place: np.ndarray) -> np.ndarray:
    """[3, 4 * frames] positions of the cells of frames that begin at `place`."""
    axes = np.asarray([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    return (place[None, :, None] + axes[:, None, :]).reshape(3, -1)


def _kept(random: np.random.Generator, frames: int, group: Sequence[TimedQuestion], setting: Setting) -> np.ndarray:
    """[frames] which frames the questions of a stream see: the last, what they need, and some others."""
    if setting.keep is None:
        return np.ones(frames, dtype=bool)
    kept = random.random(frames) < setting.keep
    kept[max(0, frames - setting.recent) :] = True
    for asked in group:
        for begin, end in asked.evidence:
            kept[begin] = True
            kept[begin:end] |= random.random(end - begin) < 0.5
            if end - begin == STEP:
                kept[begin:end] = True
    return kept


def window_mask(opening: int, frames: int, window: int | None) -> torch.Tensor | None:
    """[C, C] True where a context row may see another: the opening, `window` frames before its own, and causally."""
    if window is None or window >= frames:
        return None
    frame = np.concatenate([np.full(opening, -1), np.repeat(np.arange(frames), 4)])
    causal = np.tril(np.ones((len(frame), len(frame)), dtype=bool))
    near = (frame[:, None] - frame[None, :] <= window) | (frame[None, :] < 0)
    return torch.from_numpy(causal & near)
