"""The figures of vLLM as tables, on a page with plots."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.intervals import Interval
from benchmarks.report import ModelTables, write_page
from benchmarks.table import Cell, Plot, Table
from benchmarks.vllm.readings import PARTS, PLAIN
from emblema.eval.metrics import Share

LOAD_COLUMNS = (
    "turns a second, sent", "strategy", "answered a second", "first turn s", "later turns s", "95 % of all s",
    "tokens linked", "of prefix cache", "KV moved MB", "as full", "right",
)  # fmt: skip


def write_report(found: Mapping[str, Any], folder: Path, command: str) -> Path:
    """Write `vllm.md` and its plots into a folder; returns the page's path.

    Args:
        found: figures by part, see `run.VllmBench.run`.
        command: the command line that made them.
    """
    before, after = found["load"]
    words = (
        f"`{command}`: {found['device']}, load average {before:.1f} before and {after:.1f} after; whole vLLM servers "
        "over HTTP, in processes of their own, as `docs/vllm.md` says; figures in [vllm.json](vllm.json)"
    )
    tables = ModelTables("vllm", tuple(vllm_tables(found)))
    return write_page(folder / "vllm.md", "Inside vLLM, measured", words, [tables])


def vllm_tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table for each part that was measured."""
    if "agreement" in found:
        yield _agreement(found["agreement"], found.get("clients"))
    if "first_tokens" in found:
        yield _first_tokens(found["first_tokens"])
    if "talks" in found:
        size = found["talks"]["parameters"] / 1e6
        note = (
            f"`vllm bench serve` sends the turns of {found['settings']['talks']} conversations, each over the same ten "
            f"pictures in an order of its own, to a random model of {size:.0f} M parameters; one token is asked for. "
            "`full` is vLLM with its own prefix cache, which the other rows have too. `as full` counts equal tokens of "
            "a model that was never trained, so it says little."
        )
        drawn = ("later turns s", "answered a second")
        plots = tuple(Plot("turns a second, sent", y, "strategy", bars=True) for y in drawn)
        title, rows = "Conversations over ten pictures: time", found["talks"]["held"]
        yield Table("talks", title, note, LOAD_COLUMNS, _load_rows(rows), plots)
    if "answers" in found:
        note = (
            "The same, on the bundled `reference` and pages that it can read; each turn asks about the pair that was "
            "shown last. Under `auto` patches are captured as the turns go by; as each conversation has an order of "
            "its own, few antecedents come back, and what is not known is computed."
        )
        title, rows = "Conversations over ten pictures: answers", found["answers"]["held"]
        yield Table("answers", title, note, LOAD_COLUMNS, _load_rows(rows))
    if "saturation" in found:
        yield _saturation(found["saturation"])
    for number, (name, rows) in enumerate(found.get("readings", {}).items()):
        yield _readings(f"readings-{number}", name, rows)


def _saturation(rows: Sequence[Mapping[str, Any]]) -> Table:
    counted = len(rows[0]["rates"])
    note = (
        f"Every request of a round at once: {rows[0]['requests']} of them, {counted} rounds that count, the arms in "
        "turns within each. `vllm` is a server without the plugin, `full` one with it whose requests ask for nothing. "
        "`talks` grow by pages and questions, `subsets` show 8 of 24 pages in any order, `windows` slide over 6 "
        "screenshots; a page takes 66 rows, with `-large` 258. Medians over rounds with the least and the most; `of "
        "vllm` is the median of the rounds' own ratios. vLLM's processes wait for each other without sleeping, which "
        "counts as processor time here. "
        "`background` is what the server did between an arm's last answer and quiet, a round."
    )
    columns = (
        "traffic", "arm", "answered a second", "of vllm", "processor ms an answer", "background s", "as vllm", "right",
        "picture rows linked",
    )  # fmt: skip
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row["traffic"],
            row["arm"],
            _spread(row["rates"]),
            _spread(row["ratios"]),
            1e3 * statistics.median(row["seconds"]),
            row["background"],
            Share(row["agreeing"] / (counted * row["requests"]), counted * row["requests"]),
            Share(row["right"] / (counted * row["requests"]), counted * row["requests"]),
            row["linked_rows"] / row["picture_rows"] if row["picture_rows"] else None,
        )
        for row in rows
    )
    return Table("saturation", "Throughput at saturation", note, columns, cells)


