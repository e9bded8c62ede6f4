"""`emblema ask`."""

from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emblema.cli.options import Device, Model, Plain
from emblema.errors import PromptError

if TYPE_CHECKING:
    from rich.console import Console

    from emblema.engine.engine import Engine
    from emblema.kv.chunk import Chunk, Clip
    from emblema.session.replies import Reply


Given = Annotated[
    list[str],
    typer.Argument(
        metavar="[FILE]... QUESTION",
        help="Pictures, videos, PDFs or sound, as paths or URLs; last what to ask about them.",
        show_default=False,
    ),
]
Images = Annotated[list[str] | None, typer.Option(help="A picture; they follow the files. May be repeated.")]
Slide = Annotated[
    int, typer.Option(min=0, help="The first so many pieces have slid out of the window: the text cannot see them.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="See `emblema strategies`. `full` by default, as reuse pays from a second question on; "
        "`auto` with --store."
    ),
]
Store = Annotated[
    Path | None, typer.Option(help="A folder that keeps what is made of the media for the next question.")
]


def ask(
    given: Given,
    image: Images = None,
    video: Annotated[list[str] | None, typer.Option(help="A video; they follow the pictures.")] = None,
    pdf: Annotated[list[str] | None, typer.Option(help="A PDF, page by page; they follow the videos.")] = None,
    slide: Slide = 0,
    model: Model = "reference",
    strategy: Strategy = None,
    store: Store = None,
    fps: Annotated[float, typer.Option(help="Frames a second to sample a video at.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="The answer's length at most.")] = 128,
    device: Device = None,
    show_plan: Annotated[bool, typer.Option("--show-plan", help="Print where every row came from.")] = False,
    plain: Plain = False,
) -> None:
    """Ask about pictures, videos and documents; the answer is written as it comes.

    The bundled model knows 794 words and five kinds of question about legends and maps that were drawn for it, such as
    "on which land does the moon stand ?". For pictures of your own name another --model: see `emblema models`.
    """
    from emblema.cli.screen import console, load_engine, waiting

    *named, question = given
    sources: list[tuple[str, str | None]] = [
        *((source, None) for source in named),
        *((source, "image") for source in image or ()),
        *((source, "video") for source in video or ()),
        *((source, "document") for source in pdf or ()),
    ]
    if not question.strip():
        raise PromptError("the question is empty: write what you want to know")
    if isfile(question):
        raise PromptError(f"{question} is a file, and there is no question after it: it comes last")
    if slide > len(sources):
        raise PromptError(f"--slide {slide}: there are only {len(sources)} pieces of media")
    media = [_opened(source, kind) for source, kind in sources]
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
    _tell_cost(notes, reply)
    if show_plan:
        from emblema.cli.plan_view import plan_map, plan_table

        notes.print(plan_table(reply.plan))
        notes.print(plan_map(reply.plan))


def _tell_cost(notes: "Console", reply: "Reply") -> None:
    """Say what an answer cost, and what there is to remark on it."""
    usage = reply.usage
    if reply.remark is not None:
        notes.print(reply.remark, style="yellow", markup=False)
    notes.print(
        f"{usage.lane}: {usage.prompt_tokens:,} tokens of prompt, {usage.cached_tokens:,} cached, of these "
        f"{usage.patched_tokens:,} patched, {usage.computed_tokens:,} computed, {usage.forming_tokens:,} run to form "
        "patches; "
        f"first token after {usage.ttft_seconds * 1e3:,.0f} ms, {usage.completion_tokens} tokens of answer "
        f"({reply.finish_reason})" + (f"; fell back: {usage.fallback}" if usage.fallback else ""),
        style="dim",
    )


def _opened(source: str, kind: str | None) -> tuple[Any, str | None]:
    """Read a picture, or see what a file is: bad input is refused before a model is loaded.

    Returns:
        The picture or the source, and its kind; without one, an address's content will say it.
    """
    from emblema.media import load_image
    from emblema.media.kind import media_kind
    from emblema.media.source import is_address

    if not is_address(source):
        found = media_kind(source)
        kind = kind or found
    return (load_image(source) if kind == "image" else source), kind


def _parts(engine: "Engine", media: list[tuple[Any, str | None]], slide: int, fps: float) -> list[Any]:
    from emblema.session.prompt_reader import slid

    pieces: list[Chunk | Clip] = [engine.add(source, kind=kind, fps=fps) for source, kind in media]
    return [*(slid(piece) for piece in pieces[:slide]), *pieces[slide:]]
