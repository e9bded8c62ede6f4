"""The report: figures of every model as Markdown tables beside what the papers state, with plots, and as plain data."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, SINGLE, SLID, VISIBLE, AnswerRow
from benchmarks.deficit.findings import correlations, findings, setting_of, slot_label
from benchmarks.deficit.measure import DeficitResult
from benchmarks.deficit.plots import draw
from benchmarks.deficit.rank import SLOTS
from benchmarks.intervals import Interval
from benchmarks.report import write_parts
from benchmarks.table import markdown_table

INTERVALS = (
    "Intervals: 95 %, bootstrap by episode (whole items). KL in nats from re-prefill at the answer; eta = 1 - KL "
    "/ KL of blind reuse, its median over items with a measurable deficit in brackets; flips: of the answers that "
    "blind reuse changed, the share restored."
)
ISOLATION = (
    "`blocked`: the chunk at its own positions, blind to its antecedents alone. `unblocked`: the mask's path with "
    "nothing hidden. `moved`: conditioned 1,000 positions further on and relocated. `filler`: conditioned on "
    "neutral filler in the antecedents' places. `raw`: blind and not relocated. The position-matched control is "
    "the KL of blind reuse from `blocked`: neither has the antecedents, one was made in place and one moved "
    "there; what they differ by is position and the text in front. Kamera: the control lies 10 to 320 times below "
    "the loss; filler leaves the full deficit."
)
RANK = (
    "Directions that hold 90 % of the deficit's energy (e90), then the KL by rank of the patch. Kamera: the KL "
    "knees at 8 to 16 and is flat by 32; e90 over tokens is at most 0.30 on V and lower on the keys of GQA; rank "
    "64 closes 85 to 96 % per item."
)
DEPTH = (
    "Relative norms by layer; `explained`: of the last layer's deficit, by conditioning injected into the "
    "residual stream that enters a layer. Kamera: 0.08 to 0.49 from shallow to deep; 27 % explained shallow, 97 % "
    "deep; re-prefill has to run 86 to 89 % of the layers again to match the patch; half the layers' factors keep "
    "95 %."
)
SPREAD = (
    "Shares that hold 90 % of the deficit's energy, then what true rows for some tokens or cells recover. "
    "`again`: computed in context among canonical rows. Kamera: an oracle needs about half of the tokens, a "
    "first-k carve recovers nothing, 51 % of the cells hold 90 %; a latent patch alone leaves about 8 times the "
    "floor."
)
LINK = (
    "Attention from the chunk's rows to its antecedents' keys in the conditioned forward. Kamera: about 25 "
    "landmark keys carry 90 %."
)
SHARED = (
    "Held-out items, as coefficients on directions pooled over other items of this task, or carried from another. "
    "Kamera: a pooled basis recovers as much as the item's own, and transfers."
)
CHEAP = (
    "Kamera: the sink, a linear operator for each antecedent, key similarity and a predictor from shallow layers "
    "all fail; the best selector, attention mass, has a recall of 0.70; the deficit goes against motion, not with "
    "similarity. Here the operator learns from other chunks after the same antecedents, which costs up to six "
    "conditioned forwards, and the predictor from the teaching half; both are tried on held-out items. `true "
    "shallow only` is what the predictor starts from."
)
INSIGHTS = (
    "The chunk alone with the question, as in the paper. MPIC: under 5 % of the tokens get more than 1e-3; the "
    "first 43 % hold about 80 %; the keys that move most stand at the beginning."
)
ROUNDING = (
    "Rows rounded to bf16 against re-prefill's: root mean square, and the share within one unit; `relocation`: "
    "the largest error of relocation alone. Kamera: within one ULP."
)
ONE_WIDTH = (
    "All models here keep the same numbers a token and layer: whether the plateau follows the width cannot be "
    "said from them."
)
ONE_KIND = "No dense model stands beside one with experts here."

Section = Callable[[DeficitResult, str], list[str]]
"""Parts of the page for one model in one setting."""


def answers(result: DeficitResult, setting: str, hop: str, names: Sequence[str] | None = None) -> str:
    """Return a table with a line for each way to give the chunk its KV; empty if none was asked."""
    kept = [result.log.row(name, setting, hop) for name in names or result.log.names(setting, hop)]
    head = (f"{setting}, {hop}", "n", "KL", "eta (median)", "flips", "agreement", "accuracy")
    return _table(head, [_answer(row) for row in kept if row is not None])


def _answer(row: AnswerRow) -> tuple[str, ...]:
    median = f" ({row.eta_median.value:.2f})" if row.eta_median.count else ""
    accuracy = "" if row.accuracy is None else str(row.accuracy)
    eta = "" if row.name == FULL else f"{row.eta}{median}"
    return (row.name, str(row.n), _small(row.kl), eta, str(row.flips), str(row.agreement), accuracy)


def isolation(result: DeficitResult, setting: str) -> list[str]:
    """Return the loss by the mask, and its controls."""
    names = (FULL, "unblocked", "moved", BLIND, "raw", "blocked", "filler")
    parts, rows = ["### Isolation by the mask", ISOLATION], []
    for here in dict.fromkeys((setting, VISIBLE)):
        for hop in (MULTI, SINGLE):
            parts.append(answers(result, here, hop, names))
            loss = result.log.row("blocked", here, hop)
            control = result.log.estimate(f"control kl/{here}, {hop}")
            if loss is not None and control is not None:
                ratio = loss.kl.value / control.value if control.value else float("inf")
                rows.append((f"{here}, {hop}", str(control.n), _small(loss.kl), str(control), f"{ratio:.3g}"))
    return [*parts, _table(("", "n", "loss KL", "control KL", "times"), rows)]


def rank(result: DeficitResult, setting: str) -> list[str]:
    """Return energy rank by layer, KL by rank, and the plateau."""
    layers = [*map(str, range(result.model.layers)), "largest"]
    rows = _by_layer(result, layers, [f"{name}/{slot}" for slot in SLOTS for name in ("e90", "e90 per token")])
    labels = [slot_label(result, slot) for slot in SLOTS]
    head = ("layer", *(f"{name} {label}" for label in labels for name in ("e90", "e90 / tokens")))
    names = [BLIND, *_starting(result, setting, "rank/")]
    return ["### Rank", RANK, _table(head, rows), answers(result, setting, MULTI, names),
            _found(result, setting, "plateau")]  # fmt: skip


def depth(result: DeficitResult, setting: str) -> list[str]:
    """Return norms by layer, single layers, depth budget, partial re-prefill."""
    layers = list(map(str, range(result.model.layers)))
    names = [f"{name}/{slot}" for slot in SLOTS for name in ("deficit", "position")]
    rows = _by_layer(result, layers, [*names, "injected"])
    labels = [slot_label(result, slot) for slot in SLOTS]
    head = ("layer", *(f"{label}, {name}" for label in labels for name in ("deficit", "position")), "explained")
    ways = _starting(result, setting, "only layer/", "deepest/", "shallowest/", "reprefill/", "reprefill shallow/")
    return ["### Depth", DEPTH, _table(head, rows), answers(result, setting, MULTI, ways),
            _found(result, setting, "depth", "re-prefill")]  # fmt: skip


def spread(result: DeficitResult, setting: str) -> list[str]:
    """Return tokens, heads, slots."""
    stems = ("oracle tokens/", "first tokens/", "oracle again/", "first again/", "oracle heads/")
    ways = [name for name in result.log.names(setting, MULTI) if name.startswith(stems) or " only/" in name]
    return ["### Tokens, heads and slots", SPREAD,
            _figures(result, ("90 % of the energy", "share", "n"), "energy share/"),
            answers(result, setting, MULTI, ways), _found(result, setting, "tokens", "heads")]  # fmt: skip


def links(result: DeficitResult, setting: str) -> list[str]:
    """Return landmark keys by layer."""
    layers = list(map(str, range(result.model.layers)))
    rows = _by_layer(result, layers, ["landmarks", "landmarks per key", "link rank", "link mass"])
    head = ("layer", "keys with 90 %", "share of keys", "directions with 90 %", "of all attention")
    total = f"Antecedent keys: {result.log.estimate('antecedent keys')}."
    return ["### The link from antecedents to the chunk", LINK, total, _table(head, rows)]


def estimates(result: DeficitResult, setting: str) -> list[str]:
    """Return shared bases, negatives, cheap selectors."""
    names = [name for name in result.log.names(setting, MULTI) if " basis/" in name]
    own = dict.fromkeys(f"rank/{name.rsplit('/', 1)[1]}" for name in names)
    negatives = ["sink", "true shallow only", "shallow seed", "linear operator"]
    together = [(name, str(interval), str(n)) for name, (interval, n) in correlations(result).items()]
    head = ("recall of the largest quarter; energy explained", "share", "n")
    return ["### Shared directions", SHARED, answers(result, setting, MULTI, [*own, *names]),
            "### Cheap estimates", CHEAP, answers(result, setting, MULTI, negatives),
            answers(result, setting, MULTI, _starting(result, setting, "selector/")),
            _figures(result, head, "recall/", "explained/"),
            _table(("rank correlation with the deficit's size", "over chunks", "n"), together)]  # fmt: skip


def mpic(result: DeficitResult, setting: str) -> list[str]:
    """Return MPIC's insights and the errors in ULP."""
    head = ("figure", "mean", "n")
    return ["### MPIC's insights", INSIGHTS, _figures(result, head, "attention ", "tokens for", "moved most"),
            "### Errors in bf16 ULP", ROUNDING,
            _figures(result, head, "ulp/", "within one ulp/", "relocation/")]  # fmt: skip


