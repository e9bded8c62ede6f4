"""Commands that measure the methods on a small pretrained model, beside re-prefill."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cli.options import DrawnSeed, drawn_seed

Pretrained = Annotated[str, typer.Option("--model", help="A pretrained model: smollm2-135m or gemma3-270m.")]
Least = Annotated[int, typer.Option(min=0, help="Least sentences of a passage beside its fact.")]
Most = Annotated[int, typer.Option(min=0, help="Most sentences of a passage beside its fact.")]
Figures = Annotated[Path | None, typer.Option("--report", help="File for the figures, JSON.")]


def real(
    model: Pretrained = "smollm2-135m",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of five questions each.")] = 8,
    seed: DrawnSeed = None,
    least: Least = 3,
    most: Most = 7,
    methods: Annotated[str, typer.Option(help="Strategies, with commas.")] = "blind,query-25%,patch-25%",
    others: Annotated[str, typer.Option(help="Strategies that are measured after the first anchor alone.")] = "",
    anchors: Annotated[str, typer.Option(help="none or head, with commas.")] = "none,head",
    every: Annotated[bool, typer.Option(help="All questions of an episode, their first tokens alone.")] = False,
    report: Figures = None,
    records: Annotated[Path | None, typer.Option(help="File for a line of JSON for each question.")] = None,
) -> None:
    """Ask questions about passages of plain English, under each method, with chunks captured after each anchor."""
    from benchmarks.real.measure import RealOptions, measure_real
    from benchmarks.real.summary import summary_rows
    from benchmarks.report import comma_list

    chosen, (own, after, more) = drawn_seed(seed), (tuple(comma_list(names)) for names in (methods, anchors, others))
    wanted = RealOptions(model, episodes, chosen, (least, most), own, after, more, every)
    found = []
    for record in _told(lambda advance: measure_real(wanted, advance), f"{model}, seed {chosen}", episodes):
        found.append(record)
        if records is not None:
            with records.open("a", encoding="utf-8") as target:
                target.write(json.dumps(record) + "\n")
    options = {"model": model, "seed": chosen, "episodes": episodes}
    options |= {"sentences": [least, most], **({"every": True} if every else {})}
    _write(summary_rows(found, (wanted.anchors[0], wanted.methods[0])), options, report)


def real_traffic(
    model: Pretrained = "smollm2-135m",
    shape: Annotated[str, typer.Option(help="subsets or chat.")] = "subsets",
    requests: Annotated[int, typer.Option(min=1, help="How many requests.")] = 24,
    seed: DrawnSeed = None,
    least: Least = 2,
    most: Most = 5,
    report: Figures = None,
) -> None:
    """Send requests about known passages under the default policy, and hold each answer to a full prefill."""
    from benchmarks.real.traffic import TrafficOptions, measure_traffic, traffic_rows

    chosen = drawn_seed(seed)
    wanted = TrafficOptions(model, shape, requests, chosen, (least, most))  # type: ignore[arg-type]
    told = _told(lambda advance: measure_traffic(wanted, advance), f"{model}, {shape}, seed {chosen}", requests)
    options = {"model": model, "shape": shape, "seed": chosen, "requests": requests}
    _write(traffic_rows(list(told)), {**options, "sentences": [least, most]}, report)


def real_speed(
    model: Pretrained = "smollm2-135m",
    tokens: Annotated[str, typer.Option(help="Lengths of prompts, about, with commas.")] = "1000,2000,4000",
    rounds: Annotated[int, typer.Option(min=1, help="Questions, each asked every way.")] = 3,
    seed: DrawnSeed = None,
    report: Figures = None,
) -> None:
    """Time the first token of long prompts, each way beside a full prefill."""
    from benchmarks.real.speed import SpeedOptions, measure_speed

    lengths, chosen = tuple(int(length) for length in tokens.split(",")), drawn_seed(seed)
    wanted = SpeedOptions(model, lengths, rounds, chosen)
    told = _told(lambda advance: measure_speed(wanted, advance), f"{model}, seed {chosen}", rounds * len(lengths))
    _write(list(told), {"model": model, "speed": True, "seed": chosen, "rounds": rounds}, report)


def real_bound(
    runs: Annotated[
        list[Path], typer.Argument(help="Files of records that `real --records` wrote, one for each model.")
    ],
    seed: DrawnSeed = None,
    method: Annotated[str, typer.Option(help="Whose answers are certified.")] = "query-25%",
    shifted: Annotated[str, typer.Option(help="Whose answers come after the shift.")] = "blind",
    report: Figures = None,
) -> None:
    """Certify margins on half of the answers and hold them to the other half; then shift the traffic."""
    from dataclasses import replace

    from benchmarks.real.bound import BoundOptions, bound_row
    from emblema.link.policy.policy import Policy

    chosen, rows = drawn_seed(seed), []
    policies = (Policy(max_kl=None), Policy(), Policy(alpha=0.05, max_kl=None))
    for run in runs:
        records = [json.loads(line) for line in run.read_text(encoding="utf-8").splitlines()]
        for policy in policies:
            wanted = replace(BoundOptions(method, shifted, seed=chosen), policy=policy)
            rows.append({"model": run.stem.removeprefix("bound-"), **bound_row(records, wanted)})
    _write(rows, {"bound": True, "seed": chosen}, report)


def real_page(
    runs: Annotated[list[Path], typer.Argument(help="Files that `real` and `real-traffic` wrote.")],
    folder: Annotated[Path, typer.Option(help="Folder of real.md and real.json.")] = Path("docs/results"),
) -> None:
    """Make the page of results on real weights, and its figures, out of runs."""
    from benchmarks.real.page import collect_runs, write_real_page

    typer.echo(f"page: {write_real_page(collect_runs(runs, folder), folder)}")


def _told(measure: Callable[[Callable[[], None]], Iterable[Any]], title: str, count: int) -> Iterable[Any]:
    """Yield what is measured, with its progress on the screen."""
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    with steps(console(False), title, count) as advance:
        yield from measure(advance)


def _write(rows: list[dict[str, Any]], options: Mapping[str, Any], report: Path | None) -> None:
    """Print rows, and write them as figures where a file is given."""
    from benchmarks.figures import write_figures

    for row in rows:
        typer.echo(
            " ".join(
                f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()
            )
        )
    if report is not None:
        write_figures({"options": options, "rows": rows}, report)
