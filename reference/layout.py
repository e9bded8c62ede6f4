"""An episode as rows for the decoder: table indices, M-RoPE positions, who may see what, what should be said."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from emblema.bench.tasks import Episode, Legend, Map
from emblema.bench.tasks.tiles import TILE_COUNT
from emblema.bench.tasks.world import BLANK, KINDS
from reference.words import COMMON, INDEX, VOCABULARY, WORLD

NOWHERE = -1
ICON_KINDS = ("colour", "land", "count", "which")
LAND_GLYPH = 24


@dataclass(frozen=True)
class Setting:
    """How an episode is shown.

    slid: share of icon questions that cannot see the legends; hidden: nor can any other text. blind: maps see only
    themselves; alone: share of pages that see only themselves, in a third of the episodes. opening: most words before
    the pages; offset: most positions added; turns: chance of an earlier turn.
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
    variants: int = 1


@dataclass
class Rows:
    """Rows of one episode. One entry a row in every list; targets name rows by number."""

    table: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    page: list[int] = field(default_factory=list)
    legend: list[bool] = field(default_factory=list)
    question: list[int] = field(default_factory=list)
    hide: list[bool] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    answers: list[tuple[int, int, int, bool]] = field(default_factory=list)
    visual: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, table: int, position: tuple[int, int, int], *flags: int | bool) -> None:
        """Append a row; flags: page, legend, question, hide, alone."""
        self.table.append(table)
        self.positions.append(position)
        for column, flag in zip((self.page, self.legend, self.question, self.hide, self.alone), flags, strict=True):
            column.append(flag)  # type: ignore[arg-type]


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


def build(random: np.random.Generator, episode: Episode, setting: Setting) -> Rows:
    """Lay an episode out: opening, pages, text between them, then every question at the same position."""
    rows = Rows()
    place = int(random.integers(setting.offset + 1))

    def write(tokens: list[int], question: int = NOWHERE, hide: bool = setting.hidden) -> None:
        nonlocal place
        for token in tokens:
            rows.add(token, (place,) * 3, NOWHERE, False, question, hide, False)
            place += 1

    if random.random() < setting.system:
        write(words("<|im_start|> system you are a helpful assistant . <|im_end|>"))
    write(words("<|im_start|> user"))
    write(chatter(random, int(random.integers(setting.opening + 1))))
    known: dict[int, int] = {}
    loose = setting.alone if random.random() < 0.35 else 0.0
    for number, (_, scene) in enumerate(episode.scenes()):
        is_legend = isinstance(scene, Legend)
        alone = setting.blind and not is_legend
        if not alone and random.random() < loose * (2 if is_legend else 1):
            alone = True
        if isinstance(scene, Legend):
            known |= scene.lands
        page(random, rows, scene, number, place, alone, {} if alone else known, setting.variants)
        place += 2 + max(scene.colours.shape)
        if random.random() < setting.between:
            write(chatter(random, int(random.integers(1, 6))))
    if episode.questions and random.random() < setting.turns:
        earlier = episode.questions[int(random.integers(len(episode.questions)))]
        write(words(f"{earlier.text} <|im_end|> <|im_start|> assistant {earlier.answer} <|im_end|> <|im_start|> user"))
    start = place
    for number, question in enumerate(episode.questions):
        place = start
        hide = question.kind in ICON_KINDS and random.random() < setting.slid
        write(words(f"{question.text} <|im_end|> <|im_start|> assistant {question.answer} <|im_end|>"), number, hide)
        rows.answers.append((len(rows.table) - 3, INDEX[question.answer], KINDS.index(question.kind), hide))
    return rows


def page(
    random: np.random.Generator,
    rows: Rows,
    scene: Legend | Map,
    number: int,
    place: int,
    alone: bool,
    known: dict[int, int],
    variants: int,
) -> None:
    """Append a page's rows from position `place`: start marker, one row a cell, end marker."""
    flags = (number, isinstance(scene, Legend), NOWHERE, False, alone)
    tiles = scene.tile_numbers()
    height, width = tiles.shape
    chosen = tiles + TILE_COUNT * random.integers(variants, size=tiles.shape) + len(VOCABULARY)
    rows.add(INDEX["<|vision_start|>"], (place,) * 3, *flags)
    for row in range(height):
        for column in range(width):
            colour = int(scene.colours[row, column])
            if isinstance(scene, Legend):
                land = scene.lands.get(colour, NOWHERE)
                glyph = LAND_GLYPH + land if land >= 0 else LAND_GLYPH + 8
            else:
                land, glyph = known.get(colour, NOWHERE), int(scene.icons[row, column])
                glyph = LAND_GLYPH + 9 if glyph == BLANK else glyph
            rows.visual.append((len(rows.table), land, glyph, colour if colour >= 0 else 10))
            rows.add(int(chosen[row, column]), (place + 1, place + 1 + row, place + 1 + column), *flags)
    after = place + 1 + max(height, width)
    rows.add(INDEX["<|vision_end|>"], (after,) * 3, *flags)