SECTIONS: tuple[Section, ...] = (isolation, rank, depth, spread, links, estimates, mpic)


def side_by_side(results: Sequence[DeficitResult]) -> list[str]:
    """Return models in one table, and what a set of them cannot say."""
    rows = []
    for result in results:
        setting, model = setting_of(result), result.model
        chosen = {finding.name: str(finding) for finding in findings(result, setting)}
        loss = result.log.row("blocked", setting, MULTI)
        patched = result.log.row("rank/64", setting, MULTI) or result.log.row("rank/full", setting, MULTI)
        rows.append((
            model.name + ("" if result.binds else " (untrained)"), model.kind, "+".join(map(str, model.widths)),
            "MoE" if model.experts else "dense", setting, "" if loss is None else _small(loss.kl),
            "" if patched is None else str(patched.eta), chosen.get("plateau", ""), chosen.get("depth budget", ""),
            chosen.get("re-prefill to match rank/64", chosen.get("re-prefill to match rank/16", "")),
        ))  # fmt: skip
    head = ("model", "cache", "width", "", "setting", "loss KL", "eta, rank 64", "plateau", "deep layers",
            "re-prefill layers")  # fmt: skip
    one_width = len({sum(result.model.widths) for result in results}) == 1
    one_kind = len({bool(result.model.experts) for result in results}) == 1
    return ["## Side by side", _table(head, rows), ONE_WIDTH if one_width else "", ONE_KIND if one_kind else ""]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, rows) if rows else ""


