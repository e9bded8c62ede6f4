"""The result as sections of tables: on a screen, as Markdown, and as plain data; and the bars that it is held to."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.store.run import StoreBench
from benchmarks.store.sections import sections
from benchmarks.store.throughput import COLD, WARM
from benchmarks.table import Bar, bars_markdown, markdown_table, show_bars, show_grid
from emblema.eval.figures import environment

LOOKUP = 50.0
RATIOS = {COLD: 0.8, WARM: 0.65}
BAR_BYTES = 16 * 10**6
"""Bars are for files from this size: below, opening a file is what takes the time."""
BAR_ENTRIES = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bars, and what else they rest on."""

    bars: tuple[Bar, ...]
    remarks: tuple[str, ...]


def verdict_of(result: StoreBench) -> Verdict:
    """The bars of what was measured at the size that they speak of."""
    bars, remarks = [], []
    for one in result.throughput:
        if not one.cold:
            seen = "cannot be seen" if math.isnan(one.residency) else f"kept {one.residency:.0%} of it"
            remarks.append(f"{one.bytes / 1e6:.0f} MB: the cold reads may not be cold, the page cache {seen}.")
        if one.bytes < BAR_BYTES:
            continue
        for warmth, bound in RATIOS.items():
            if warmth == WARM or one.cold:
                name = f"verified load over plain read, {warmth}, {one.bytes / 1e6:.0f} MB"
                bars.append(Bar(name, one.ratio(warmth), bound, True))
    for found in result.index:
        if found.entries >= BAR_ENTRIES:
            bars.append(Bar(f"index look-up of {found.entries:,} entries, p50, µs", found.hits[0], LOOKUP, False))
    for linked in result.overlap:
        if not linked.residency < 0.01:
            remarks.append(f"{linked.model}: files may have been in the page cache before the cold lanes.")
    cores = environment()["cores"] or 1
    if max(result.load) > cores:
        remarks.append(
            f"The machine's load average was {result.load[0]:.1f} before and {result.load[1]:.1f} after, on {cores} "
            "cores: others were at work, so trust ratios within a round more than times."
        )
    return Verdict(tuple(bars), tuple(remarks))


def show(screen: Console, result: StoreBench) -> None:
    """Print the result."""
    for section in sections(result):
        show_grid(screen, section.title, section.heads, section.rows)
        screen.print(Text(section.note, "dim"))
        screen.print()
    verdict = verdict_of(result)
    if verdict.bars:
        show_bars(screen, verdict.bars)
    for remark in verdict.remarks:
        screen.print(Text(remark, "yellow"))
    missed = [bar.name for bar in verdict.bars if not bar.holds]
    if verdict.bars:
        said = f"missed: {'; '.join(missed)}" if missed else "every bar holds"
        screen.print(Text(said, "bold red" if missed else "bold green"))


def report(result: StoreBench) -> dict[str, Any]:
    """The result as plain data: every figure as measured, those worked out from them, and the bars."""
    verdict = verdict_of(result)
    derived = [
        {"table": section.title, "columns": list(section.heads), "rows": [list(row) for row in section.rows]}
        for section in sections(result)
    ]
    return {
        **asdict(result),
        "bars": [bar.data() for bar in verdict.bars],
        "remarks": list(verdict.remarks),
        "tables": derived,
    }


def markdown(result: StoreBench, pictures: dict[str, Path]) -> str:
    """The report as Markdown; `pictures` by the name of their section lie beside it."""
    where = environment()
    verdict = verdict_of(result)
    lines = [
        "# The store, measured",
        "",
        f"`python -m benchmarks store`, seed {result.seed}, on {where['device']}, {where['cores']} cores, "
        f"{result.file_system} file system, {where['date']}. torch {where['torch']}, one thread; the store's own "
        "threads read and write beside it. Prompts ran on the model "
        f"`{result.model}`{' and on a larger random one' if len(result.overlap) > 1 else ''}.",
        "",
        *(f"{remark}\n" for remark in verdict.remarks),
    ]
    if verdict.bars:
        lines += ["## Bars", "", bars_markdown([(result.model, verdict.bars)]), ""]
    for section in sections(result):
        lines += [f"## {section.title}", ""]
        if section.name in pictures:
            lines += [f"![{section.title}]({pictures[section.name].name})", ""]
        lines += [markdown_table(section.heads, section.rows), "", section.note, ""]
    return "\n".join(lines)


def write_report(result: StoreBench, folder: Path) -> Path:
    """Write `store.md` and its pictures into a folder; returns the page's path."""
    from benchmarks.store.picture import draw

    page = folder / "store.md"
    page.write_text(markdown(result, draw(result, folder)), encoding="utf-8")
    return page
