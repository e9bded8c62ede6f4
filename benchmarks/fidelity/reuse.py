"""`python -m benchmarks reuse`: reuse of rows that were never seen together, held to its bars, and its page.

Strategies that choose rows by the question (`query-R%`) or put patches together (`pair`), beside methods that recompute
tokens at twice the rows. Figures are those of `fidelity.summary`, over all tasks together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.arms import BLIND, FULL, names_of
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, TaskSource, items_of, measure_models
from benchmarks.fidelity.plots import draw_rows
from benchmarks.fidelity.summary import POOLED, rows_of
from benchmarks.fidelity.tables import FLIPS, FigureRow, flips, known, number, ranged
from benchmarks.report import check_written, read_run, writable_folder, write_parts
from benchmarks.rowfile import write_rows
from benchmarks.table import Bar, bars_markdown, markdown_table
from benchmarks.tasks.prompts import SETTINGS
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.link.policy.margins import DEFAULT as LEAST_MARGIN

TASKS = ("maps", "two-page", "album-binding", "retrieval-image", "reasoning-image")
"""Two to five pictures, and documents of six to eleven; where legends slide, blind reuse changes many answers."""
MODELS = ("reference", "reference-mha", "reference-mla", "reference-deepstack")
MOST_QUESTIONS = 6
RIVALS = ("mpic", "epic", "cacheblend", "vlcache")
QUERY = "query-12%"
ARMS = (
    FULL, BLIND, "query-3%", "query-6%", QUERY, "query-25%",
    *(f"{rival}@2x-{QUERY}" for rival in RIVALS),
    *(f"{rival}@{share}%" for rival in ("mpic", "cacheblend", "vlcache") for share in (6, 25)),
)  # fmt: skip
PLOT = "rows.png"
PROTOCOL = """## Protocol

Written before the run; the seed was drawn once at random, nothing was measured on it before, and nothing was changed
after it.

- **Items.** {items} fresh items of each of {tasks}: two to five pictures, and documents of six to eleven with text in
  between. Of each item at most {most} questions, drawn at random by the item's name. Seed {seed}. Every model is asked
  the same.
- **Settings.** *slid*: the legends (and other antecedents) conditioned the chunks and are hidden from the question;
  *visible*: nothing is hidden.
- **Against.** Re-prefill in the same setting. KL is taken at the answer's first token; an answer agrees where all its
  greedy tokens are re-prefill's. eta is 1 − sum of KL / sum of KL of blind reuse. A flip is an answer that blind reuse
  changes; it is restored where the method gives re-prefill's. Intervals: 95 %, bootstrap by item.
- **Of the method itself.** eta, flips and agreement are without the fallback: nothing is computed in full.
- **Certificate.** An answer is accepted where the probabilities of its two likeliest first tokens differ by {margin}
  or more; below, the prompt would be computed in full (a *fallback*). *Wrong* is an accepted answer that is not
  re-prefill's. Re-prefill's own unsure share is the same margin, asked of re-prefill.
- **Rows computed.** Over the prompt's rows, in layers: text and question in both passes, chosen rows, slid chunks where
  a method computes them. With fallbacks: one more prompt for every fallback.
- **Rivals.** `mpic`, `epic`, `cacheblend` and `vlcache` with the smallest knob that computes at least twice the rows of
  `{query}` on the same prompt (without fallbacks); the lead is paired, question by question. They compute slid chunks
  too. In one forward `mpic` and `epic` choose the same rows.
