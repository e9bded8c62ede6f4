"""Batches: plans by stage of the curriculum, episodes laid out and padded, masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.tasks import Plan, make_episode
from benchmarks.tasks.tiles import ICON_NAMES, TILE_COUNT
from benchmarks.tasks.world import COLOUR_NAMES, NUMBERS, Episode, Map, Question
from training.layout import NOWHERE, Frame, Rows, Setting, build
from training.words import VOCABULARY

LIMITS = (("colour", 3), ("land", 4), ("legend", 1), ("count", 2), ("which", 1))
LATER_LIMITS = (("colour", 2), ("land", 3), ("legend", 1), ("count", 3), ("which", 3))
PRACTICE_LIMITS = (("colour", 1), ("land", 1), ("legend", 1), ("count", 3), ("which", 6))
PRACTICE = 0.68
STAGES = (
    ((3,), 0.0),
    ((3, 4, 5), 0.0),
    ((4, 5, 6), 0.1),
    ((8, 8, 8, 6, 4), 0.2),
    ((8, 8, 8, 5), 0.5),
    ((8, 8, 8, 8, 6), 0.7),
)


@dataclass
class Batch:
    """Tensors of a batch of B episodes padded to L rows; answers and visual targets are flat over the batch.

    taught: the teacher's table, NOWHERE where it has no such row and where rows are padding. views: cells of the
    pictures that are shown whole too, in the order of their rows.
    """

    table: torch.Tensor
    taught: torch.Tensor
    positions: torch.Tensor
    line: torch.Tensor
    mask: torch.Tensor
    answers: torch.Tensor
    visual: torch.Tensor
    views: list[np.ndarray]


def plan_for(random: np.random.Generator, stage: int, practice: float = PRACTICE) -> Plan:
    """A random plan of a stage: cells along a side, pages in order, icons, colours.

    From stage 3 on, the share `practice` practises count and which on one map, often a small one; in many episodes
    legends at the end change what colours mean, so that a land must be read from the map itself.
    """
    if stage >= 3 and random.random() < practice:
        side, legends = int(random.choice((3, 4, 5, 8), p=(0.4, 0.25, 0.15, 0.2))), int(random.integers(1, 3))
        icons = int(random.integers(2, {3: 5, 4: 7, 5: 10, 8: 11}[side]))
        colours, changed = int(random.integers(2, 5 if side == 3 else 9)), int(random.random() < 0.5)
        return Plan("L" * legends + "M", side, (icons,), colours, PRACTICE_LIMITS, changed=changed)
    sides, many = STAGES[min(stage, len(STAGES) - 1)]
    side = int(random.choice(sides))
    cells = side * side
    if random.random() >= many:
        legends = int(random.choice((1, 2, 3), p=(0.4, 0.5, 0.1)))
        order, icons = "L" * legends + "M", (int(random.integers(3, 6)) if side == 3 else int(random.integers(6, 11)),)
        if stage >= 3 and random.random() < 0.1:
            order, icons = "M" + order, (4, *icons)
    else:
        legends = int(random.integers(1, 4))
        most = 5 if stage < 5 or random.random() < 0.5 else 22 if random.random() < 0.6 else 12
        maps = int(random.integers(2 if most == 5 else most // 2, most + 1))
        rest = list("L" * (legends - 1) + "M" * maps)
        if random.random() < 0.5:
            random.shuffle(rest)
        order = "L" + "".join(rest)
        spread = random.multinomial(
            int(random.integers(maps, max(maps, len(ICON_NAMES)) + 1)), random.dirichlet([2.0] * maps)
        )
        icons = tuple(int(min(count, cells // 2, 10)) for count in spread)
        while sum(icons) > len(ICON_NAMES):
            icons = tuple(max(0, count - 1) for count in icons)
    colours = int(random.integers(max(3, legends * 2), min(10, legends * 4 if side == 3 else 10) + 1))
    limits = LATER_LIMITS if stage >= 3 else LIMITS
    changed = int(random.integers(1, 3)) if stage >= 3 and random.random() < 0.6 else 0
    return Plan(order, side, icons, colours, limits, open_maps=0.08 if stage >= 4 else 0.0, changed=changed)


def setting_for(random: np.random.Generator, stage: int, variants: int, frame: Frame) -> Setting:
    """A random way to show an episode; early stages stay plain."""
    mode = random.random()
    setting = Setting(slid=0.6, variants=variants, frame=frame)
    if stage >= 1:
        slid, hidden = (0.0, False) if mode < 0.3 else (1.0, True) if mode < 0.8 else (0.5, True)
        setting = replace(setting, slid=slid, hidden=hidden, opening=8, alone=0.2, system=0.3, offset=64)
    if stage >= 3:
        short = random.random() < 0.5
        setting = replace(setting, opening=4 if short else 40, between=0.15, offset=0 if short else 4096, turns=0.1)
        setting = replace(setting, clips=0.1 if frame.copies > 1 or frame.stamps else 0.0)
    return setting


def untie(episode: Episode, rows: Rows) -> None:
    """Drop questions about lands on maps that see only themselves: their lands are not in them."""
    alone = {page for page, flag in zip(rows.page, rows.alone, strict=True) if flag and page >= 0}
    icons = {
        icon
        for number, (_, scene) in enumerate(episode.scenes())
        if isinstance(scene, Map) and number in alone
        for icon in scene.icon_colours()
    }
    if not icons:
        return
    names = {ICON_NAMES[icon] for icon in icons}
    kept = []
    for entry, question in zip(rows.answers, episode.questions, strict=True):
        about = names & set(question.text.split())
        if question.kind in ("count", "which") or (question.kind == "land" and about):
            continue
        kept.append(entry)
    rows.answers = kept


def collate(rows: list[Rows], variants: int = 1) -> Batch:
    """Pad to the longest and make the mask [B, 1, L, L], True where row i may see row j."""
    count, length = len(rows), max(len(each.table) for each in rows)

    def column(name: str, fill: int) -> torch.Tensor:
        padded = np.full((count, length), fill, dtype=np.int64)
        for index, each in enumerate(rows):
            padded[index, : len(each.table)] = getattr(each, name)
        return torch.from_numpy(padded)

    first, done = len(VOCABULARY) + TILE_COUNT * variants, 0
    for each in rows:
        each.table = [index + done if index > first else index for index in each.table]
        done += len(each.views)
    positions = np.zeros((3, count, length), dtype=np.int64)
    for index, each in enumerate(rows):
        positions[:, index, : len(each.table)] = np.asarray(each.positions).T
    page, legend, question = column("page", -2), column("legend", 0).bool(), column("question", -2)
    hide, alone = column("hide", 0).bool(), column("alone", 0).bool()
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None].expand(count, -1, -1)
    mask = mask & ((question[:, None, :] == -1) | (question[:, None, :] == question[:, :, None]))
    if bool(hide.any()):
        mask &= ~(hide[:, :, None] & legend[:, None, :])
    if bool(alone.any()):
        mask &= ~alone[:, :, None] | (page[:, None, :] == page[:, :, None])
    mask |= torch.eye(length, dtype=torch.bool)
    answers = [(i * length + row, *rest) for i, each in enumerate(rows) for row, *rest in each.answers]
    visual = [(i * length + row, *rest) for i, each in enumerate(rows) for row, *rest in each.visual]
    return Batch(
        column("table", 0),
        column("taught", NOWHERE),
        torch.from_numpy(positions),
        column("line", 0),
        mask[:, None],
        torch.tensor(answers),
        torch.tensor(visual),
        [view for each in rows for view in each.views],
    )


def inverse(random: np.random.Generator, episode: Episode) -> Episode:
    """The episode with which and count asked of colours as well, a step on the way to asking them of lands."""
    under = [
        colour for _, scene in episode.scenes() if isinstance(scene, Map) for colour in scene.icon_colours().items()
    ]
    more = []
    for colour in sorted({colour for _, colour in under}):
        icons = [ICON_NAMES[icon] for icon, below in under if below == colour]
        name = COLOUR_NAMES[colour]
        more.append(Question("count", f"how many icons stand in the {name} ?", NUMBERS[min(len(icons), 10)], ()))
        if len(icons) == 1:
            more.append(Question("which", f"which icon stands in the {name} ?", icons[0], ()))
    chosen = random.permutation(len(more))[:1]
    return replace(episode, questions=(*episode.questions, *(more[index] for index in chosen)))


def make_batch(
    random: np.random.Generator, stage: int, tokens: int, variants: int, frame: Frame, practice: float = PRACTICE
) -> Batch:
    """A batch of one plan's shape, of about `tokens` rows."""
    plan = plan_for(random, stage, practice)
    setting = setting_for(random, stage, variants, frame)
    if plan.limits == PRACTICE_LIMITS and random.random() < 0.5:
        setting = replace(setting, slid=1.0, hidden=True)
    length = len(plan.order) * (plan.side**2 + 2) + 130
    rows = []
    for _ in range(int(np.clip(tokens // length, 3, 64))):
        episode = make_episode(random, plan)
        if plan.limits == PRACTICE_LIMITS:
            episode = inverse(random, episode)
        laid = build(random, episode, setting)
        untie(episode, laid)
        rows.append(laid)
    return collate(rows, variants)
