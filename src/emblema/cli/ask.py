"""`emblema ask`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emblema.cli.options import Device, Model, Plain
from emblema.errors import PromptError

if TYPE_CHECKING:
    from emblema.engine.engine import Engine
    from emblema.kv.chunk import Chunk, Clip


def ask(
    question: Annotated[str, typer.Argument(help="What to ask; it comes after the media.", show_default=False)],
    image: Annotated[list[str] | None, typer.Option(help="A picture: a path or a URL. May come several times.")] = None,
    video: Annotated[list[str] | None, typer.Option(help="A video; they follow the pictures.")] = None,
    pdf: Annotated[list[str] | None, typer.Option(help="A PDF, page by page; they follow the videos.")] = None,
    slide: Annotated[
        int, typer.Option(min=0, help="The first so many pieces have slid out of the window: the text cannot see them.")
    ] = 0,
    model: Model = "reference",
    strategy: Annotated[
        str | None,
        typer.Option(
            help="See `emblema strategies`. `full` by default, as reuse pays from a second question on; "
            "`auto` with --store."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="A folder that keeps what is made of the media for the next question.")
    ] = None,
    fps: Annotated[float, typer.Option(help="Frames a second to sample a video at.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="The answer's length at most.")] = 128,
    device: Device = None,
    show_plan: Annotated[bool, typer.Option("--show-plan", help="Print where every row came from.")] = False,
    plain: Plain = False,
) -> None:
    """Ask about pictures, videos and documents; the answer is written as it comes."""
    from emblema.cli.screen import console, load_engine, waiting

    sources = [
        *((source, "image") for source in image or ()),
        *((source, "video") for source in video or ()),
        *((source, "document") for source in pdf or ()),
    ]
    if not question.strip():
        raise PromptError("the question is empty: write what you want to know")
    if slide > len(sources):
        raise PromptError(f"--slide {slide}: there are only {len(sources)} pieces of media")
    media = [(_opened(source, kind), kind) for source, kind in sources]
    from emblema.link.strategies.registry import parse

    chosen = strategy or ("full" if store is None else "auto")
    # A folder is given to have what is made of the media serve the next question.
    keep = parse(chosen).name == "auto" and store is not None
    notes = console(plain, stderr=True)
    with load_engine(model, device, notes, store) as engine:
        with waiting(notes, "reading the media"):
            parts = _parts(engine, media, slide, fps)
        reply = None
        pieces = engine.generate([*parts, question], chosen, stream=True, max_new_tokens=max_new_tokens, keep=keep)
        for piece in pieces:
            typer.echo(piece.text, nl=False)
            reply = piece.reply or reply
        typer.echo()
    if reply is None:
        return
    usage = reply.usage
    notes.print(
        f"{usage.lane}: {usage.prompt_tokens:,} tokens of prompt, {usage.cached_tokens:,} cached, of these "
        f"{usage.patched_tokens:,} patched, {usage.computed_tokens:,} computed, {usage.forming_tokens:,} run to form "
        "patches; "
        f"first token after {usage.ttft_seconds * 1e3:,.0f} ms, {usage.completion_tokens} tokens of answer "
        f"({reply.finish_reason})" + (f"; fell back: {usage.fallback}" if usage.fallback else ""),
        style="dim",
    )
    if show_plan:
        from emblema.cli.plan_view import plan_map, plan_table

        notes.print(plan_table(reply.plan))
        notes.print(plan_map(reply.plan))


def _opened(source: str, kind: str) -> Any:
    """Read a picture, or check that a file is there: bad input is refused before a model is loaded."""
    from emblema.errors import MediaError
    from emblema.media import load_image
    from emblema.media.source import is_address

    if kind == "image":
        return load_image(source)
    if not is_address(source) and not Path(source).exists():
        raise MediaError(f"There is no file {source!r}.")
    return source


def _parts(engine: "Engine", media: list[tuple[Any, str]], slide: int, fps: float) -> list[Any]:
    from emblema.session.prompt_reader import slid

    pieces: list[Chunk | Clip] = [engine.add(source, kind=kind, fps=fps) for source, kind in media]
    return [*(slid(piece) for piece in pieces[:slide]), *pieces[slide:]]
