"""`python -m benchmarks pairs`: the memory of pairs, complete and while it learns, held to its bars, and its page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import BLIND, FULL, names_of
from benchmarks.fidelity.learning import PAGES, POLICIES, SHOWN, LearningPlan, LibraryRequests, learnt, stretches
from benchmarks.fidelity.measure import (
    BASIS_ITEMS,
    POOLED_ITEMS,
    FidelityOptions,
    FidelityRecord,
    FidelityRun,
    TaskSource,
    items_of,
)
from benchmarks.fidelity.memories import SMALL_SHARES
from benchmarks.fidelity.plots import draw_bytes, draw_learning
from benchmarks.fidelity.reuse import COLUMNS, MOST_QUESTIONS, RIVALS, TASKS, ReuseBar, pooled, strategy_line
from benchmarks.fidelity.reuse import bars as strategy_bars
from benchmarks.fidelity.summary import POOLED, rows_of, uniform
from benchmarks.fidelity.tables import FLIPS, FigureRow, flips, known, number, ranged
from benchmarks.recordfile import RecordFile
from benchmarks.report import check_written, labels_of, read_run, writable_folder, write_parts
from benchmarks.rowfile import write_rows
from benchmarks.table import Bar, bars_markdown, markdown_table
from benchmarks.tasks.prompts import SETTINGS
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.link.policy.margins import DEFAULT as LEAST_MARGIN

MANY = "reasoning-many"
"""Documents of eight to thirteen pictures: no bar is held on them."""
PAIR, SERVED = "pair", "pair+query-3%"
ARMS = (FULL, BLIND, "pair:exact", "pair:small", PAIR, "query-3%", SERVED)
WIDER = tuple(f"{memory}query-{share}%" for memory in ("", "pair+") for share in (6, 12, 25))
"""Second passes over more rows; in the table, not in the plot by bytes."""
COMPARED_ARMS = (
    FULL, BLIND, "pair:exact", "pair:small", PAIR, SERVED,
    *WIDER,
    *(f"{method}@bytes-of-pair" for method in ("patch", "orbit", "basis")), "patch@6%", "patch@25%",
    *(f"{rival}@2x-{SERVED}" for rival in RIVALS if rival != "epic"),
)  # fmt: skip
COMPARED = "compared"
"""What the rows of the items on which other methods are compared name as their task."""
ANTECEDENTS = ((1, 1), (2, 3), (4, 6), (7, 12))
MARGINS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
MOST_BELOW = 0.01
"""How much eta may be lost where a pair is kept at a given share of the bytes."""
LEARNT_BYTES = {"reference-mla": 0.10}
SHARED_LEARNT_BYTES = 0.05
DROPPED = ("kl_quartiles", "eta_median", "eta_median_n", "judged", "single_hop_accuracy", "accuracy_lost")
"""Figures of `summary.rows_of` that the page does not show; they are not in its file."""
PLOT, CURVE = "pairs.png", "pairs-learning.png"
BARS = (
    *(
        bar
        for name in ("pair:exact", PAIR)
        for bar in (
            ReuseBar(name, "slid", "eta", 0.97, models=("reference-mha",)),
            ReuseBar(name, "slid", "eta", 0.98, models=("reference", "reference-mla", "reference-deepstack")),
            ReuseBar(name, "slid", "flip_recovery", 0.94),
        )
    ),
    ReuseBar(SERVED, "slid", "eta", 0.995),
    ReuseBar(SERVED, "visible", "eta", 0.985),
    *(ReuseBar(SERVED, setting, "wrong_accepted", 0.005, least=False) for setting in SETTINGS),
    ReuseBar(SERVED, "slid", "rows_with_fallbacks", 0.30, least=False),
)
PROTOCOL = """## Protocol

Written before the run; the seed was drawn once at random, nothing was measured on it before, and nothing was changed
after it.

