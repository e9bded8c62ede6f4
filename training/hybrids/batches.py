"""Batches for a decoder that keeps states: prompts padded on the left, and their questions apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.tasks import Plan, make_episode
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, Episode, Question
from training.layout import LAND_GLYPH, Frame, Rows, Setting, build
from training.words import INDEX

KINDS = ("colour", "land", "legend")
"""The kinds of question that it is asked."""
LIMITS = (("colour", 2), ("land", 4), ("legend", 1))
QUESTIONS = 90
"""Rows of an episode's questions, about."""
SIDES = ((3,), (3, 4, 5), (4, 5, 6), (8, 8, 8, 6, 4))
"""Cells along a picture's side, by stage."""


@dataclass(frozen=True)
class Branches:
    """B prompts of up to L rows, which end together, and N questions of up to M rows.

    Attributes:
        table: [B, L] index among words and cells; positions [3, B, L].
        real: [B, L] False on padding; legend: [B, L] True on rows of legends.
        slid: [B] the legends are hidden from the prompt's questions.
        asked: [N, M] words; asked_positions [3, N, M]; owner [N] the prompt of each.
        row: [N] the row that says the answer; target [N] its word; kind [N] index in `KINDS`.
        sought: [N, L] the cells that a question is about.
        visual: [n, 4] of every cell: its row in B * L, its land (-1 if none), glyph and colour.
    """

    table: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor
    legend: torch.Tensor
    slid: torch.Tensor
    asked: torch.Tensor
    asked_positions: torch.Tensor
    owner: torch.Tensor
    row: torch.Tensor
    target: torch.Tensor
    kind: torch.Tensor
    sought: torch.Tensor
    visual: torch.Tensor


def plan_for(random: np.random.Generator, stage: int) -> Plan:
    """Return a random plan of a stage: one or two legends, then maps."""
    side, legends = int(random.choice(SIDES[stage])), int(random.integers(1, 3))
    maps = 1 if stage == 0 or random.random() < 0.6 else int(random.integers(2, 4))
    icons = [int(random.integers(3, 5)) if side == 3 else int(random.integers(4, 8 if maps > 1 else 11))] * maps
    colours = int(random.integers(max(2, legends), 5 if side == 3 else 9))
    return Plan("L" * legends + "M" * maps, side, tuple(icons), colours, LIMITS)


def sought_cells(question: Question, visual: list[tuple[int, int, int, int]]) -> list[int]:
    """Return rows of the cells that a question is about: an icon's, or the legend's cells of a colour."""
    subject = next(word for word in question.text.split() if word in (*ICON_NAMES, *COLOUR_NAMES))
    if question.kind == "legend":
        colour = COLOUR_NAMES.index(subject)
        return [row for row, land, glyph, own in visual if glyph == LAND_GLYPH + land and own == colour and land >= 0]
    icon = ICON_NAMES.index(subject)
    return [row for row, _, glyph, _ in visual if glyph == icon]


def collate(episodes: list[Episode], laid: list[Rows], slid: list[bool]) -> Branches:
    """Take prompts and questions apart and pad both; what a legend says is not asked where it has slid away."""
    prompts = [[row for row, question in enumerate(rows.question) if question < 0] for rows in laid]
    length = max(map(len, prompts))
    count = len(laid)
    table, place = torch.zeros(count, length, dtype=torch.long), torch.zeros(3, count, length, dtype=torch.long)
    real, legend = torch.zeros(count, length, dtype=torch.bool), torch.zeros(count, length, dtype=torch.bool)
    visual: list[tuple[int, int, int, int]] = []
    asked: list[tuple[int, list[int], list[tuple[int, int, int]], int, int, int, list[int]]] = []
    for index, (episode, rows, own) in enumerate(zip(episodes, laid, prompts, strict=True)):
        first = length - len(own)
        table[index, first:] = torch.tensor([rows.table[row] for row in own])
        place[:, index, first:] = torch.tensor([rows.positions[row] for row in own]).T
        real[index, first:] = True
        legend[index, first:] = torch.tensor([rows.legend[row] for row in own])
        visual += [(index * length + first + row, *labels) for row, *labels in rows.visual]
        for number, question in enumerate(episode.questions):
            if slid[index] and question.kind == "legend":
                continue
            said = [row for row, each in enumerate(rows.question) if each == number]
            answer, word = next((row, word) for row, word, *_ in rows.answers if row in said)
            cells = [first + row for row in sought_cells(question, rows.visual)]
            tokens, places = [rows.table[row] for row in said], [rows.positions[row] for row in said]
            asked.append((index, tokens, places, answer - said[0], word, KINDS.index(question.kind), cells))
    most = max(len(tokens) for _, tokens, *_ in asked)
    words = torch.full((len(asked), most), INDEX["<|endoftext|>"])
    positions = torch.zeros(3, len(asked), most, dtype=torch.long)
    sought = torch.zeros(len(asked), length, dtype=torch.bool)
    for index, (_, tokens, places, *_, cells) in enumerate(asked):
        words[index, : len(tokens)] = torch.tensor(tokens)
        positions[:, index, : len(tokens)] = torch.tensor(places).T
        sought[index, cells] = True
    owner, row, target, kind = torch.tensor([(each[0], *each[3:6]) for each in asked]).T
    return Branches(
        table, place, real, legend, torch.tensor(slid), words, positions, owner, row, target, kind, sought,
        torch.tensor(visual),
    )  # fmt: skip


def make_batch(random: np.random.Generator, stage: int, tokens: int, variants: int, frame: Frame) -> Branches:
    """Return a batch of one plan's shape, of about `tokens` rows; the legends slide in half of them."""
    plan = plan_for(random, stage)
    far = random.random() < 0.5
    setting = Setting(slid=0.0, opening=8, offset=4096 if far else 0, variants=variants, frame=frame)
    length = len(plan.order) * (plan.side**2 + 2) + 6 + QUESTIONS
    count = int(np.clip(tokens // length, 4, 32))
    episodes = [make_episode(random, plan) for _ in range(count)]
    laid = [build(random, episode, setting) for episode in episodes]
    return collate(episodes, laid, [bool(random.random() < 0.5) for _ in episodes])
