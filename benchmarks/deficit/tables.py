"""The report's tables, each beside what the paper states about the same."""

from collections.abc import Callable, Sequence

from benchmarks.deficit import prose
from benchmarks.deficit.answerlog import BLIND, MULTI, SINGLE, VISIBLE, AnswerRow
from benchmarks.deficit.findings import correlations, found, setting_of
from benchmarks.deficit.plots_structure import slot_label
from benchmarks.deficit.result import DeficitResult
from emblema.eval.metrics import Interval

Section = Callable[[DeficitResult, str], list[str]]


def lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; nothing without rows."""
    if not rows:
        return []
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return ["| " + " | ".join(one) + " |" for one in (header, rule, *rows)] + [""]


def answers(result: DeficitResult, setting: str, hop: str, names: Sequence[str] | None = None) -> list[str]:
    """A line for each way to give the chunk its KV."""
    kept = [result.log.row(name, setting, hop) for name in names or result.log.names(setting, hop)]
    rows = [answer(row) for row in kept if row is not None]
    return lines((f"{setting}, {hop}", "n", "KL", "eta (median)", "flips", "agreement", "accuracy"), rows)


def answer(row: AnswerRow) -> tuple[str, ...]:
    """One line."""
    median = f" ({row.eta_median.value:.2f})" if row.eta_median.count else ""
    accuracy = "" if row.accuracy is None else _interval(row.accuracy)
    eta = "" if row.name == "full" else f"{_interval(row.eta)}{median}"
    return (row.name, str(row.n), _small(row.kl), eta, str(row.flips), _interval(row.agreement), accuracy)


def isolation(result: DeficitResult, setting: str) -> list[str]:
    """The loss by the mask, and its controls."""
    names = ("full", "unblocked", "moved", BLIND, "raw", "blocked", "filler")
    text = ["### Isolation by the mask", "", prose.ISOLATION, ""]
    rows = []
    for here in dict.fromkeys((setting, VISIBLE)):
        for hop in (MULTI, SINGLE):
            text += answers(result, here, hop, names)
            loss = result.log.row("blocked", here, hop)
            control = result.log.estimate(f"control kl/{here}, {hop}")
            if loss is not None and control is not None:
                ratio = loss.kl.value / control.value if control.value else float("inf")
                rows.append((f"{here}, {hop}", str(control.n), _small(loss.kl), str(control), f"{ratio:.3g}"))
    return text + lines(("", "n", "loss KL", "control KL", "times"), rows)


def rank(result: DeficitResult, setting: str) -> list[str]:
    """Energy rank by layer, KL by rank, and the plateau."""
    log = result.log
    rows = []
    for layer in [*map(str, range(result.model.layers)), "largest"]:
        cells = [layer]
        for slot in ("keys", "values"):
            cells += [str(log.estimate(f"{name}/{slot}/{layer}") or "") for name in ("e90", "e90 per token")]
        if any(cells[1:]):
            rows.append(cells)
    labels = [slot_label(result, slot) for slot in ("keys", "values")]
    header = ("layer", *(f"{name} {label}" for label in labels for name in ("e90", "e90 / tokens")))
    names = [BLIND] + [name for name in log.names(setting, MULTI) if name.startswith("rank/")]
    return [
        "### Rank", "", prose.RANK, "", *lines(header, rows), *answers(result, setting, MULTI, names),
        *_found(result, setting, "plateau"),
    ]  # fmt: skip


def depth(result: DeficitResult, setting: str) -> list[str]:
    """Norms by layer, single layers, depth budget, partial re-prefill."""
    log, layers = result.log, result.model.layers
    rows = []
    for layer in range(layers):
        cells = [str(layer)]
        for slot in ("keys", "values"):
            cells += [str(log.estimate(f"{name}/{slot}/{layer}") or "") for name in ("deficit", "position")]
        rows.append([*cells, str(log.estimate(f"injected/{layer}") or "")])
    labels = [slot_label(result, slot) for slot in ("keys", "values")]
    header = ("layer", *(f"{label}, {name}" for label in labels for name in ("deficit", "position")), "explained")
    stems = ("only layer/", "deepest/", "shallowest/", "reprefill/", "reprefill shallow/")
    names = [name for name in log.names(setting, MULTI) if name.startswith(stems)]
    return [
        "### Depth", "", prose.DEPTH, "", *lines(header, rows), *answers(result, setting, MULTI, names),
        *_found(result, setting, "depth", "re-prefill"),
    ]  # fmt: skip


def spread(result: DeficitResult, setting: str) -> list[str]:
    """Tokens, heads, slots."""
    log = result.log
    rows = [(name, str(one), str(one.n)) for name in ("energy share/tokens", "energy share/heads")
            if (one := log.estimate(name)) is not None]  # fmt: skip
    stems = ("oracle tokens/", "first tokens/", "oracle again/", "first again/", "oracle heads/")
    names = [name for name in log.names(setting, MULTI) if name.startswith(stems) or " only/" in name]
    return [
        "### Tokens, heads and slots", "", prose.SPREAD, "", *lines(("90 % of the energy", "share", "n"), rows),
        *answers(result, setting, MULTI, names), *_found(result, setting, "tokens", "heads"),
    ]  # fmt: skip


def links(result: DeficitResult, setting: str) -> list[str]:
    """Landmark keys by layer."""
    rows = []
    for layer in range(result.model.layers):
        cells = [
            result.log.estimate(f"{name}/{layer}")
            for name in ("landmarks", "landmarks per key", "link rank", "link mass")
        ]
        if any(cells):
            rows.append((str(layer), *(str(one or "") for one in cells)))
    total = result.log.estimate("antecedent keys")
    header = ("layer", "keys with 90 %", "share of keys", "directions with 90 %", "of all attention")
    return [
        "### The link from antecedents to the chunk", "", prose.LINK, "", f"Antecedent keys: {total}.", "",
        *lines(header, rows),
    ]  # fmt: skip


def estimates(result: DeficitResult, setting: str) -> list[str]:
    """Shared bases, negatives, cheap selectors."""
    log = result.log
    names = [name for name in log.names(setting, MULTI) if " basis/" in name]
    own = [f"rank/{name.rsplit('/', 1)[1]}" for name in names]
    negatives = ["sink", "true shallow only", "shallow seed", "linear operator"]
    selectors = [name for name in log.names(setting, MULTI) if name.startswith("selector/")]
    figures = [(name, str(one), str(one.n)) for name in log.values if name.startswith(("recall/", "explained/"))
               if (one := log.estimate(name)) is not None]  # fmt: skip
    together = [(name, _interval(one), str(n)) for name, (one, n) in correlations(result).items()]
    return [
        "### Shared directions", "", prose.SHARED, "",
        *answers(result, setting, MULTI, [*dict.fromkeys(own), *names]),
        "### Cheap estimates", "", prose.CHEAP, "",
        *answers(result, setting, MULTI, negatives), *answers(result, setting, MULTI, selectors),
        *lines(("recall of the largest quarter; energy explained", "share", "n"), figures),
        *lines(("rank correlation with the deficit's size", "over chunks", "n"), together),
    ]  # fmt: skip


def mpic(result: DeficitResult, setting: str) -> list[str]:
    """MPIC's insights and the errors in ULP."""
    log = result.log
    stems = ("attention ", "tokens for", "moved most")
    figures = [(name, str(one), str(one.n)) for name in log.values if name.startswith(stems)
               if (one := log.estimate(name)) is not None]  # fmt: skip
    errors = [(name, str(one), str(one.n)) for name in log.values
              if name.startswith(("ulp/", "within one ulp/", "relocation/"))
              if (one := log.estimate(name)) is not None]  # fmt: skip
    return [
        "### MPIC's insights", "", prose.INSIGHTS, "", *lines(("figure", "mean", "n"), figures),
        "### Errors in bf16 ULP", "", prose.ROUNDING, "", *lines(("figure", "mean", "n"), errors),
    ]  # fmt: skip


