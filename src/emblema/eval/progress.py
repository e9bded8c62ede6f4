"""Progress on a console: a bar where there is a terminal, a line at the end where there is none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def steps(console: Console, title: str, total: int) -> Iterator[Callable[[], None]]:
    """A run of `total` steps; yields what to call after each."""
    if not console.is_terminal:
        began = time.perf_counter()
        yield lambda: None
        console.print(f"{title}: {time.perf_counter() - began:.1f} s")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
