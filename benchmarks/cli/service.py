"""Commands that measure a running `emblema serve`: under load, and for half an hour."""

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.cli.options import Parts, Report, Seed, model_loader
from emblema.cli.options import Plain


def serve(
    only: Parts = None,
    engines: Annotated[str | None, typer.Option(help="embedded and vllm, with commas; those installed here.")] = None,
    traffic: Annotated[str | None, typer.Option(help="Kinds of traffic, with commas; all if left out.")] = None,
    rates: Annotated[
        str, typer.Option(help="Requests a second, with commas; 0: one after another.")
    ] = "0,4,8,16,32,64",
    requests: Annotated[int, typer.Option(min=8, help="Requests at a rate; half as many by K, R and pictures.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of decoding.")] = 5,
    seed: Seed = 0,
    report: Report = Path("serve"),
    plain: Plain = False,
) -> None:
    """Measure the service: requests that arrive at rising rates, by method, on both engines; a killed run goes on."""
    from benchmarks.report import comma_list, parts_of, report_places
    from benchmarks.serve.load import LoadPlan
    from benchmarks.serve.requests import TRAFFIC
    from benchmarks.serve.run import MODEL, PARTS, ServeBench, ServeOptions
    from benchmarks.serve.servers import EMBEDDED, ENGINES, VLLM
    from benchmarks.serve.single import SinglePlan
    from emblema.cli.screen import console
    from emblema.errors import EmblemaError

    try:
        sent = tuple(sorted(float(rate) for rate in comma_list(rates)))
    except ValueError as error:
        raise EmblemaError(f"--rates {rates}: {error}") from error
    if not sent or sent[0] < 0:
        raise EmblemaError(f"--rates {rates}: give requests a second with commas, 0 for one after another")
    screen = console(plain)
    installed = ENGINES if find_spec("vllm") else (EMBEDDED,)
    chosen = installed if engines is None else parts_of(engines, ENGINES)
    if engines is None and VLLM not in installed:
        screen.print("vLLM is not installed here: the embedded engine alone is measured")
    folder, _ = report_places(report, None, "serve.json")
    given = {"--only": only, "--engines": engines, "--traffic": traffic}
    command = " ".join(["python -m benchmarks serve", *(f"{name} {value}" for name, value in given.items() if value)])
    plan, single = LoadPlan(MODEL, sent, requests, seed), SinglePlan(max(2, requests // 2), seed)
    options = ServeOptions(command, parts_of(only, PARTS), chosen, parts_of(traffic, TRAFFIC), plan, rounds, single)
    page = ServeBench(options, lambda: model_loader(None, screen)(MODEL), folder, screen).run()
    screen.print(f"report: {page}", soft_wrap=True)


def soak_serve(
    minutes: Annotated[float, typer.Option(help="Minutes of load.")] = 30.0,
    seed: Seed = 0,
    report: Report = Path("serve-soak"),
    plain: Plain = False,
) -> None:
    """Soak a server with mixed and hostile load, and hold what its process takes to what it was."""
    from benchmarks.report import report_places
    from benchmarks.serve.soak import CLIENTS, soak_server
    from benchmarks.serve.soak_report import write_serve_soak
    from emblema.cli.screen import console
    from emblema.errors import EmblemaError

    if minutes <= 0:
        raise EmblemaError(f"--minutes {minutes:g}: give more than none")
    folder, _ = report_places(report, None, "serve-soak.json")
    screen, before = console(plain), os.getloadavg()[0]
    with TemporaryDirectory(prefix="emblema-soak-") as place:
        found = soak_server(
            minutes, seed, Path(place), lambda sample: screen.print(f"{sample.seconds:.0f} s, {sample.requests}")
        )
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} at the end, with the soak's own"
    options = {"minutes": minutes, "clients": CLIENTS, "seed": seed, "load average": load}
    bars = write_serve_soak(found, options, folder, screen)
    screen.print(f"report: {folder / 'serve-soak.md'}", soft_wrap=True)
    if not all(bar.holds for bar in bars):
        raise typer.Exit(1)