def _by_layer(result: DeficitResult, layers: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return a line for each layer that has one of the figures `name/layer`."""
    rows = [[layer, *(str(result.log.estimate(f"{name}/{layer}") or "") for name in names)] for layer in layers]
    return [row for row in rows if any(row[1:])]


def _starting(result: DeficitResult, setting: str, *stems: str) -> list[str]:
    return [name for name in result.log.names(setting, MULTI) if name.startswith(stems)]


def _figures(result: DeficitResult, head: Sequence[str], *stems: str) -> str:
    named = {name: result.log.estimate(name) for name in result.log.values if name.startswith(stems)}
    return _table(head, [(name, str(found), str(found.n)) for name, found in named.items() if found is not None])


def _found(result: DeficitResult, setting: str, *stems: str) -> str:
    found = [finding for finding in findings(result, setting) if finding.name.startswith(stems)]
    rows = [(finding.name, str(finding), str(finding.n), finding.rule) for finding in found]
    return _table(("found", "value", "n", "rule"), rows)


def _small(interval: Interval) -> str:
    return f"{interval.value:.2g} [{interval.low:.2g}, {interval.high:.2g}]"


def write(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Write the plots and `deficit.md` into a folder; returns the page's path."""
    drawn = draw(results, folder)
    parts = ["# The conditioning deficit, measured", INTERVALS, *side_by_side(results)]
    parts += [f"![{path.stem}]({path.name})" for path in drawn if path.stem.count("-") == 1]
    for result in results:
        if not result.binds:
            continue
        setting = setting_of(result)
        parts += [f"## {result.model.name}", described(result)]
        parts += [part for section in SECTIONS for part in section(result, setting)]
        own = [path for path in drawn if path.stem.endswith(f"-{result.model.name}")]
        parts += [f"![{path.stem}]({path.name})" for path in own]
        parts.append("### Every way, every setting")
        parts += [answers(result, here, hop) for here in (SLID, VISIBLE) for hop in (MULTI, SINGLE)]
    return write_parts(parts, folder / "deficit.md")


def described(result: DeficitResult) -> str:
    """Return a sentence on what was measured."""
    model = result.model
    experts = f"{model.experts} experts" if model.experts else "dense"
    left = f"; {result.left_out} items had no chunk after another" if result.left_out else ""
    return (
        f"{model.family}, {model.layers} layers, {model.kind} cache of {model.widths[0]} + {model.widths[1]} numbers a "
        f"token and layer, {experts}; rotary: {model.rotary}. {result.wanted.items} items of {result.wanted.task}, "
        f"seed {result.wanted.seed}; basis carried from {result.wanted.carried}{left}."
    )


def data(results: Sequence[DeficitResult]) -> dict[str, Any]:
    """Return every figure with its interval and number, as plain data."""
    return {"models": [_data(result) for result in results]}


def _data(result: DeficitResult) -> dict[str, Any]:
    log, wanted = result.log, result.wanted
    asked = [(setting, hop) for setting in (SLID, VISIBLE) for hop in (MULTI, SINGLE)]
    rows = [log.row(name, *place) for place in asked for name in log.names(*place)]
    figures = {name: log.estimate(name) for name in log.values}
    return {
        "model": asdict(result.model),
        "binds": result.binds,
        "task": wanted.task,
        "carried": wanted.carried,
        "seed": wanted.seed,
        "items": wanted.items,
        "left_out": result.left_out,
        "rows": [asdict(row) for row in rows if row is not None],
        "figures": {name: asdict(found) for name, found in figures.items() if found is not None},
        "found": {setting: [asdict(finding) for finding in findings(result, setting)] for setting in (SLID, VISIBLE)},
        "correlations": {name: {**asdict(interval), "n": n} for name, (interval, n) in correlations(result).items()},
    }
