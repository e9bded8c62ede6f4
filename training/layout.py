"""An episode as rows for the decoder: table indices, positions, who may see what, what should be said."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from benchmarks.tasks import Episode, Legend, Map, SceneClip
from benchmarks.tasks.list_tasks import LISTED
from benchmarks.tasks.tiles import TILE_COUNT
from benchmarks.tasks.world import BLANK, KINDS
from training.words import COMMON, INDEX, VOCABULARY, WORLD

NOWHERE = -1
ICON_KINDS = ("colour", "land", "count", "which", *LISTED)
ASKED_KINDS = (*KINDS, *LISTED)
"""Kinds of question by the numbers that answers name them by."""
LAND_GLYPH = 24


@dataclass(frozen=True)
class Frame:
    """What a family of models writes around a picture.

    before, after: words; those in `silent` mean nothing to the teacher. newline: a row of its own ends each line of
    cells. view: the whole picture, shrunk to one cell, comes first. copies: pictures that a scene of a clip becomes.
    stamps: a scene of a clip stands behind its time in seconds.
    """

    before: tuple[str, ...] = ("<|vision_start|>",)
    after: tuple[str, ...] = ("<|vision_end|>",)
    silent: tuple[str, ...] = ()
    newline: bool = False
    view: bool = False
    copies: int = 1
    stamps: bool = False


@dataclass(frozen=True)
class Setting:
    """How an episode is shown.

    slid: share of icon questions that cannot see the legends; hidden: nor can any other text. blind: maps see only
    themselves; alone: share of pages that see only themselves, in a third of the episodes. opening: most words before
    the pages; offset: most positions added; turns: chance of an earlier turn; clips: chance that pages are scenes.
    """

    slid: float = 0.6
    hidden: bool = False
    blind: bool = False
    alone: float = 0.0
    opening: int = 0
    between: float = 0.0
    offset: int = 0
    system: float = 0.0
    turns: float = 0.0
    clips: float = 0.0
    variants: int = 1
    frame: Frame = Frame()


@dataclass
class Rows:
    """Rows of one episode. One entry a row in every list; targets name rows by number.

    table: index among words, cells, the newline and views; taught: the same for the teacher, NOWHERE where it has no
    such row. positions: time, row and column; line: the same with every row one further. views: cells of each picture
    that is also shown whole.
    """

    table: list[int] = field(default_factory=list)
    taught: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    page: list[int] = field(default_factory=list)
    legend: list[bool] = field(default_factory=list)
    question: list[int] = field(default_factory=list)
    hide: list[bool] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    answers: list[tuple[int, int, int, bool]] = field(default_factory=list)
    visual: list[tuple[int, int, int, int]] = field(default_factory=list)
    views: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Flags:
    """What holds for a row: its page and question, and what it may see."""

    page: int = NOWHERE
    legend: bool = False
    question: int = NOWHERE
    hide: bool = False
    alone: bool = False


def words(text: str) -> list[int]:
    """Token ids of lower-case text, as the tokenizer splits it."""
    return [INDEX.get(word, INDEX["<unk>"]) for word in re.findall(r"<\|\w+\|>|[a-z]+|\d|[^\w\s]", text)]


def chatter(random: np.random.Generator, count: int) -> list[int]:
    """Random words: mostly common ones, some of the world's, some unknown."""
    kinds = random.random(count)
    picks = [
        COMMON[int(random.integers(len(COMMON)))]
        if kind < 0.85
        else (
            WORLD[int(random.integers(len(WORLD)))]
            if kind < 0.93
            else "<unk>"
            if kind < 0.96
            else ".,?!:"[int(kind * 1e4) % 5]
        )
        for kind in kinds
    ]
    return [INDEX[word] for word in picks]


