"""`emblema stream`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Json, Plain, known_model

Video = Annotated[
    str | None,
    typer.Argument(
        help="A video (a path or a URL), a folder of pictures, camera:0, or an rtsp:// address.", show_default=False
    ),
]
Demo = Annotated[
    bool, typer.Option("--demo", help="Watch the video of the package: a walk through lands, with things in view.")
]
Live = Annotated[bool, typer.Option("--live", help="The URL is a camera's: frames come for ever.")]
Ask = Annotated[list[str] | None, typer.Option(help="A question, asked after all frames. May come several times.")]
Standing = Annotated[
    list[str] | None,
    typer.Option(help="A question that is asked after every block of frames; changes of its answer are printed."),
]
StreamModel = Annotated[
    str,
    typer.Option(callback=known_model, help="reference-stream (the bundled model), a Hugging Face id, or a folder."),
]
Budget = Annotated[int | None, typer.Option(help="Frames retrieved in each layer.", show_default="64")]
Save = Annotated[str | None, typer.Option(metavar="NAME", help="Save the stream in the end, under a name.")]
Resume = Annotated[
    str | None, typer.Option(metavar="NAME", help="Go on from a saved stream; a video's frames come after it.")
]


def stream(
    video: Video = None,
    demo: Demo = False,
    live: Live = False,
    ask: Ask = None,
    standing: Standing = None,
    model: StreamModel = "reference-stream",
    fps: Annotated[float, typer.Option(help="Frames a second to sample at.")] = 0.5,
    budget: Budget = None,
    store: Annotated[Path | None, typer.Option(help="Folder that streams are saved to.")] = None,
    save: Save = None,
    resume: Resume = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="An answer's length at most.")] = 64,
    as_json: Json = False,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Watch a video: frames come in, and questions are answered at any time.

    On a terminal questions are typed while it runs and after it; Ctrl-C, quit, or an empty line after the video ends.
    With --ask those are answered and nothing is typed. A question that begins with + follows the answer before it.
    A video that breaks off is asked about as far as it could be read, and the command leaves with 1.

    The bundled model reads drawn videos of its own kind alone, such as --demo's: try "in which land was the ball ?",
    "what colour was under the car ?", "how many times was the lake seen ?". Videos of your own need another --model.
    """
    from emblema.cli.screen import console, load_engine
    from emblema.cli.watch.command import WatchOptions, watch
    from emblema.errors import StreamError
    from emblema.eval.demo_media import WALK

    if demo and video is not None:
        raise StreamError("--demo is a video of its own: leave it or VIDEO out")
    options = WatchOptions(
        video=str(WALK) if demo else video,
        live=live,
        ask=ask or (),
        standing=standing or (),
        model=model,
        fps=fps,
        budget=budget,
        store=store,
        save=save,
        resume=resume,
        most=max_new_tokens,
        as_json=as_json,
        plain=plain,
    )
    code = watch(options, lambda: load_engine(model, device, console(plain, stderr=True), store))
    if code:
        raise typer.Exit(code)
