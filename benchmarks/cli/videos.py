"""`python -m benchmarks videos`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Plain, Seed


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
    from benchmarks.data.streams import item_of, write_streams
    from benchmarks.tasks.streams import generate, questions_of
    from emblema.cli.screen import console, output_folder

    asked = sorted({max(1, frames * (place + 1) // times) for place in range(times)})
    drawn = (item_of(stream, questions_of(stream, tuple(asked))) for stream in generate(kind, frames, seed, items))
    listing = write_streams(drawn, output_folder(out))
    console(plain).print(f"{items} streams of {frames} frames, {kind}, seed {seed}: {listing}", soft_wrap=True)
