"""Measure the trained `reference-stream` and write its card: `python -m training.streams.card`, some minutes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS
from benchmarks.tasks.world import COLOUR_NAMES, LANDS
from training.families import RECIPES
from training.streams.curriculum import JUMPED, JUMPED_LONG, PACKED, PACKED_LONG, STAGES, WINDOWED
from training.streams.measure import LENGTHS, SEEDS, WINDOWS, Figures, measured

HEAD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
HELD = 0.9
"""Accuracy of full attention from which a kind of stream counts as learnt, at every length that was trained on."""


def table(figures: Figures, names: tuple[str, ...]) -> str:
    """Markdown: a row for each length and encoding, a column for each name."""
    lines = ["| frames | encoding | " + " | ".join(names) + " | questions |", "|---" * (len(names) + 3) + "|"]
    for frames, encodings in figures.items():
        for encoding, held in encodings.items():
            cells = [
                f"{held[name]['accuracy']:.3f} [{held[name]['low']:.3f}, {held[name]['high']:.3f}]" for name in names
            ]
            lines.append(f"| {frames} | {encoding} | " + " | ".join(cells) + f" | {held['all']['questions']} |")
    return "\n".join(lines)


def learnt(figures: Figures) -> list[str]:
    """Kinds of stream on which full attention holds the bar at every length measured up to 256 frames."""
    lengths = [frames for frames in figures if int(frames) <= max(STAGES[-1])]
    return [
        kind for kind in STREAM_KINDS if all(figures[frames]["full"][kind]["accuracy"] >= HELD for frames in lengths)
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RECIPES["reference"].folder.with_name("reference-stream"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--items", type=int, default=24, help="streams a seed and length; a quarter beyond 256 frames")
    parser.add_argument("--training", default="", help="one sentence about the run: steps, time")
    parser.add_argument("--kept", action="store_true", help="take the figures that measured.json holds already")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForImageTextToText.from_pretrained(options.folder, dtype=torch.float32)
    kept = options.folder / "measured.json"
    if options.kept:
        figures: Figures = json.loads(kept.read_text(encoding="utf-8"))
    else:
        figures = measured(model, options.lengths, options.items, WINDOWS)
        kept.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    head = HEAD.format(
        tasks="\n".join(f"  - emblema/stream-{kind}" for kind in learnt(figures)) or "  []",
        architecture=type(model).__name__,
        parameters=sum(each.numel() for each in model.parameters()) / 1e6,
        megabytes=(options.folder / "model.safetensors").stat().st_size / 1e6,
        lands=", ".join(LANDS),
        colours=", ".join(COLOUR_NAMES),
        training=options.training,
        longest=max(STAGES[-1]),
        window=WINDOWED,
        packed=PACKED,
        jump=JUMPED,
        packed_long=PACKED_LONG,
        jump_long=JUMPED_LONG,
        seeds=", ".join(map(str, SEEDS)),
    )
    parts = [head, "### By kind of question\n", table(figures, ("all", *QUESTION_KINDS))]
    parts += ["\n### By kind of stream\n", table(figures, STREAM_KINDS), ""]
    (options.folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