class Writer:
    """Writes rows one after another and keeps count of the positions."""

    def __init__(self, random: np.random.Generator, setting: Setting) -> None:
        self.random, self.setting, self.rows = random, setting, Rows()
        self.place = self.line = int(random.integers(setting.offset + 1))
        self.newline = len(VOCABULARY) + TILE_COUNT * setting.variants

    def add(self, table: int, flags: Flags, position: tuple[int, int, int], taught: int) -> None:
        """One row."""
        rows = self.rows
        rows.table.append(table)
        rows.taught.append(taught)
        rows.positions.append(position)
        rows.line.append(self.line)
        self.line += 1
        for name in ("page", "legend", "question", "hide", "alone"):
            getattr(rows, name).append(getattr(flags, name))

    def write(self, tokens: list[int], flags: Flags, taught: bool = True) -> None:
        """Text, one position a word."""
        for token in tokens:
            self.add(token, flags, (self.place,) * 3, token if taught else NOWHERE)
            self.place += 1

    def picture(self, scene: Legend | Map, flags: Flags, known: dict[int, int], stand_in: bool = True) -> None:
        """A page: what its family writes before it, one row a cell, what it writes after it.

        stand_in: the teacher sees this page too; of two copies of a scene it sees the first.
        """
        frame = self.setting.frame
        tiles = scene.tile_numbers()
        height, width = tiles.shape
        shift = TILE_COUNT * self.random.integers(self.setting.variants, size=tiles.shape)
        for word in frame.before:
            self.write([INDEX[word]], flags, stand_in and word not in frame.silent)
        if frame.view:
            self.rows.views.append(tiles + shift)
            taught = INDEX["<|vision_start|>"] if stand_in else NOWHERE
            self.add(self.newline + len(self.rows.views), flags, (self.place,) * 3, taught)
            self.place += 1
        corner = self.place
        for row in range(height):
            for column in range(width):
                self.rows.visual.append((len(self.rows.table), *labels(scene, row, column, known)))
                cell = int(tiles[row, column] + shift[row, column]) + len(VOCABULARY)
                self.add(cell, flags, (corner, corner + row, corner + column), cell if stand_in else NOWHERE)
            if frame.newline:
                last = stand_in and row == height - 1
                after = (corner + max(height, width),) * 3
                self.add(self.newline, flags, after, INDEX["<|vision_end|>"] if last else NOWHERE)
        self.place = corner + max(height, width) + int(frame.newline)
        for word in frame.after:
            self.write([INDEX[word]], flags, stand_in and word not in frame.silent)


def labels(scene: Legend | Map, row: int, column: int, known: dict[int, int]) -> tuple[int, int, int]:
    """What a cell means: its land (NOWHERE if none), its glyph, its colour."""
    colour = int(scene.colours[row, column])
    if isinstance(scene, Legend):
        land = scene.lands.get(colour, NOWHERE)
        glyph = LAND_GLYPH + land if land >= 0 else LAND_GLYPH + 8
    else:
        land, glyph = known.get(colour, NOWHERE), int(scene.icons[row, column])
        glyph = LAND_GLYPH + 9 if glyph == BLANK else glyph
    return land, glyph, colour if colour >= 0 else 10


def build(random: np.random.Generator, episode: Episode, setting: Setting) -> Rows:
    """Lay an episode out: opening, pages, text between them, then every question at the same position."""
    writer = Writer(random, setting)
    text = Flags(hide=setting.hidden)
    if random.random() < setting.system:
        writer.write(words("<|im_start|> system you are a helpful assistant . <|im_end|>"), text)
    writer.write(words("<|im_start|> user"), text)
    writer.write(chatter(random, int(random.integers(setting.opening + 1))), text)
    known: dict[int, int] = {}
    loose = setting.alone if random.random() < 0.35 else 0.0
    clip = isinstance(episode.pages[0], SceneClip) or random.random() < setting.clips
    for number, (_, scene) in enumerate(episode.scenes()):
        is_legend = isinstance(scene, Legend)
        alone = setting.blind and not is_legend
        if not alone and random.random() < loose * (2 if is_legend else 1):
            alone = True
        if isinstance(scene, Legend):
            known |= scene.lands
        flags = Flags(page=number, legend=is_legend, alone=alone)
        if clip and setting.frame.stamps:
            writer.write(words(f"<{2 * number + 0.5} seconds>"), flags, taught=False)
        for copy in range(setting.frame.copies if clip else 1):
            writer.picture(scene, flags, {} if alone else known, copy == 0)
        if random.random() < setting.between:
            writer.write(chatter(random, int(random.integers(1, 6))), text)
    if episode.questions and random.random() < setting.turns:
        earlier = episode.questions[int(random.integers(len(episode.questions)))]
        said = f"{earlier.text} <|im_end|> <|im_start|> assistant {earlier.answer} <|im_end|> <|im_start|> user"
        writer.write(words(said), text)
    place, line = writer.place, writer.line
    for number, question in enumerate(episode.questions):
        writer.place, writer.line = place, line
        hide = question.kind in ICON_KINDS and random.random() < setting.slid
        said = f"{question.text} <|im_end|> <|im_start|> assistant {question.answer} <|im_end|>"
        writer.write(words(said), Flags(question=number, hide=hide))
        rows, answer = writer.rows, words(question.answer)
        first = len(rows.table) - 2 - len(answer)
        rows.answers += [
            (first + place, word, ASKED_KINDS.index(question.kind), hide) for place, word in enumerate(answer)
        ]
    return writer.rows
