"""`emblema bench vllm`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Plain, Seed


def vllm(
    questions: Annotated[int, typer.Option(min=0, help="Two-page questions for agreement; 0 leaves it out.")] = 200,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of first tokens; 0 leaves them out.")] = 5,
    shape: Annotated[str, typer.Option(help="The random model that is timed: 137m, or 7b for a GPU.")] = "137m",
    pictures: Annotated[int, typer.Option(min=1, help="Pictures in the timed prompt, of 256 tokens each.")] = 4,
    dtype: Annotated[str, typer.Option(help="Of the timed model: bfloat16, float16 or float32.")] = "bfloat16",
    count: Annotated[int, typer.Option("--clients", min=0, help="Clients at once; 0 leaves them out.")] = 32,
    talks: Annotated[
        int, typer.Option("--conversations", min=0, help="Conversations over ten pictures; 0 leaves them out.")
    ] = 4,
    figures: Annotated[Path | None, typer.Option("--json", help="File for every figure.", show_default=False)] = None,
    seed: Seed = 0,
    plain: Plain = False,
) -> None:
    """Measure vLLM with the plugin against vLLM alone: agreement, seconds to the first token, many clients."""
    from tempfile import TemporaryDirectory

    from emblema.bench.figures import write_figures
    from emblema.bench.vllm.client import Client
    from emblema.bench.vllm.conversations import conversations
    from emblema.bench.vllm.measure import agreement, clients, first_tokens, plain_data
    from emblema.bench.vllm.model import SHAPES, random_model
    from emblema.cli.screen import console, output_folder
    from emblema.errors import EmblemaError
    from emblema.vllm.serving import command, device_options, free_port, running

    screen = console(plain)
    if shape not in SHAPES:
        raise EmblemaError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
    if figures is not None:
        output_folder(figures.parent, "--json")
    device, options = device_options()
    found: dict[str, object] = {"device": device, "seed": seed}
    screen.print(f"device: {device}")
    port = free_port()
    with TemporaryDirectory(prefix="emblema-vllm-") as place:
        folder = Path(place)
        if questions or count:
            more = [*options, "--dtype", "float32", "--no-enable-prefix-caching"]
            line = command("reference", folder / "store", "auto", more=more)
            with running(line, folder / "agreement.log", port) as address:
                client = Client(address, "reference")
                if questions:
                    told = agreement(client, ("auto", "blind"), questions, seed, lambda done: None)
                    found["agreement"] = plain_data(told)
                    for one in told:
                        screen.print(
                            f"{one.strategy}: {one.agreeing} of {one.questions} as plain prefill "
                            f"[{one.low:.3f}, {one.high:.3f}], right {one.right} (plain {one.plain_right}), "
                            f"{one.linked_rows / max(1, one.picture_rows):.3f} of the picture rows linked, "
                            f"{one.fallbacks} not linked"
                        )
                if count:
                    found["clients"] = many = clients(client, "auto", count, 4 * count, seed)
                    screen.print(f"clients: {many}")
        if rounds:
            parameters = random_model(folder / shape, shape)
            more = [*options, "--dtype", dtype, "--load-format", "dummy", "--no-enable-prefix-caching"]
            line = command(str(folder / shape), folder / "timed", "blind", more=more)
            with running(line, folder / "timing.log", port) as address:
                timed = first_tokens(Client(address, str(folder / shape)), ("blind", "mpic-32"), pictures, 448, rounds)
            found["first_tokens"] = {"parameters": parameters, "pictures": pictures, "arms": plain_data(timed)}
            for arm in timed:
                screen.print(
                    f"{arm.strategy}: {arm.median:.3f} s to the first token, median of {rounds}; "
                    f"{arm.linked_tokens} of {arm.prompt_tokens} tokens linked, {parameters / 1e6:.0f} M parameters"
                )
        if talks:
            parameters = random_model(folder / shape, shape)
            more = [*options, "--dtype", dtype, "--load-format", "dummy"]
            line = command(str(folder / shape), folder / "talks", "blind", more=more)
            with running(line, folder / "talks.log", port) as address:
                client = Client(address, str(folder / shape))
                held = conversations(client, ("blind", "mpic-32"), talks, (1, talks), 448, seed)
            found["conversations"] = {"parameters": parameters, "held": plain_data(held)}
            for talk in held:
                screen.print(
                    f"{talk.strategy}, {talk.at_once} at once: first turn {talk.first_turn:.2f} s, later turns "
                    f"{talk.later_turns:.2f} s, {talk.turns_a_second:.2f} turns a second, "
                    f"{talk.cached_tokens} of {talk.prompt_tokens} tokens cached, "
                    f"{talk.kv_bytes / 2**20:.0f} MiB linked"
                )
    if figures is not None:
        screen.print(f"figures: {write_figures(found, figures)}", soft_wrap=True)