def _readings(anchor: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    plain = {row["pictures"]: row for row in rows if row["strategy"] == PLAIN}
    note = (
        "One engine, no HTTP; every picture is known, no combination comes again, and any margin stands. Seconds to "
        "the first token are medians with the least and the most; `processor` is what the process used. The parts are "
        "the engine thread's: the engine with the pictures' preparation, the plugin, the runner, the model and its "
        "attention. Rows, requests in batches with virtual ones, and steps are means."
    )
    columns = (
        "pictures", "strategy", "seconds", "of plain", "processor s", "of plain's", "rows of", "rows", "requests",
        "steps", "margin", *(f"{part} ms" for part in PARTS),
    )  # fmt: skip
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row["pictures"],
            row["strategy"],
            Interval(row["median"], row["least"], row["most"]),
            row["median"] / plain[row["pictures"]]["median"],
            row["processor"],
            row["processor"] / plain[row["pictures"]]["processor"],
            row["prompt_tokens"],
            round(row["rows"]),
            round(row["requests"]),
            row["steps"],
            row["margin"],
            *(1e3 * row["parts"][part] for part in PARTS),
        )
        for row in rows
    )
    return Table(anchor, f"Prompts that are read: {name}", note, columns, cells)


def _spread(values: Sequence[float]) -> Interval:
    return Interval(statistics.median(values), min(values), max(values))


def _agreement(rows: Sequence[Mapping[str, Any]], many: Mapping[str, Any] | None) -> Table:
    note = "Shares with their 95 % intervals; right: of the strategy's answers, and of plain prefill's."
    if many is not None:
        note += (
            f" {many['clients']} clients at once asked {many['asks']} questions under `auto`: {many['a second']:.1f} "
            f"answers a second, {many['different']} different from the answer alone."
        )
    columns = (
        "strategy", "questions", "as plain prefill", "right", "right, plain", "picture rows linked", "not linked",
    )  # fmt: skip
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row["strategy"],
            row["questions"],
            Interval(row["agreeing"] / row["questions"], row["low"], row["high"]),
            row["right"],
            row["plain_right"],
            row["linked_rows"] / max(1, row["picture_rows"]),
            row["fallbacks"],
        )
        for row in rows
    )
    return Table("agreement", "Answers to two-page questions", note, columns, cells)


def _first_tokens(found: Mapping[str, Any]) -> Table:
    arms = found["arms"]
    note = (
        f"A random model of {found['parameters'] / 1e6:.0f} M parameters, {arms[0]['prompt_tokens']} tokens with "
        f"{found['pictures']} pictures, one token asked for; every strategy once a round, medians of "
        f"{len(arms[0]['seconds'])} with the least and the most."
    )
    rows = tuple(
        (
            arm["strategy"],
            Interval(arm["median"], min(arm["seconds"]), max(arm["seconds"])),
            arm["median"] / arms[0]["median"],
            arm["linked_tokens"],
        )
        for arm in arms
    )
    columns = ("strategy", "seconds", "of plain prefill", "tokens linked")
    plots = (Plot("strategy", "seconds", bars=True),)
    return Table("first-tokens", "Seconds to the first token", note, columns, rows, plots)


def _load_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (
            f"{row['rate']:g}" if row["rate"] else "at once",
            row["strategy"],
            row["turns_a_second"],
            row["first_turn"],
            row["later_turns"],
            row["slowest"],
            row["linked_tokens"] / row["prompt_tokens"],
            row["prefix_tokens"] / row["prompt_tokens"],
            row["kv_bytes"] / 1e6,
            Share(row["agreeing"] / row["turns"], row["turns"]),
            None if row["right"] is None else Share(row["right"] / row["turns"], row["turns"]),
        )
        for row in rows
    )