- **Items, settings, figures.** Those of [Reuse in any combination](reuse.md): {items} fresh items of each of
  {tasks}, at most {most} questions of each, *slid* and *visible*, against re-prefill in the same setting; eta, flips
  and agreement are without the fallback; an answer is accepted at a margin of {margin} or more. Besides, {many} items
  of `{many_task}`, documents of eight to thirteen pictures, which are in no bar and in no figure over all tasks. Seed
  {seed}. Every model is asked the same.
- **What the memory was shown.** For an item, each of its chunks after each single one of those before it: one prompt
  a pair, of the tested prompt's opening text, the antecedent, the chunk, and one token of the question, computed in
  full by the model's own forward. So it never saw more than two of the item's chunks together, no question, no answer,
  and not the tested prompt. It learns from every row of such a prompt as an engine learns (an engine notes 128 rows of
  a prompt). With that it is *complete*: every pair of the tested list is known, and nothing else. It forgets the item
  before the next.
- **Memories.** `pair:exact`: differences as they are, float32. `pair`, and `{served}`: an engine's own settings,
  that is 32 directions (64 for MLA) a byte each, at most 5 % of a chunk's KV for all of its pairs (10 %).
  `pair:small`: as many directions as fit {heads:.0%} of a chunk's bytes a pair ({latent:.0%} for MLA), all that is
  kept beside coefficients counted, without the bound on all pairs. Bytes are over KV in float32, as these models keep
  it.
- **The basis** of directions is made as an engine makes it, from the rows of ordinary prompts computed in full (250
  rows, then 1,000, then 8,000 more, 128 a prompt): of {basis} other items of each of the five tasks, some of an item's
  chunks in random order a prompt.
- **Other methods**, on the first {compared} items of each task. *Rivals*: as on the other page, with at least twice the
  rows of `{served}`; `epic` chooses the rows of `mpic` in one forward, and is not measured again. *With more rows*:
  a second pass over 6, 12 and 25 % of them, with the memory and without. *At equal bytes*:
  `patch`, `orbit` and `basis` `@bytes-of-pair` may spend, on each item, the bytes that the memory of `pair` holds of
  it, for all antecedents together, over the KV of its chunks but the first. Their patches are formed for the tested
  list itself. `basis` has its directions from {pool} other items of the same task.
- **While it learns** ({learning}). Libraries of {pages} pages for each model: {libraries}; {requests} requests each,
  {shown} pages in random order, one or two legends among them (slid in *slid*), one question. `auto` answers on a store
  of its own, with a memory that knows nothing before the first request and is taught by nothing but what `auto`
  computes, under two policies: `pairs`, the default, and `Policy(recurring=True)`, which computes pages that come again
  after the same pages, in order to keep patches of exact lists. *rows*: computed before a fallback, over the prompt's.
  *eta*: of the answers that did not fall back. The memory alone is asked before each request, without being taught by
  it. Intervals: bootstrap by request.
