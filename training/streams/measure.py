"""Accuracy on fresh streams by kind of question, length and encoding: `python -m training.streams.measure`.

Full: every frame sees all before it. Window: a frame sees the opening and so many frames before it; questions see all.
Streams of the three kinds in turn, asked at their ends; every figure is over fresh streams of three seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForImageTextToText

from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS, questions_of, stream_of
from benchmarks.tasks.streams.questions import TEMPLATES
from training.families import RECIPES
from training.measure import interval, share
from training.pictures import tile_pool
from training.streams.forward import cell_features, forward
from training.streams.rows import FORMS, Setting, collate

LENGTHS = (64, 128, 256, 512, 1024)
WINDOWS = (None, 64, 16)
SEEDS = (101, 102, 103)
OF_FORM = tuple(kind for kind, group in TEMPLATES.items() for _ in group)
Counts = dict[str, dict[str, list[list[int]]]]
Figures = dict[str, dict[str, dict[str, dict[str, float]]]]
"""length -> encoding -> name -> accuracy, low, high, questions."""


def encoding(window: int | None) -> str:
    """What an encoding is called in tables."""
    return "full" if window is None else f"window {window}"


@torch.no_grad()
def measure(
    model: nn.Module, features: torch.Tensor, variants: int, frames: int, items: int, windows: tuple[int | None, ...]
) -> Counts:
    """encoding -> kind of question, kind of stream or wording -> [right, asked] of each of `items` streams a seed."""
    table: Counts = {encoding(window): {} for window in windows}
    for seed in SEEDS:
        for place in range(items):
            kind = STREAM_KINDS[place % len(STREAM_KINDS)]
            stream = stream_of(kind, frames, seed, place)
            asked = questions_of(stream)
            for window in windows:
                random = np.random.default_rng([seed, place])
                batch = collate(random, [stream], [asked], Setting(window, variants=variants))
                output = forward(model, features, batch)
                row, target, form, _ = batch.answers.unbind(1)
                right = (output.asked[row] @ output.words.T).argmax(-1) == target
                groups = {"all": torch.ones_like(right), kind: torch.ones_like(right)}
                groups |= {name: form == number for number, name in enumerate(FORMS)}
                groups |= {name: torch.tensor([OF_FORM[each] == name for each in form]) for name in QUESTION_KINDS}
                for name, chosen in groups.items():
                    counts = [int((right & chosen).sum()), int(chosen.sum())]
                    table[encoding(window)].setdefault(name, []).append(counts)
    return table


def summary(table: Counts) -> dict[str, dict[str, dict[str, float]]]:
    """encoding -> name -> accuracy, its 95 % interval by stream, questions."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, kinds in table.items():
        found[name] = {}
        for kind, counts in kinds.items():
            low, high = interval(counts)
            figures = {"accuracy": share(counts), "low": low, "high": high}
            found[name][kind] = {key: round(value, 4) for key, value in figures.items()}
            found[name][kind]["questions"] = sum(each[1] for each in counts)
    return found


def describe(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    """Lines: each encoding with the accuracy of each kind."""
    shown = ("all", *QUESTION_KINDS, *FORMS)
    return "\n".join(
        f"[{name}] " + " | ".join(f"{kind} {kinds[kind]['accuracy']:.3f}" for kind in shown if kind in kinds)
        for name, kinds in figures.items()
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RECIPES["reference"].folder.with_name("reference-stream"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--items", type=int, default=24, help="streams a seed and length; a quarter beyond 256 frames")
    parser.add_argument("--full", action="store_true", help="full attention alone")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForImageTextToText.from_pretrained(options.folder, dtype=torch.float32)
    figures = measured(model, options.lengths, options.items, (None,) if options.full else WINDOWS)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measured(model: nn.Module, lengths: list[int], items: int, windows: tuple[int | None, ...]) -> Figures:
    """The figures of every length, printed as they come."""
    pool = tile_pool(np.random.default_rng(1000), 8)
    features = cell_features(RECIPES["reference"], model, pool)
    found = {}
    for frames in lengths:
        narrow = tuple(window for window in windows if window is None or window < frames)
        count = max(len(STREAM_KINDS), items if frames <= 256 else items // 4)
        found[str(frames)] = summary(measure(model, features, len(pool), frames, count, narrow))
        print(f"{frames} frames\n{describe(found[str(frames)])}", flush=True)
    return found


if __name__ == "__main__":
    main()
