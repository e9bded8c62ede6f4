"""`python -m benchmarks.mutation`: change the code in small ways, and count how many changes the tests notice."""

import random
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.mutation.mutants import ROOMS
from benchmarks.mutation.run import run_mutation, write_mutation
from benchmarks.report import parts_of
from emblema.cli.screen import console
from emblema.eval.progress import steps


def main(
    only: Annotated[str | None, typer.Option(help="Rooms: kv, link, store, vllm, with commas.")] = None,
    mutants: Annotated[int, typer.Option(min=1, help="Mutants of a room.")] = 80,
    minutes: Annotated[float, typer.Option(help="After so long no other mutant is begun; a later run goes on.")] = 60.0,
    seed: Annotated[int | None, typer.Option(help="Of the sample; a fresh one by default.")] = None,
    kept: Annotated[Path | None, typer.Option(help="File of results as they come.")] = None,
    report: Annotated[Path, typer.Option(help="Folder of the page and the figures.")] = Path("mutation"),
    plain: Annotated[bool, typer.Option(help="No colours and no moving lines.")] = False,
) -> None:
    """Change the code in small ways, one at a time, and count how many changes the tests of the room notice."""
    rooms, screen = parts_of(only, tuple(ROOMS)), console(plain)
    chosen = random.SystemRandom().randrange(2**31) if seed is None else seed
    report.mkdir(parents=True, exist_ok=True)
    results = report / f"mutants-{chosen}.jsonl" if kept is None else kept
    with steps(screen, f"mutants of {', '.join(rooms)}, seed {chosen}", mutants * len(rooms)) as advance:
        found = run_mutation(rooms, chosen, mutants, minutes, results, lambda judged: advance())
    command = f"`python -m benchmarks.mutation --seed {chosen} --mutants {mutants}`"
    bars = write_mutation(found, command, report, screen)
    screen.print(f"report: {report / 'mutation.md'}   results: {results}", soft_wrap=True)
    if not all(bar.holds for bar in bars):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