SECTIONS: tuple[Section, ...] = (isolation, rank, depth, spread, links, estimates, mpic)


def side_by_side(results: Sequence[DeficitResult]) -> list[str]:
    """Models in one table, and what a set of them cannot say."""
    rows = []
    for result in results:
        setting, model = setting_of(result), result.model
        chosen = {one.name: f"{one.value} [{one.low}, {one.high}]" for one in found(result, setting)}
        loss = result.log.row("blocked", setting, MULTI)
        names = [name for name in ("rank/64", "rank/full") if result.log.row(name, setting, MULTI)]
        patched = result.log.row(names[0], setting, MULTI) if names else None
        rows.append((
            model.name + ("" if result.binds else " (untrained)"), model.kind, "+".join(map(str, model.widths)),
            "MoE" if model.experts else "dense", setting, "" if loss is None else _small(loss.kl),
            "" if patched is None else _interval(patched.eta), chosen.get("plateau", ""),
            chosen.get("depth budget", ""),
            chosen.get("re-prefill to match rank/64", chosen.get("re-prefill to match rank/16", "")),
        ))  # fmt: skip
    header = (
        "model",
        "cache",
        "width",
        "",
        "setting",
        "loss KL",
        "eta, rank 64",
        "plateau",
        "deep layers",
        "re-prefill layers",
    )
    widths = {sum(one.model.widths) for one in results}
    kinds = {bool(one.model.experts) for one in results}
    notes = [] if len(widths) > 1 else [prose.ONE_WIDTH]
    notes += [] if len(kinds) > 1 else [prose.ONE_KIND]
    return ["## Side by side", "", *lines(header, rows), *(f"{note}\n" for note in notes)]


def _found(result: DeficitResult, setting: str, *stems: str) -> list[str]:
    rows = [(one.name, f"{one.value} [{one.low}, {one.high}]", str(one.n), one.rule) for one in found(result, setting)
            if one.name.startswith(stems)]  # fmt: skip
    return lines(("found", "value", "n", "rule"), rows)


def _interval(one: Interval) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def _small(one: Interval) -> str:
    return f"{one.value:.2g} [{one.low:.2g}, {one.high:.2g}]"