- **Bars.** Those of the table below, set before the run; a flip recovery counts on {flips} flips or more."""
RIVALS_NOTE = (
    "`cacheblend` runs all rows through its two check layers, which is already about twice the rows in models of five "
    "layers, so that hardly a row is left to choose; `cacheblend@25%` has a quarter of the rows chosen, for more."
)
COLUMNS = ("strategy", "rows computed", "eta", "flips restored", "agreement", "multi-hop", "wrong, accepted",
           "fallbacks", "rows with fallbacks", "agreement with fallbacks")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReuseBar:
    """A bound for a strategy in a setting.

    Attributes:
        figure: a figure of the strategy's row, or `above_full`: its fallbacks less re-prefill's own unsure share.
        lower: whether the interval's lower end has to hold it, not the estimate.
        models: those that it is for; all of them without any.
    """

    strategy: str
    setting: str
    figure: str
    bound: float
    least: bool = True
    lower: bool = False
    models: tuple[str, ...] = ()


BARS = (
    ReuseBar(QUERY, "slid", "eta", 0.98),
    ReuseBar(QUERY, "slid", "eta", 0.96, lower=True),
    ReuseBar(QUERY, "slid", "flip_recovery", 0.94),
    ReuseBar(QUERY, "slid", "agreement", 0.97),
    ReuseBar(QUERY, "slid", "wrong_accepted", 0.01, least=False),
    ReuseBar(QUERY, "slid", "unsure", 0.17, least=False),
    ReuseBar(QUERY, "slid", "above_full", 0.02, least=False),
    ReuseBar(QUERY, "slid", "rows_with_fallbacks", 0.36, least=False),
    ReuseBar(QUERY, "visible", "eta", 0.99),
    ReuseBar(QUERY, "visible", "wrong_accepted", 0.005, least=False),
    ReuseBar(QUERY, "visible", "unsure", 0.12, least=False),
)
WORDS = {
    "flip_recovery": "flips restored",
    "wrong_accepted": "wrong among accepted",
    "unsure": "fallbacks",
    "above_full": "fallbacks above re-prefill's unsure share",
    "rows_with_fallbacks": "rows with fallbacks",
}


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """What is measured: items of each task, from a seed, in both settings under some strategies."""

    seed: int
    items: int
    tasks: tuple[str, ...] = TASKS
    strategies: tuple[str, ...] = ARMS
    most: int = MOST_QUESTIONS

    def __post_init__(self) -> None:
        if self.items < 1 or self.most < 1 or self.seed < 0:
            raise PromptError(f"{self.items} items, {self.most} questions, seed {self.seed}: give 1, 1, 0 or more")

    def sources(self) -> list[TaskSource]:
        """Return the tasks, with as many questions as are asked."""
        return [replace(source, most=self.most) for source in items_of(self.tasks)]

    def data(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {"seed": self.seed, "items": self.items, "tasks": list(self.tasks), "most": self.most}


def run(
    models: Sequence[str], plan: ReusePlan, load: Callable[[str], Engine], listing: Path, screen: Console
) -> dict[str, Any]:
    """Measure, and write the figures; records lie beside them, and a killed run goes on from these.

    Raises:
        EmblemaError: a task, a model or a place to write is not right.
    """
    writable_folder(listing.parent, "--json")
    options = FidelityOptions(names_of(plan.strategies), SETTINGS, plan.items, plan.seed)
    kept, refused = measure_models(models, load, options, plan.sources(), listing, screen)
    found = {"asked": plan.data(), "refused": refused, "rows": figures(kept, plan)}
    write_rows(found, listing)
    return read(listing)


def figures(records: Sequence[FidelityRecord], plan: ReusePlan) -> list[dict[str, Any]]:
    """Return rows of all records: over all tasks, by task, and by kind of question, whose rows name it as the task."""
    asked = {
        item.id: [question.kind for question in item.questions]
        for source in plan.sources()
        for item in source.first(plan.seed, plan.items)
    }
    of_kinds = []
    for record in records:
        for kind in dict.fromkeys(asked[record.item]):
            places = [place for place, own in enumerate(asked[record.item]) if own == kind]
            of_kinds.append(replace(record.only(places), task=f"*{kind}* questions"))
    return [*rows_of(records), *(row for row in rows_of(of_kinds) if row["task"] != POOLED)]


def read(listing: Path) -> dict[str, Any]:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file is not there, or is none of a run's.
    """
    return read_run(listing, "bench reuse", "tasks")


