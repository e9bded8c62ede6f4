"""The command that replays agents' conversations on engines and on any server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Report, drawn_seed, model_loader
from emblema.cli.options import Device, Plain, known_model


def agents(
    engines: Annotated[str, typer.Option(help="engine, serve, vllm, vllm-stock, with commas.")] = "engine",
    server: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible server, in place of them.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Address of a server that --server is compared with.")] = None,
    key: Annotated[str, typer.Option(envvar="EMBLEMA_KEY", help="Key of these servers.")] = "",
    rules: Annotated[
        str | None, typer.Option(help="keep, cap, every-other, crop, budget, none; all if left out.")
    ] = None,
    world: Annotated[str, typer.Option(help="tasks, which have right answers, or desktop.")] = "tasks",
    requests: Annotated[int, typer.Option(min=2, help="Requests of a session.")] = 100,
    size: Annotated[int, typer.Option(help="Pixels along a screenshot's side.")] = 448,
    length: Annotated[int, typer.Option(help="Tokens of a conversation, at which it begins anew.")] = 4_096,
    pictures: Annotated[int, typer.Option(help="Screenshots that keep shows, and that crop leaves whole.")] = 5,
    cap: Annotated[int, typer.Option(help="Screenshots at which cap and every-other drop some.")] = 10,
    budget: Annotated[int, typer.Option(help="Tokens of pictures at which budget retires some.")] = 2_000,
    sessions: Annotated[int, typer.Option(min=0, help="Measure throughput of so many sessions at once.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at the most.")] = 8,
    random: Annotated[bool, typer.Option("--random", help="Servers run a model of random weights.")] = False,
    shape: Annotated[str, typer.Option(help="Its shape.")] = "137m",
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write the page of the figures.")] = False,
    seed: DrawnSeed = None,
    report: Report = Path("build/agents"),
    model: Annotated[
        str, typer.Option(help="reference, a Hugging Face id, or a folder; of --server, its name of the model.")
    ] = "reference",
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Replay conversations with screenshots that are dropped: tokens, first tokens, agreement, cost by rule."""
    from benchmarks.agents.arms import METHODS
    from benchmarks.agents.figures import LISTS, put, read_agents, write_agents
    from benchmarks.agents.page import turn_table, untold, write_agents_page
    from benchmarks.agents.rules import RULES, RuleLimits
    from benchmarks.agents.run import AgentBench, others_of, told_command
    from benchmarks.agents.sessions import SessionSettings
    from benchmarks.report import parts_of
    from emblema.cli.screen import console, output_folder

    folder = output_folder(report, "--report")
    listing, screen, chosen = folder / "agents.json", console(plain), drawn_seed(seed)
    found = read_agents(listing) if page or listing.exists() else {name: [] for name in LISTS}
    if not page:
        if not server:
            known_model(model)
        settings = SessionSettings(world, requests, size, length, RuleLimits(pictures, cap, budget))
        named = [] if server else parts_of(engines, tuple(METHODS), "--engines")
        asked, others = parts_of(rules, tuple(RULES), "--rules"), others_of(server, against, key, model)
        command = told_command(sys.argv[1:], seed, chosen)
        bench = AgentBench(
            model,
            lambda: model_loader(device, screen)(model),
            command,
            settings,
            chosen,
            screen,
            shape,
            tokens=tokens,
            random=random,
        )
        made = bench.saturate(named, asked, sessions, others) if sessions else bench.measure(named, asked, others)
        silent: str | None = None
        for figures in made:
            put(found, figures)
            if not sessions:
                screen.print(turn_table(figures["rules"]))
                silent = untold(figures["rules"]) or silent
            write_agents(found, listing)
        if silent:
            screen.print(silent, soft_wrap=True)
    screen.print(f"report: {write_agents_page(found, folder)}   figures: {listing}", soft_wrap=True)
