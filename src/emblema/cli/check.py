"""`emblema check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emblema.cli.options import CheckedModel, Device, Out, Plain
from emblema.errors import PromptError, StrategyError

if TYPE_CHECKING:
    from rich.console import Console

    from emblema.engine.engine import Engine
    from emblema.eval.check import CheckResult


def check(
    model: CheckedModel,
    image: Annotated[list[str] | None, typer.Option(help="A picture of yours: a path or a URL. Two or more.")] = None,
    question: Annotated[list[str] | None, typer.Option(help="A question of yours. May come several times.")] = None,
    ranks: Annotated[str, typer.Option(help="Ranks of patches to measure, beside shares of 6 % and 25 %.")] = "4,16,64",
    orders: Annotated[int, typer.Option(min=1, max=100, help="Orders of the pictures to try, at most.")] = 4,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of greedy answer to compare.")] = 12,
    store: Annotated[
        Path | None,
        typer.Option(envvar="EMBLEMA_STORE", help="A store's folder, whose policy learns what is measured."),
    ] = None,
    out: Out = Path("check"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Check a model: can its chunks be relocated, and how far are blind reuse and patches from re-prefill?"""
    from emblema.cli.screen import console, load_engine, output_folder, waiting

    chosen = ranks_of(ranks)
    if image and len(image) < 2:
        raise PromptError("--image came once: give two or more, a single picture has no other to be conditioned on")
    folder = output_folder(out)
    screen = console(plain)
    from emblema.eval.check import QUESTIONS, measure
    from emblema.eval.check_report import fidelity_table, new_combinations, report, selfcheck_table, verdict
    from emblema.eval.demo_media import demo_media
    from emblema.eval.figures import write_figures
    from emblema.kv.chunk import Chunk
    from emblema.media import load_image

    pictures, questions = list(image or ()), list(question or ())
    if not pictures:
        media = demo_media()
        names = media.sample()
        pictures = [str(media.folder / name) for name in names]
        questions = questions or [question.text for question in media.about(names)]
    opened = [load_image(picture) for picture in pictures]
    engine = load_engine(model, device, screen, measured=True)
    screen.print(selfcheck_table(model, engine))
    with waiting(screen, "reading the pictures"):
        added = [engine.add(picture, kind="image") for picture in opened]
    chunks = [piece for piece in added if isinstance(piece, Chunk)]
    result = measure(
        engine, chunks, questions or QUESTIONS, ranks=chosen, orders=orders, answer_tokens=answer_tokens, screen=screen
    )
    screen.print(f"\n[bold]{verdict(result)}[/bold]")
    screen.print(f"{new_combinations(result)}\n")
    screen.print(fidelity_table(result))
    screen.print(
        "slid: all pictures but the last have left the window. bytes: patches, as a share of the KV of the pictures in "
        "the window. rows: computed. KL: from re-prefill at the answer's first token, nats. eta: share of blind "
        "reuse's KL removed. first, answer: prompts with re-prefill's first token and whole answer. flips: share of "
        "the first tokens changed by blind reuse that were restored."
    )
    if store is not None:
        _teach(store, engine, result, screen)
    listing = write_figures(report(model, engine, result, pictures), folder / "check.json")
    screen.print(f"\nfigures: {listing}", soft_wrap=True)


def _teach(store: Path, engine: "Engine", result: "CheckResult", screen: "Console") -> None:
    """Have the policy of a store learn what was measured."""
    from emblema.eval.check import teach_policy
    from emblema.store.settings import StoreSettings
    from emblema.store.store import Store

    with Store(store, settings=StoreSettings(device=engine.adapter.device)) as opened:
        plateau, count = teach_policy(result, engine.on(opened).policy_runtime)
    level = "no plateau was found" if plateau is None else f"patches are formed with rank {plateau}"
    screen.print(f"\n{store}: {count} measurements for auto, {level}; see emblema policy", soft_wrap=True)


def ranks_of(text: str) -> tuple[int, ...]:
    """Return ranks from a list such as `4,16,64`.

    Raises:
        StrategyError: an entry is no rank.
    """
    from emblema.link.strategies.registry import parse

    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or not all(name.isdigit() for name in names):
        raise StrategyError(f"--ranks {text!r}: give whole numbers with commas between them, such as 4,16,64")
    for name in names:
        parse(f"patch-{name}")
    return tuple(int(name) for name in names)
