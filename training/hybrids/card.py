"""Measure the trained `reference-hybrid` and write its card: `python -m training.hybrids.card`, a few minutes."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForImageTextToText

from benchmarks.tasks import generate
from benchmarks.tasks.world import COLOUR_NAMES, LANDS
from training.card import holds
from training.families import HYBRID
from training.hybrids.batches import KINDS, collate
from training.hybrids.forward import run_prompts, run_questions
from training.hybrids.train import cells_of
from training.layout import Setting, build
from training.measure import Counts, summary
from training.pictures import tile_pool
from training.words import VOCABULARY

HEAD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
GROUP = 8
"""Episodes of a batch."""


@torch.no_grad()
def measure(model: nn.Module, seed: int, items: int) -> Counts:
    """Return setting -> kind -> [right, asked] of each of `items` fresh episodes of `maps`."""
    decoder = model.model.language_model
    words = decoder.embed_tokens.weight
    table = torch.cat([words, cells_of(model, tile_pool(np.random.default_rng(0), 1))])
    shown = Setting(slid=0.0, opening=8, frame=HYBRID.frame)
    found: Counts = {}
    episodes = [
        replace(each, questions=tuple(question for question in each.questions if question.kind in KINDS))
        for each in generate("maps", seed, items)
    ]
    for slid in (False, True):
        own = found["slid" if slid else "visible"] = {kind: [] for kind in KINDS if not (slid and kind == "legend")}
        for first in range(0, items, GROUP):
            random, chosen = np.random.default_rng([seed, first]), episodes[first : first + GROUP]
            batch = collate(chosen, [build(random, each, shown) for each in chosen], [slid] * len(chosen))
            kept = run_prompts(decoder, nn.functional.embedding(batch.table, table), batch)[1]
            asked, _ = run_questions(decoder, nn.functional.embedding(batch.asked, words), batch, kept)
            said = (asked[torch.arange(len(batch.row)), batch.row] @ words.T).argmax(-1)
            for index in range(len(chosen)):
                for kind in own:
                    mine = (said == batch.target)[(batch.owner == index) & (batch.kind == KINDS.index(kind))]
                    own[kind].append([int(mine.sum()), len(mine)])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=HYBRID.folder)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--training", default="", help="one sentence about the run: steps, time")
    parser.add_argument("--kept", action="store_true", help="take the figures that measured.json holds already")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForImageTextToText.from_pretrained(options.folder, dtype=torch.float32)
    kept = options.folder / "measured.json"
    if options.kept:
        figures = json.loads(kept.read_text(encoding="utf-8"))["maps"]
    else:
        figures = summary(measure(model, options.seed, options.items))
        kept.write_text(json.dumps({"maps": figures}, indent=2) + "\n", encoding="utf-8")
    lines = ["| setting | kind | accuracy | questions |", "|---" * 4 + "|"]
    for setting, kinds in figures.items():
        for kind, held in kinds.items():
            bounds = f"{held['accuracy']:.3f} [{held['low']:.3f}, {held['high']:.3f}]"
            lines.append(f"| {setting} | {kind} | {bounds} | {held['questions']} |")
    card = HEAD.format(
        tasks="  - emblema/maps" if holds(figures) else "  []",
        name=HYBRID.name,
        architecture=type(model).__name__,
        parameters=sum(each.numel() for each in model.parameters()) / 1e6,
        megabytes=(options.folder / "model.safetensors").stat().st_size / 1e6,
        start=HYBRID.start,
        about=HYBRID.about,
        vocabulary=len(VOCABULARY),
        lands=", ".join(LANDS),
        colours=", ".join(COLOUR_NAMES),
        training=options.training,
        items=options.items,
        seed=options.seed,
        table="\n".join(lines),
    )
    (options.folder / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
