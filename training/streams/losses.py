"""What training on streams is held to: answers, what cells mean, what the words of a question know and look at."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.tasks.tiles import COLOUR_COUNT
from benchmarks.tasks.world import LANDS, NUMBERS
from training.families.base import WIDTH
from training.streams.forward import Output
from training.streams.hints import ROLES
from training.streams.labels import MOST, NOTHING, UNSAID
from training.streams.rows import Batch
from training.words import INDEX

LAYERS = {"land": 1, "glyph": 1, "colour": 1, "begins": 1, "before": 1, "order": 2}
"""Number of the layer behind which a head reads what a cell means: later layers, and questions, build on it."""
SIZES = {"land": len(LANDS), "glyph": NOTHING + 1, "colour": COLOUR_COUNT, "begins": 2, "before": len(LANDS)}
WEIGHTS = {"land": 0.5, "glyph": 0.3, "colour": 0.3, "begins": 2.0, "before": 0.7, "order": 0.5}
WEIGHTS |= {"spoken": 0.7, "tally": 1.0, "even": 6.0}
ANSWERS, ENDS, HINTS = 3.0, 0.3, 0.7
"""Weights of the answers, of their ends, and of each role's losses on what its words say and where its head looks."""
LAND_IDS = [INDEX[name] for name in LANDS]
TALLIES = {INDEX[name]: count for count, name in enumerate(NUMBERS[1 : MOST + 1])}
"""Word of a count -> its number among those that are asked for."""
entropy = nn.functional.cross_entropy


class Heads(nn.Module):
    """Linear heads for what a cell means, used while training only."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {**SIZES, "order": MOST + 1}
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in sizes.items()})
        self.tally = nn.Linear(WIDTH, MOST)

    def losses(self, hidden: list[torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
        """Cross-entropy of each label; hidden: [B, C, width] behind every layer. Through a window nothing can count."""
        found = {}
        for name, head in self.heads.items():
            labels = batch.cells[name].flatten()
            if (name == "order" and batch.encoding is not None) or not bool((labels != UNSAID).any()):
                continue
            state = nn.functional.rms_norm(hidden[LAYERS[name]][:, batch.opening :], (WIDTH,))
            found[name] = entropy(head(state).flatten(0, 1), labels, ignore_index=UNSAID)
        return found

    def tallies(self, tallied: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Cross-entropy of the visits that the word of a land knows of where they are counted."""
        row, word = batch.says[batch.says[:, 3] == list(ROLES).index("count")][:, :2].long().unbind(1)
        if not len(row):
            return {}
        counts = torch.tensor([TALLIES[int(each)] for each in word])
        return {"tally": entropy(self.tally(nn.functional.rms_norm(tallied[row], (WIDTH,))), counts)}


def losses(output: Output, heads: Heads, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The training loss; for every answer (form, right); and the parts of the loss beside the answers'."""
    row, target, form, _ = batch.answers.unbind(1)
    logits = output.asked[row] @ output.words.T
    total = ANSWERS * entropy(logits, target)
    if batch.ends:
        ends = output.asked[row + 1] @ output.words.T
        total = total + ENDS * entropy(ends, torch.full_like(row, INDEX["<|im_end|>"]))
    parts = heads.losses(output.hidden, batch)
    parts |= said(output, batch) | looked(output, batch) | heads.tallies(output.tallied, batch)
    spoken = output.spoken[:, batch.opening :] @ output.words[LAND_IDS].T
    parts["spoken"] = entropy(spoken.flatten(0, 1), batch.cells["land"].flatten())
    total = total + sum(WEIGHTS.get(name, HINTS) * part for name, part in parts.items())
    return total, torch.stack([form, (logits.argmax(-1) == target).long()], 1), parts


def said(output: Output, batch: Batch) -> dict[str, torch.Tensor]:
    """For every role, how far the words of the questions are from saying what they may."""
    found = {}
    for role, name in enumerate(ROLES):
        row, word, chance, _ = batch.says[batch.says[:, 3] == role].unbind(1)
        if len(row):
            likely = torch.log_softmax(output.hinted[row.long()] @ output.words.T, -1)
            likely = likely.gather(1, word.long()[:, None])[:, 0]
            found[f"say {name}"] = -(chance.float() * likely).sum() / chance.float().sum()
    return found


def looked(output: Output, batch: Batch) -> dict[str, torch.Tensor]:
    """For every role, how far its head is from looking where it may: cross-entropy over the rows that it sees."""
    which, row, part = batch.looks.unbind(1)
    place = torch.zeros(len(batch.looked), dtype=torch.long)
    found = {}
    for role, name in enumerate(ROLES):
        mine = batch.looked[:, 2] == role
        if name in output.looks:
            place[mine] = torch.arange(int(mine.sum()))
            chosen = mine[which.long()]
            given = output.looks[name][place[which[chosen].long()], row[chosen].long()]
            found[f"look {name}"] = -(part[chosen].float() * given).sum() / mine.sum()
            if name == "count":
                # Visits can be counted only where each gets the same share, much closer than the cross-entropy asks.
                visits = row[chosen] != batch.opening - 1
                found["even"] = (given - part[chosen].log())[visits].square().mean().float()
    return found
