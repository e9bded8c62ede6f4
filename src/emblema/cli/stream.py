"""`emblema stream`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Json, Plain, known_model


def stream(
    video: Annotated[
        str | None,
        typer.Argument(
            help="A video (a path or a URL), a folder of pictures, camera:0, or an rtsp:// address.",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Watch the video of the package: a walk through lands, with things in view.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="The URL is a camera's: frames come for ever.")] = False,
    ask: Annotated[
        list[str] | None, typer.Option(help="A question, asked after all frames. May come several times.")
    ] = None,
    ask_at: Annotated[
        list[str] | None,
        typer.Option(metavar="TIME:TEXT", help='A question at its time: 90:"…" or 1:30:"…". May come several times.'),
    ] = None,
    between: Annotated[
        str | None, typer.Option(metavar="TIME-TIME", help="Questions see only what came then: 1:30-2:00.")
    ] = None,
    standing: Annotated[
        list[str] | None,
        typer.Option(help="A question that is asked again and again; changes of its answer are told. May come again."),
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="Seconds between two asks of it.", show_default="after every block")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            callback=known_model, help="reference-stream (the bundled model), a Hugging Face id, or a folder."
        ),
    ] = "reference-stream",
    fps: Annotated[float, typer.Option(help="Frames a second to sample at.")] = 0.5,
    budget: Annotated[int | None, typer.Option(help="Frames retrieved in each layer.", show_default="64")] = None,
    skip: Annotated[
        float | None, typer.Option(help="Leave out frames that differ by less than this share from the last one kept.")
    ] = None,
    host_mib: Annotated[
        int | None, typer.Option(min=1, help="Memory for frames' rows, in MiB; older ones go to --store.")
    ] = None,
    keep_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Forget frames that came longer before the latest one.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="TIME-TIME", help="Delete of a resumed stream what came then.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Folder that streams are saved to.")] = None,
    save: Annotated[str | None, typer.Option(metavar="NAME", help="Save the stream in the end, under a name.")] = None,
    save_every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Save it under that name while it runs too, so often.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on from a saved stream; a video's frames come after it.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="An answer's length at most.")] = 64,
    as_json: Json = False,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Watch a video: frames come in, and questions are answered at any time.

    On a terminal questions are typed while it runs and after it; Ctrl-C, quit, or an empty line after the video ends.
    With --ask or --ask-at those are answered and nothing is typed. A question that begins with + follows the answer
    before it. A video that breaks off is asked about as far as it
    could be read, and the command leaves with 1.

    The bundled model reads drawn videos of its own kind alone, such as --demo's: try "in which land was the ball ?",
    "what colour was under the car ?", "how many times was the lake seen ?". Videos of your own need another --model.
    """
    from emblema.cli.screen import console, load_engine
    from emblema.cli.watch.command import WatchOptions, watch
    from emblema.errors import StreamError
    from emblema.eval.demo_media import WALK

    given: dict[str, float | str | None] = {
        "budget": budget,
        "skip": skip,
        "keep_seconds": keep_seconds,
    }
    if save_every is not None:
        given.update(save_as=save or "", save_seconds=save_every)
    given["host_bytes"] = None if host_mib is None else host_mib * 2**20
    if demo and video is not None:
        raise StreamError("--demo is a video of its own: leave it or VIDEO out")
    options = WatchOptions(
        video=str(WALK) if demo else video,
        ask=ask or (),
        ask_at=ask_at or (),
        between=between,
        standing=standing or (),
        every=every,
        live=live,
        model=model,
        fps=fps,
        settings={name: value for name, value in given.items() if value is not None},
        store=store,
        save=save,
        forget=forget,
        resume=resume,
        most=max_new_tokens,
        as_json=as_json,
        plain=plain,
    )
    code = watch(options, lambda: load_engine(model, device, console(plain, stderr=True), store))
    if code:
        raise typer.Exit(code)
