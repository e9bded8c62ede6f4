"""Write the demo's pictures, its clip, its walk and demo.json into the package: `python -m training.demo_media`.

Three legends of seven colours, twenty maps with one icon each, and a clip of four scenes with the other three colours
and four icons, so that pictures and clip can stand in one prompt without contradicting each other. Three larger pages
have the icons of the first maps. The walk is a video that `reference-stream` can read: an ego stream of 64 frames, one
every two seconds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tasks import Episode, SceneClip, write_page
from benchmarks.tasks.episodes import TEMPLATES, facts, legend_page, map_page, write_frames
from benchmarks.tasks.streams import GeneratedStream, stream_of
from benchmarks.tasks.streams.writing import RATE
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT, assemble
from benchmarks.tasks.world import Legend, Map

OUT = Path(__file__).parents[1] / "src/emblema/assets/demo"
SIDE, LARGE = 8, 20
"""Cells along a page's side, and along a larger one's, which pays to be taken from a store also on a small model."""
SHARES = (3, 2, 2)
MAPS = 20
OPENINGS = (
    "",
    "Here are some pages of an old atlas. Please read them all with care, the questions come after the last page.",
    "Good morning! Today we look at the work of my brother, who can draw well. First you will see what his colours "
    "mean, then the maps that he made with them on a long journey.",
)


WALK_FRAMES = 64
WALK_SEED = 1


def walk() -> GeneratedStream:
    """Return the stream that `walk.mp4` shows."""
    return stream_of("ego", WALK_FRAMES, WALK_SEED, 0)


def write_walk(path: Path) -> None:
    """Write the walk as a video; without noise and changes of light it takes a few kilobytes."""
    frames = [assemble(tiles) for tiles in walk().tiles()]
    write_frames(frames, frames[0].size, path, RATE, "yuv420p", {"crf": "20", "g": str(WALK_FRAMES)})


def questions(
    episode: Episode, files: list[str], wanted: dict[str, int], random: np.random.Generator
) -> list[dict[str, Any]]:
    """Up to wanted[kind] questions of each kind, in the plainest wording; files: the name of each page's file."""
    found = []
    for kind, subjects in facts(episode).items():
        names = [name for name in subjects if kind != "count" or subjects[name][0] != "zero"]
        for position in random.permutation(len(names))[: wanted.get(kind, 0)]:
            answer, pages = subjects[names[position]]
            text = TEMPLATES[kind][0].format(names[position])
            found.append({"kind": kind, "text": text, "answer": answer, "pages": [files[page] for page in pages]})
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    colours = [int(colour) for colour in random.permutation(COLOUR_COUNT)]
    icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
    meaning = {
        colour: int(land)
        for colour, land in zip(colours, random.permutation(2 * LAND_COUNT) % LAND_COUNT, strict=False)
    }
    options.out.mkdir(parents=True, exist_ok=True)
    legends, rest = [], list(colours)
    for share in SHARES:
        listed, rest = rest[:share], rest[share:]
        legends.append(legend_page(random, SIDE, {colour: meaning[colour] for colour in listed}))
    known = colours[: sum(SHARES)]
    maps = [map_page(random, SIDE, known, [icon]) for icon in icons[:MAPS]]
    spare = icons[MAPS:]
    scenes: list[Legend | Map] = [legend_page(random, SIDE, {colour: meaning[colour] for colour in rest})]
    scenes += [map_page(random, SIDE, rest, held) for held in (spare[:2], spare[2:3], spare[3:4])]
    clip = SceneClip(tuple(scenes))
    names = [f"legend-{index + 1}" for index in range(len(legends))] + [f"map-{index + 1:02d}" for index in range(MAPS)]
    files = [write_page(page, options.out / name).name for name, page in zip(names, [*legends, *maps], strict=True)]
    large = options.out.with_name(f"{options.out.name}_large")
    large.mkdir(exist_ok=True)
    drawn = np.random.default_rng([options.seed, LARGE])
    for index in range(3):
        write_page(map_page(drawn, LARGE, known, [icons[index]]), large / f"page-{index + 1}")
    write_page(clip, options.out / "clip")
    write_walk(options.out / "walk.mp4")
    pictures = Episode(options.seed, (*legends, *maps), ())
    video = Episode(options.seed, (clip,), ())
    wanted = {"colour": 6, "land": 8, "legend": 3, "count": 2, "which": 2}
    listing = {
        "legends": files[: len(legends)],
        "maps": files[len(legends) :],
        "clip": "clip.mp4",
        "clip_frames_per_second": 1,
        "tokens_per_picture": SIDE * SIDE,
        "openings": list(OPENINGS),
        "questions": questions(pictures, files, wanted, random),
        "clip_questions": questions(
            video, ["clip.mp4"], {"colour": 2, "land": 4, "legend": 1, "count": 1, "which": 1}, random
        ),
    }
    (options.out / "demo.json").write_text(json.dumps(listing, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
