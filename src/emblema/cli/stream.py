"""`emblema stream`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Json, Plain


def stream(
    video: Annotated[
        str | None,
        typer.Argument(
            help="A video (a path or a URL), a folder of pictures, camera:0, or an rtsp:// address.",
            show_default=False,
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="The URL is a camera's: frames come for ever.")] = False,
    give_up: Annotated[float, typer.Option(help="Seconds to try to reach a camera that is gone.")] = 60.0,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep frames there as pictures; the oldest are deleted.")
    ] = None,
    record_mib: Annotated[int, typer.Option(min=1, help="How large that folder may grow, in MiB.")] = 1024,
    clips: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a clip there of what each answer was drawn from.")
    ] = None,
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
    hold: Annotated[int, typer.Option(help="Asks in a row that a changed answer has to last.")] = 2,
    cooldown: Annotated[float, typer.Option(help="Seconds without another change of it.")] = 0.0,
    alerts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append changes to a file, a line of JSON each; - is stdout.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Post changes there as JSON.")] = None,
    webhook_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host in a private network that may be posted to.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="reference-stream (the bundled model), a Hugging Face id, or a folder.")
    ] = "reference-stream",
    fps: Annotated[float, typer.Option(help="Frames a second to sample at.")] = 0.5,
    side: Annotated[int, typer.Option(min=28, help="Longest side of a frame; larger ones are scaled down.")] = 448,
    method: Annotated[str, typer.Option(help="How frames are remembered: mosaic, rekv, sliding, full …")] = "mosaic",
    budget: Annotated[int | None, typer.Option(help="Frames retrieved in each layer.", show_default="64")] = None,
    window: Annotated[int | None, typer.Option(help="Latest frames, always seen.", show_default="16")] = None,
    block: Annotated[int | None, typer.Option(help="Frames that are encoded together.", show_default="8")] = None,
    skip: Annotated[
        float | None, typer.Option(help="Leave out frames that differ by less than this share from the last one kept.")
    ] = None,
    host_mib: Annotated[
        int | None, typer.Option(min=1, help="Memory for frames' rows, in MiB; older ones go to --store.")
    ] = None,
    keep_seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Forget frames that came longer before the latest one.")
    ] = None,
    keep_mib: Annotated[
        int | None, typer.Option(min=1, help="Forget the oldest frames once rows would take more, in MiB.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="TIME-TIME", help="Delete of a resumed stream what came then.")
    ] = None,
    strip: Annotated[Path | None, typer.Option(help="Picture of what was retrieved for each question (PNG).")] = None,
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
    """Watch a video: frames come in, clusters form, and questions are answered at any time.

    On a terminal questions are typed while it runs and after it; Ctrl-C, quit, or an empty line after the video ends.
    With --ask or --ask-at those are answered and nothing is typed. A question that begins with + follows the answer
    before it. A video that breaks off is asked about as far as it
    could be read, and the command leaves with 1.
    """
    from emblema.cli.screen import console, load_engine
    from emblema.cli.view.command import WatchOptions, watch

    given: dict[str, float | str | None] = {
        "budget": budget,
        "window": window,
        "block": block,
        "skip": skip,
        "keep_seconds": keep_seconds,
    }
    if save_every is not None:
        given.update(save_as=save or "", save_seconds=save_every)
    given["host_bytes"] = None if host_mib is None else host_mib * 2**20
    given["keep_bytes"] = None if keep_mib is None else keep_mib * 2**20
    options = WatchOptions(
        video=video,
        ask=ask or (),
        ask_at=ask_at or (),
        between=between,
        standing=standing or (),
        every=every,
        hold=hold,
        cooldown=cooldown,
        alerts=alerts,
        webhook=webhook,
        webhook_hosts=webhook_host or (),
        live=live,
        give_up=give_up,
        record=record,
        record_mib=record_mib,
        clips=clips,
        model=model,
        fps=fps,
        side=side,
        method=method,
        settings={name: value for name, value in given.items() if value is not None},
        strip=strip,
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
