"""Commands that draw what is measured on: episodes and video streams."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import EpisodeTask, Seed
from emblema.cli.options import Plain


def episodes(
    out: Annotated[Path, typer.Option(help="Folder for pictures, clips and episodes.jsonl.")],
    task: EpisodeTask = "maps",
    seed: Seed = 0,
    items: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 10,
    plain: Plain = False,
) -> None:
    """Write fresh episodes: pictures and clips, questions and answers."""
    from benchmarks.tasks import write_episodes
    from emblema.cli.screen import console, output_folder

    listing = write_episodes(task, seed, items, output_folder(out))
    console(plain).print(f"{items} episodes of {task}, seed {seed}: {listing}", soft_wrap=True)


def videos(
    out: Annotated[Path, typer.Option(help="Folder for videos and streams.json.")],
    kind: Annotated[str, typer.Option(help="ego, movie or live.")] = "ego",
    frames: Annotated[int, typer.Option(min=1, help="Frames of a stream, one every two seconds.")] = 256,
    seed: Seed = 0,
    items: Annotated[int, typer.Option(min=1, help="How many streams.")] = 4,
    times: Annotated[int, typer.Option(min=1, help="How often each is asked, evenly, the last time at its end.")] = 4,
    plain: Plain = False,
) -> None:
    """Write fresh video streams, and questions with their times, in the form of RVS and ReKV."""
    from benchmarks.tasks.streams import generate, questions_of
    from benchmarks.tasks.streams.writing import write_streams
    from emblema.cli.screen import console, output_folder

    asked = sorted({max(1, frames * (place + 1) // times) for place in range(times)})
    drawn = ((stream, questions_of(stream, tuple(asked))) for stream in generate(kind, frames, seed, items))
    listing = write_streams(drawn, output_folder(out))
    console(plain).print(f"{items} streams of {frames} frames, {kind}, seed {seed}: {listing}", soft_wrap=True)