def bars(rows: Sequence[FigureRow], model: str, setting: str, wanted: Sequence[ReuseBar] = BARS) -> tuple[Bar, ...]:
    """Return the bars of a model in a setting, of the strategies that were measured there."""
    own = {row["strategy"]: row for row in pooled(rows, model, setting)}
    held = []
    for bar in wanted:
        row = own.get(bar.strategy)
        if row is None or bar.setting != setting or (bar.models and model not in bar.models):
            continue
        value = _figure(row, own[FULL], bar)
        count = row["flips"] if bar.figure == "flip_recovery" else row["n"]
        words = WORDS.get(bar.figure, bar.figure) + (", lower bound" if bar.lower else "")
        held.append(Bar(f"{bar.strategy}, {words}", value, bar.bound, least=bar.least, count=count))
    held += [
        Bar(f"{row['strategy']}, how far below", row["eta_below_like"], 0.0, strict=True, count=row["n"])
        for row in own.values()
        if known(row.get("eta_below_like")) and row["strategy"].partition("@")[0] in RIVALS
    ]
    return tuple(held)


def _figure(row: FigureRow, full: FigureRow, bar: ReuseBar) -> float | None:
    if bar.figure == "flip_recovery" and row["flips"] < FLIPS:
        return None
    if bar.figure == "above_full":
        return float(row["unsure"] - full["unsure"])
    if not known(row.get(bar.figure)):
        return None
    return float(row["intervals"][bar.figure][0] if bar.lower else row[bar.figure])


def page(found: Mapping[str, Any]) -> str:
    """Return the page of a run as Markdown."""
    asked, rows = found["asked"], found["rows"]
    made = found["environment"]
    told = PROTOCOL.format(
        items=asked["items"], tasks=", ".join(f"`{task}`" for task in asked["tasks"]), most=asked["most"],
        seed=asked["seed"], margin=LEAST_MARGIN, query=QUERY, flips=FLIPS,
    )  # fmt: skip
    parts = ["# Reuse in any combination", told]
    groups = list(dict.fromkeys((row["model"], row["setting"]) for row in rows if row["task"] == POOLED))
    groups.sort(key=lambda group: SETTINGS.index(group[1]), reverse=True)
    if groups:
        held = [(f"{model}, {setting}", bars(rows, model, setting)) for model, setting in groups]
        missed = sum(not bar.holds for _, each in held for bar in each)
        where = f"emblema {made['emblema']}, torch {made['torch']}, {made['device']}, {made['date']}"
        parts += [
            "## Bars",
            f"{sum(len(each) for _, each in held)} bars, {missed} missed. Measured with {where}.",
            bars_markdown(held),
            f"What the rows and fallbacks of `{QUERY}` are made of:",
            _parts(rows, groups),
            "## Rows computed, and what they close",
            f"![eta by share of the rows that are computed]({PLOT})",
        ]
        for model, setting in groups:
            own = pooled(rows, model, setting)
            parts += [
                f"## {model}, {setting}",
                f"{own[0]['n']} questions of {own[0]['items']} items, {own[0]['flips']} of them flips. Re-prefill is "
                f"right in {number(own[0]['accuracy'])}, and unsure in {number(own[0]['unsure'])}.",
                markdown_table(COLUMNS, [strategy_line(row) for row in own]),
                _rivals(own),
                "By task and by kind of question; every figure but re-prefill's and blind reuse's accuracy is of "
                f"`{QUERY}`:",
                _by_task(rows, model, setting),
            ]
    if found.get("refused"):
        parts += ["## Left out", "\n".join(f"- {name}: {reason}" for name, reason in found["refused"].items())]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_page(listing: Path) -> Path:
    """Write the page of a run beside its figures, and its plot."""
    found = read(listing)
    draw_rows([row for row in found["rows"] if row["task"] == POOLED], listing.parent / PLOT)
    return write_parts([page(found).rstrip("\n")], listing.with_suffix(".md"))


