"""Measure a finished model and write its card: `python -m training.card --model reference`, a few minutes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from benchmarks.tasks import EPISODE_PLANS
from benchmarks.tasks.world import COLOUR_NAMES, KINDS, LANDS
from training.families import RECIPES
from training.measure import measure, summary
from training.pictures import tile_pool
from training.words import VOCABULARY

GUIDE = (
    "; and, less and less, on the distance to the states of every layer of `reference` and on its answers\n"
    "(first each layer by itself, from the teacher's states)"
)
MISSED = "Seen in training, but below the bars and so not listed under `trained_on`: {}."
HEAD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")


def table(task: str, items: int, figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown table of one task."""
    lines = [
        f"\n### {task}, {items} episodes\n",
        "| setting | " + " | ".join(KINDS) + " |",
        "|---" * (len(KINDS) + 1) + "|",
    ]
    for name, kinds in figures.items():
        cells = [f"{held['accuracy']:.3f} [{held['low']:.3f}, {held['high']:.3f}]" for held in kinds.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    asked = ", ".join(f"{kind} {held['questions']}" for kind, held in figures["visible"].items())
    return "\n".join([*lines, f"\nQuestions: {asked}."])


def holds(figures: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Whether re-prefill answers a task as well as the bars ask."""
    return all(
        figures[setting][kind]["accuracy"] >= bound
        for setting in ("visible", "slid")
        for kind, bound in (("colour", 0.97), ("land", 0.95))
    )


def bars_table(found: dict[str, Any]) -> str:
    """Return the bars and what reuse loses as Markdown tables, from figures of `python -m benchmarks reference`."""
    lines = [
        f"\n## Reuse\n\n{found['episodes']} fresh episodes of {found['task']}, seed {found['seed']}: "
        "loss and eta against re-prefill.\n",
        "| setting | kind | strategy | questions | accuracy | loss | eta | flips restored |",
        "|---" * 8 + "|",
    ]
    for row in found["rows"]:
        cells = []
        for name in ("accuracy", "accuracy_lost"):
            low, high = row["intervals"][name]
            cells.append(f"{row[name]:.3f} [{low:.3f}, {high:.3f}]")
        reuse = row["strategy"] not in ("full", "blind")
        eta = f"{row['eta']:.3f}" if reuse else ""
        flips = f"{row['flip_recovery']:.2f} of {row['flips']}" if reuse and row["flips"] else ""
        head = f"| {row['setting']} | {row['kind']} | {row['strategy']} | {row['n']}"
        lines.append(f"{head} | {cells[0]} | {cells[1]} | {eta} | {flips} |")
    lines += ["\n| bar | measured | bound | |", "|---" * 4 + "|"]
    for bar in found["bars"]:
        verdict = ("holds" if bar["holds"] else "missed") + (" (aim)" if bar["aim"] else "")
        lines.append(
            f"| {bar['name']} | {bar['value']:.4f} | {'≥' if bar['least'] else '≤'} {bar['bound']:g} | {verdict} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(RECIPES), default="reference")
    parser.add_argument("--folder", type=Path, help="where its weights lie; the bundled ones if left out")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--maps", type=int, default=500, help="episodes of the maps task; the others get fewer")
    parser.add_argument("--training", default="", help="one sentence about the run: steps, time")
    parser.add_argument("--bars", type=Path, help="figures of `python -m benchmarks reference` to show too")
    parser.add_argument("--kept", action="store_true", help="take the figures that measured.json holds already")
    options = parser.parse_args()
    recipe = RECIPES[options.model]
    folder = options.folder or recipe.folder
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tiles = tile_pool(np.random.default_rng(0), 1)
    kept = folder / "measured.json"
    measured = json.loads(kept.read_text(encoding="utf-8")) if options.kept else {}
    parts = []
    for task in EPISODE_PLANS:
        items = options.maps if task == "maps" else options.maps // (10 if task == "atlas" else 4)
        if task not in measured:
            found = measure(recipe, model, tiles, task, options.seed, items, group=4 if task == "atlas" else 8)
            measured[task] = summary(found)
        parts.append(table(task, items, measured[task]))
        print(parts[-1], flush=True)
    held = [task for task in EPISODE_PLANS if holds(measured[task])]
    missed = [task for task in EPISODE_PLANS if task not in held]
    parts.insert(
        0,
        HEAD.format(
            name=recipe.name,
            architecture=type(model).__name__,
            start=recipe.start,
            about=recipe.about,
            tasks="\n".join(f"  - emblema/{task}" for task in held),
            missed=f"\n{MISSED.format(', '.join(missed))}\n" if missed else "",
            parameters=sum(each.numel() for each in model.parameters()) / 1e6,
            megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
            vocabulary=len(VOCABULARY),
            guide="" if recipe.name == "reference" else GUIDE,
            lands=", ".join(LANDS),
            colours=", ".join(COLOUR_NAMES),
            training=options.training,
            seed=options.seed,
        ),
    )
    if options.bars:
        parts.append(bars_table(json.loads(options.bars.read_text(encoding="utf-8"))))
    (folder / "README.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    kept.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
