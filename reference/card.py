"""Measure the finished model and write its card: `python -m reference.card`, a few minutes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from emblema.bench.tasks import TASKS
from emblema.bench.tasks.world import COLOUR_NAMES, KINDS, LANDS
from reference.batches import tile_pool
from reference.measure import FOLDER, measure, summary

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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--maps", type=int, default=500, help="episodes of the maps task; the others get fewer")
    parser.add_argument("--training", default="", help="one sentence about the run: steps, time")
    options = parser.parse_args()
    model = AutoModelForImageTextToText.from_pretrained(options.folder, dtype=torch.float32)
    patches = tile_pool(np.random.default_rng(0), 1)[0]
    text = model.config.text_config
    head_size = text.hidden_size // text.num_attention_heads
    parts = [
        HEAD.format(
            tasks="\n".join(f"  - emblema/{task}" for task in TASKS),
            parameters=sum(each.numel() for each in model.parameters()) / 1e6,
            megabytes=(options.folder / "model.safetensors").stat().st_size / 1e6,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            heads=text.num_attention_heads,
            kv=text.num_key_value_heads,
            head_size=head_size,
            width=text.num_key_value_heads * head_size,
            sections=text.rope_parameters["mrope_section"],
            vocabulary=text.vocab_size,
            lands=", ".join(LANDS),
            colours=", ".join(COLOUR_NAMES),
            training=options.training,
            seed=options.seed,
        )
    ]
    measured = {}
    for task in TASKS:
        items = options.maps if task == "maps" else options.maps // (10 if task == "atlas" else 4)
        measured[task] = summary(measure(model, patches, task, options.seed, items, group=4 if task == "atlas" else 8))
        parts.append(table(task, items, measured[task]))
        print(parts[-1], flush=True)
    (options.folder / "README.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    (options.folder / "measured.json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