def check_page(listing: Path) -> None:
    """Hold the page to its figures.

    Raises:
        EmblemaError: it is not what they make.
    """
    check_written(listing.with_suffix(".md"), page(read(listing)))


def pooled(rows: Sequence[FigureRow], model: str, setting: str) -> list[FigureRow]:
    """Return the rows of a model and setting that are over all tasks together."""
    return [row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, POOLED)]


def strategy_line(row: FigureRow) -> tuple[str, ...]:
    """Return a line of a table under `COLUMNS`."""
    reused, accepted = row["strategy"] not in (FULL, BLIND), round(row["n"] * (1 - row["unsure"]))
    return (
        f"`{row['strategy']}`",
        number(row["rows_computed_share"]),
        ranged(row, "eta") if reused else "",
        flips(row) if reused else "",
        number(row["agreement"]) if row["strategy"] != FULL else "",
        number(row["multi_hop_accuracy"]),
        f"{ranged(row, 'wrong_accepted')} of {accepted}" if row["strategy"] != FULL else "",
        number(row["unsure"]),
        number(row["rows_with_fallbacks"]) if reused else "",
        number(row["agreement_with_fallbacks"]) if reused else "",
    )


def _parts(rows: Sequence[FigureRow], groups: Sequence[tuple[str, str]]) -> str:
    """Return a line for each model and setting: which rows are computed, and which fallbacks any method would have."""
    head = ("", "text", "question again, and chosen", "fallbacks", "rows with fallbacks", "re-prefill unsure",
            "fallbacks that agreed already")  # fmt: skip
    lines = []
    for model, setting in groups:
        own = {row["strategy"]: row for row in pooled(rows, model, setting)}
        if QUERY not in own:
            continue
        full, blind, query = own[FULL], own[BLIND], own[QUERY]
        stood = (1 - query["unsure"]) * (1 - (query["wrong_accepted"] or 0.0))
        agreed = (query["agreement"] - stood) / query["unsure"] if query["unsure"] else None
        again = query["rows_computed_share"] - blind["rows_computed_share"]
        lines.append(
            (f"{model}, {setting}", number(blind["rows_computed_share"]), number(again), number(query["unsure"]),
             number(query["rows_with_fallbacks"]), number(full["unsure"]), number(agreed))
        )  # fmt: skip
    return markdown_table(head, lines)


def _rivals(rows: Sequence[FigureRow]) -> str:
    lines = [
        (f"`{row['strategy']}`", number(row["rows_computed_share"]), ranged(row, "eta"), ranged(row, "eta_below_like"))
        for row in rows
        if known(row.get("eta_below_like"))
    ]
    head = ("at a multiple of the rows", "rows computed", "its eta", "how far below")
    return f"{markdown_table(head, lines)}\n\n{RIVALS_NOTE}" if lines else ""


def _by_task(rows: Sequence[FigureRow], model: str, setting: str) -> str:
    head = ("task", "n", "re-prefill", "blind", "accuracy", "eta", "flips restored", "wrong, accepted", "fallbacks",
            "re-prefill unsure", "rows computed")  # fmt: skip
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows if row["task"] != POOLED):
        own = {row["strategy"]: row for row in rows
               if (row["model"], row["setting"], row["task"]) == (model, setting, task)}  # fmt: skip
        query = own.get(QUERY)
        if query is not None:
            lines.append(
                (task, str(query["n"]), number(own[FULL]["accuracy"]), number(own[BLIND]["accuracy"]),
                 number(query["accuracy"]), ranged(query, "eta"), flips(query), number(query["wrong_accepted"]),
                 number(query["unsure"]), number(own[FULL]["unsure"]), number(query["rows_computed_share"]))
            )  # fmt: skip
    return markdown_table(head, lines) if lines else ""