- **Bars.** Those of the table below, set before the run; a flip recovery counts on {flips} flips or more."""
BY_ANTECEDENTS = "By the number of chunks before the last one (all items, `{task}` too):"
MARGIN_NOTE = (
    "May a first pass over pairs stand where it is sure? Wrong among the first answers whose margin is at least a "
    "threshold, over both settings and all items; complete memories, then the memory while it learns (under both "
    "policies, which see the same requests; all requests, and those after 60)."
)


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What is measured: items of each task, of which `compared` at equal bytes, and `many` of `MANY`, from a seed.

    Attributes:
        remark: what the page says of the run, such as why it is smaller than its protocol.
    """

    seed: int
    items: int
    many: int
    compared: int
    learning: LearningPlan
    remark: str = ""
    tasks: tuple[str, ...] = TASKS
    arms: tuple[str, ...] = ARMS

    def __post_init__(self) -> None:
        if not 1 <= self.compared <= self.items or self.many < 0 or self.seed < 0:
            asked = f"{self.items} items, {self.compared} of them compared, {self.many} large ones, seed {self.seed}"
            raise PromptError(f"{asked}: give one or more, compare no more than there are, seed 0 or more")

    def sources(self, names: Sequence[str]) -> list[TaskSource]:
        """Return tasks, with as many questions as are asked."""
        return [replace(source, most=MOST_QUESTIONS) for source in items_of(names)]

    def antecedents(self) -> dict[str, int]:
        """Return for each item the number of its pictures but one."""
        held = ((self.tasks, self.items), ((MANY,), self.many))
        return {
            item.id: len(item.media) - 1
            for names, count in held
            if count
            for source in self.sources(names)
            for item in source.first(self.seed, count)
        }

    def data(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {
            "seed": self.seed,
            "items": self.items,
            "many": self.many,
            "compared": self.compared,
            "tasks": list(self.tasks),
            "libraries": self.learning.libraries,
            "requests": self.learning.requests,
            "learning_settings": list(self.learning.settings),
            "remark": self.remark,
        }


def run(
    models: Sequence[str], plan: PairPlan, load: Callable[[str], Engine], listing: Path, screen: Console
) -> dict[str, Any]:
    """Measure, and write the figures after each model; records lie beside them, and a killed run goes on from these.

    Raises:
        EmblemaError: a task, a model or a place to write is not right.
    """
    writable_folder(listing.parent, "--json")
    kept: list[FidelityRecord] = []
    many: list[FidelityRecord] = []
    compared: list[FidelityRecord] = []
    served: list[LibraryRequests] = []
    with (
        RecordFile(listing.with_suffix(".records.jsonl"), FidelityRecord) as records,
        RecordFile(listing.with_suffix(".learning.jsonl"), LibraryRequests) as learning,
    ):
        for model, label in zip(models, labels_of(models), strict=True):
            with load(model) as engine:
                served += learnt(engine, label, plan.learning, learning)
                kept += _measured(engine, label, plan, plan.tasks, plan.items, plan.arms, records, screen)
                if plan.many:
                    many += _measured(engine, label, plan, (MANY,), plan.many, plan.arms, records, screen)
                compared += _measured(engine, label, plan, plan.tasks, plan.compared, COMPARED_ARMS, records, screen)
            rows = [row for row in rows_of(kept) if row["task"] == POOLED]
            at_bytes = [{**row, "task": COMPARED} for row in rows_of(compared) if row["task"] == POOLED]
            found = {
                "asked": plan.data(),
                "learning": stretches(served),
                "margins": margins(kept + many, served),
                "rows": uniform(_slim([*rows, *at_bytes, *by_antecedents(kept + many, plan.antecedents())])),
            }
            write_rows(found, listing)
    return read(listing)


def _measured(
    engine: Engine,
    label: str,
    plan: PairPlan,
    tasks: Sequence[str],
    items: int,
    arms: Iterable[str],
    records: RecordFile[FidelityRecord],
    screen: Console,
) -> list[FidelityRecord]:
    options = FidelityOptions(names_of(arms), SETTINGS, items, plan.seed)
    bench = FidelityRun(engine, label, options, records, basis_tasks=plan.sources(plan.tasks))
    bench.run(plan.sources(tasks), screen)
    if bench.refused:
        raise EmblemaError(f"{label} cannot be measured: {bench.refused}")
    return [records.held[key] for key in dict.fromkeys(bench.made)]


def _slim(rows: Iterable[FigureRow]) -> list[dict[str, Any]]:
    return [
        {
            name: {key: pair for key, pair in value.items() if key not in DROPPED} if name == "intervals" else value
            for name, value in row.items()
            if name not in DROPPED
        }
        for row in rows
    ]


def group_name(least: int, most: int) -> str:
    """Return what the rows of items with so many antecedents name as their task."""
    return f"{least} to {most} antecedents" if most > least else f"{least} antecedent"


def by_antecedents(records: Sequence[FidelityRecord], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return rows by the number of antecedents, of the strategies that all tasks were asked of."""
    found: list[dict[str, Any]] = []
    for least, most in ANTECEDENTS:
        own = [
            replace(record, task=group_name(least, most))
            for record in records
            if least <= counts[record.item] <= most and record.strategy in ARMS
        ]
        found += [row for row in rows_of(own) if row["task"] != POOLED]
    return found


def margins(records: Sequence[FidelityRecord], served: Sequence[LibraryRequests]) -> list[dict[str, Any]]:
    """Return how many first answers of a strategy are accepted by a margin, and how many of these are wrong."""
    full = {
        (record.model, record.setting, record.task, record.item): record.answers
        for record in records
        if record.strategy == FULL
    }
    answers: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for record in records:
        if record.strategy in ARMS and record.strategy != FULL:
            own = full[record.model, record.setting, record.task, record.item]
            answers.setdefault((record.model, record.strategy), []).extend(
                (margin, said == exact) for margin, said, exact in zip(record.margins, record.answers, own, strict=True)
            )
    for library in served:
        pairs = list(zip(library.pair_margin, map(bool, library.pair_agrees), strict=True))
        answers.setdefault((library.model, "pair, while it learns"), []).extend(pairs)
        answers.setdefault((library.model, "pair, after 60 requests"), []).extend(pairs[60:])
    return [
        {"model": model, "strategy": strategy, "margin": least, "n": len(held),
         "accepted": sum(margin >= least for margin, _ in held),
         "wrong": sum(margin >= least and not same for margin, same in held)}
        for (model, strategy), held in answers.items()
        for least in MARGINS
    ]  # fmt: skip


def read(listing: Path) -> dict[str, Any]:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file is not there, or is none of a run's.
    """
    return read_run(listing, "bench pairs", "tasks", ("rows", "learning"))


def bars(found: Mapping[str, Any], model: str, setting: str) -> tuple[Bar, ...]:
    """Return the bars of a model in a setting."""
    rows = found["rows"]
    held = [*strategy_bars(rows, model, setting, BARS)]
    own = {row["strategy"]: row for row in pooled(rows, model, setting)}
    if setting == "slid" and {"pair:exact", "pair:small"} <= own.keys():
        below = own["pair:exact"]["eta"] - own["pair:small"]["eta"]
        held.append(Bar("pair:small, eta below pair:exact", below, MOST_BELOW, least=False, count=own[PAIR]["n"]))
    held += [
        Bar(f"{row['strategy']}, how far below", row["eta_below_like"], 0.0, strict=True, count=row["n"])
        for row in rows
        if (row["model"], row["setting"], row["task"]) == (model, setting, COMPARED) and "@2x-" in row["strategy"]
    ]
    for policy in POLICIES:
        group = (model, setting, policy)
        lines = [row for row in found["learning"] if (row["model"], row["setting"], row["policy"]) == group]
        if lines:
            held += _learning_bars(lines, model, policy)
    return tuple(held)


def _learning_bars(lines: Sequence[FigureRow], model: str, policy: str) -> list[Bar]:
    last, count = lines[-1], sum(row["n"] for row in lines)
    worst = min(lines, key=lambda row: float(row["agreement"]))
    least = min(row["eta"] for row in lines if known(row["eta"]))
    most = LEARNT_BYTES.get(model, SHARED_LEARNT_BYTES)
    title = f"auto, policy {policy}"
    return [
        Bar(f"{title}: agreement, all requests", sum(row["agreement"] * row["n"] for row in lines) / count, 0.98,
            count=count),
        Bar(f"{title}: agreement, worst stretch ({worst['first']} to {worst['last']})", worst["agreement"], 0.98,
            count=worst["n"]),
        Bar(f"{title}: eta, worst stretch", least, 0.0, count=count),
        Bar(f"{title}: rows after {last['first'] - 1} requests", last["rows"], 0.12, least=False, count=last["n"]),
        Bar(f"{title}: learnt bytes", last["learnt"], most, least=False, count=count),
    ]  # fmt: skip


def page(found: Mapping[str, Any]) -> str:
    """Return the page of a run as Markdown."""
    asked, rows = found["asked"], found["rows"]
    told = PROTOCOL.format(
        **{**asked, "tasks": ", ".join(f"`{task}`" for task in asked["tasks"])},
        learning=" and ".join(asked["learning_settings"]), most=MOST_QUESTIONS,
        margin=LEAST_MARGIN, many_task=MANY, served=SERVED, basis=BASIS_ITEMS, heads=SMALL_SHARES["heads"],
        latent=SMALL_SHARES["latent"], pool=POOLED_ITEMS, pages=PAGES, shown=SHOWN, flips=FLIPS,
    )  # fmt: skip
    parts = ["# The memory of pairs", told, asked["remark"]]
    groups = list(dict.fromkeys((row["model"], row["setting"]) for row in rows if row["task"] == POOLED))
    groups.sort(key=lambda group: SETTINGS.index(group[1]), reverse=True)
    if groups:
        made = found["environment"]
        held = [(f"{model}, {setting}", bars(found, model, setting)) for model, setting in groups]
        missed = sum(not bar.holds for _, each in held for bar in each)
        where = f"emblema {made['emblema']}, torch {made['torch']}, {made['device']}, {made['date']}"
        parts += [
            "## Bars",
            f"{sum(len(each) for _, each in held)} bars, {missed} missed. Measured with {where}, on a shared machine.",
            bars_markdown(held),
            "## Beside other methods",
            _answer(found, groups),
            _compared(rows, groups),
            f"![eta by bytes]({PLOT})",
            "## While it learns",
            _learning_table(found["learning"]),
            f"![by requests seen]({CURVE})",
            "## A first pass alone, by its margin",
            MARGIN_NOTE,
            _margin_table(found["margins"]),
        ]
        for model, setting in groups:
            own = pooled(rows, model, setting)
            parts += [
                f"## {model}, {setting}",
                f"{own[0]['n']} questions of {own[0]['items']} items, {own[0]['flips']} of them flips. Re-prefill is "
                f"right in {number(own[0]['accuracy'])}, and unsure in {number(own[0]['unsure'])}.",
                markdown_table(COLUMNS, [strategy_line(row) for row in own]),
                BY_ANTECEDENTS.format(task=MANY),
                _antecedent_table(rows, model, setting),
            ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(found: Mapping[str, Any], groups: Sequence[tuple[str, str]]) -> str:
    """Return in words, with the run's numbers, whether pairs and a second pass can stand for patches of exact lists."""
    rows = {(row["model"], row["setting"], row["strategy"]): row for row in found["rows"] if row["task"] == COMPARED}

    def span(strategy: str, figure: str = "eta") -> str:
        held = [row[figure] for group in groups if (row := rows.get((*group, strategy))) and known(row[figure])]
        return f"{number(min(held))} to {number(max(held))}" if held else "–"

    said = [
        f"Can memory + QUERY 3 % stand for patches of exact lists? At the bytes that the memory holds "
        f"({span(PAIR, 'kv_bytes_share')} of the KV for all pairs of an item), a patch formed for the very list has "
        f"eta {span('patch@bytes-of-pair')}, an orbit patch {span('orbit@bytes-of-pair')}, `basis` "
        f"{span('basis@bytes-of-pair')}, pairs alone {span(PAIR)}, and `{SERVED}` {span(SERVED)}, which computes "
        f"{span(SERVED, 'rows_computed_share')} of the rows, the others {span(PAIR, 'rows_computed_share')}. "
        f"With 25 % of the KV for one list a patch has {span('patch@25%')}."
    ]
    last = {
        (row["model"], row["setting"], row["policy"]): row
        for row in found["learning"]
        if row["last"] == max(each["last"] for each in found["learning"])
    }
    for policy in POLICIES:
        held = [row for (_, _, own), row in last.items() if own == policy]
        if held:
            low, high = min(row["rows"] for row in held), max(row["rows"] for row in held)
            agrees = min(row["agreement"] for row in held)
            said.append(
                f"In the last stretch of requests policy `{policy}` computes {number(low)} to {number(high)} of the "
                f"rows and agrees with re-prefill in at least {number(agrees)}."
            )
    return " ".join(said)


def _compared(rows: Sequence[FigureRow], groups: Sequence[tuple[str, str]]) -> str:
    head = ("", "strategy", "bytes over KV", "rows computed", "eta", "flips restored", "agreement", "how far below")
    lines: list[tuple[str, ...]] = []
    for model, setting in groups:
        lines += [
            (f"{model}, {setting}", f"`{row['strategy']}`", number(row["kv_bytes_share"]),
             number(row["rows_computed_share"]), ranged(row, "eta"), flips(row), number(row["agreement"]),
             ranged(row, "eta_below_like") if known(row.get("eta_below_like")) else "")
            for row in rows
            if (row["model"], row["setting"], row["task"]) == (model, setting, COMPARED)
            and row["strategy"] not in (FULL, BLIND)
        ]  # fmt: skip
    return markdown_table(head, lines, (0, 1))


def _learning_table(learning: Sequence[FigureRow]) -> str:
    head = ("", "policy", "requests", "pairs met before", "rows", "agreement", "wrong, accepted", "fallbacks", "eta",
            "memory alone: eta", "agreement", "learnt bytes")  # fmt: skip
    lines = [
        (f"{row['model']}, {row['setting']}", row["policy"], f"{row['first']} to {row['last']}", number(row["known"]),
         ranged(row, "rows"), number(row["agreement"]), number(row["wrong_accepted"]), number(row["fallbacks"]),
         number(row["eta"]), number(row["pair_eta"]), number(row["pair_agreement"]), number(row["learnt"], 4))
        for row in learning
    ]  # fmt: skip
    return markdown_table(head, lines, (0, 1))


def _margin_table(found: Sequence[Mapping[str, Any]]) -> str:
    head = ("model", "strategy", *(f"{least:g}" for least in MARGINS))
    groups: dict[tuple[str, str], list[str]] = {}
    for row in found:
        cells = groups.setdefault((row["model"], row["strategy"]), [])
        cells.append(f"{row['wrong']} of {row['accepted']}")
    return markdown_table(head, [(model, f"`{name}`", *cells) for (model, name), cells in groups.items()], (0, 1))


def _antecedent_table(rows: Sequence[FigureRow], model: str, setting: str) -> str:
    head = ("", "n", "strategy", "rows computed", "eta", "flips restored", "agreement")
    lines = [
        (row["task"], str(row["n"]), f"`{row['strategy']}`", number(row["rows_computed_share"]), ranged(row, "eta"),
         flips(row), number(row["agreement"]))
        for row in rows
        if (row["model"], row["setting"]) == (model, setting) and row["task"] not in (POOLED, COMPARED)
        and row["strategy"] not in (FULL, BLIND)
    ]  # fmt: skip
    return markdown_table(head, lines, (0, 2))


def write_page(listing: Path) -> Path:
    """Write the page of a run beside its figures, and its plots."""
    found = read(listing)
    draw_bytes(
        [
            row
            for row in found["rows"]
            if row["task"] == COMPARED and "@2x-" not in row["strategy"] and row["strategy"] not in WIDER
        ],
        listing.parent / PLOT,
    )
    draw_learning(found["learning"], listing.parent / CURVE)
    return write_parts([page(found).rstrip("\n")], listing.with_suffix(".md"))


def check_page(listing: Path) -> None:
    """Hold the page to its figures.

    Raises:
        EmblemaError: it is not what they make.
    """
    check_written(listing.with_suffix(".md"), page(read(listing)))
