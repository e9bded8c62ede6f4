"""What the answers come to: plateaus, budgets and shares, each chosen by a rule and with the choice's own interval."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.deficit.answerlog import MULTI, RESAMPLES, SLID, VISIBLE, AnswerLog
from benchmarks.deficit.measure import DeficitResult
from benchmarks.deficit.rank import SLOT_NAMES, SLOTS
from benchmarks.deficit.selectors import REDUNDANCY
from benchmarks.deficit.tokens import AGAIN, CELLS, SHARES
from benchmarks.intervals import Interval
from emblema.eval.metrics import PLATEAU

DEEP = 0.95
"""Share of the whole patch's recovery that a layer-sparse one has to keep: the paper's half-depth patch has it."""
MOST = 0.9
"""Recovery that counts as most of the gap."""
Reached = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Which ways reach something: see `AnswerLog.first`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A choice among ordered labels, with its interval; `rule` says what was chosen."""

    name: str
    rule: str
    value: str
    low: str
    high: str
    n: int

    def __str__(self) -> str:
        return f"{self.value} [{self.low}, {self.high}]"


def setting_of(result: DeficitResult) -> str:
    """Return the setting that headline figures are taken in: slid where the task slides."""
    return SLID if any(asked.setting == SLID for asked in result.log.noted) else VISIBLE


def slot_label(result: DeficitResult, slot: str) -> str:
    """Return what a slot is called, by the kind of cache."""
    return dict(zip(SLOTS, SLOT_NAMES[result.model.kind], strict=True))[slot]


def findings(result: DeficitResult, setting: str) -> list[Finding]:
    """Return every choice that the log has the answers for."""
    layers = result.model.layers
    ranks = [name for name in result.log.names(setting, MULTI) if name.startswith("rank/")]
    of_full, most = _of_full(PLATEAU), _at_least(MOST)
    rules: list[tuple[str, Sequence[str], Reached, str, int | None, str]] = [
        ("plateau", ranks, of_full, "rank/full", 0,
         f"smallest rank with {PLATEAU:.0%} of full rank's recovery, on one half of the items"),
        ("plateau, other half", ranks, of_full, "rank/full", 1, "the same on the half held out"),
        ("depth budget", [*(f"deepest/{count}" for count in range(1, layers)), "rank/full"], _of_full(DEEP),
         "rank/full", None, f"fewest deepest layers of {layers} whose patch keeps {DEEP:.0%} of the whole patch's "
         "recovery"),
        ("tokens, oracle", _named("oracle tokens", SHARES), most, "full", None,
         f"smallest percent of tokens of largest deficit, given true rows, that recovers {MOST:.0%}"),
        ("tokens, first", _named("first tokens", SHARES), most, "full", None,
         "the same for the first tokens of the chunk"),
        ("tokens, computed again", _named("oracle again", AGAIN), most, "full", None,
         "the same for tokens of largest deficit computed in context among canonical ones"),
        ("heads, oracle", _named("oracle heads", CELLS), most, "full", None,
         "smallest percent of (layer, slot, head) cells, given true rows, that recovers the same"),
    ]  # fmt: skip
    for rank in ("rank/16", "rank/64"):
        rule = f"fewest deepest layers of {layers} run again in context whose KL is no more than the patch's of {rank}"
        names = _named("reprefill", range(1, layers + 1))
        rules.append((f"re-prefill to match {rank}", names, _no_worse, rank, None, rule))
    made = (_finding(result.log, setting, *rule) for rule in rules)
    return [finding for finding in made if finding is not None]


def _named(stem: str, counts: Iterable[int]) -> list[str]:
    return [f"{stem}/{count}" for count in counts]


def correlations(result: DeficitResult) -> dict[str, tuple[Interval, int]]:
    """Return rank correlations over chunks of the deficit's relative size with what `redundancy` sets beside it."""
    figures = {}
    for name in REDUNDANCY:
        pairs = np.array([(size, other[name]) for size, other in result.pairs if name in other])
        if len(pairs) < 4:
            continue
        generator = np.random.default_rng(0)
        draws = [pairs[generator.integers(len(pairs), size=len(pairs))] for _ in range(RESAMPLES // 4)]
        known = [value for value in map(_spearman, draws) if np.isfinite(value)]
        if known:
            low, high = np.quantile(known, [0.025, 0.975])
            figures[name] = (Interval(_spearman(pairs), float(low), float(high)), len(pairs))
    return figures


def _spearman(pairs: np.ndarray) -> float:
    """Return rank correlation of two columns, ties by their order; NaN where one does not vary."""
    left, right = (np.argsort(np.argsort(column, kind="stable")) for column in pairs.T)
    if len(np.unique(pairs[:, 0])) < 2 or len(np.unique(pairs[:, 1])) < 2:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])


def _of_full(share: float) -> Reached:
    def reached(losses: np.ndarray, beside: np.ndarray) -> np.ndarray:
        whole, blind = beside[..., :1], beside[..., 1:]
        return np.asarray(blind - losses >= share * (blind - whole))

    return reached


def _at_least(share: float) -> Reached:
    def reached(losses: np.ndarray, beside: np.ndarray) -> np.ndarray:
        return np.asarray(losses <= (1 - share) * beside[..., 1:])

    return reached


def _no_worse(losses: np.ndarray, beside: np.ndarray) -> np.ndarray:
    return np.asarray(losses <= beside[..., :1])


def _finding(
    log: AnswerLog, setting: str, name: str, names: Sequence[str], reached: Reached, beside: str, half: int | None,
    rule: str,
) -> Finding | None:  # fmt: skip
    held = [way for way in names if way in log.names(setting, MULTI)]
    choice = log.first(held, setting, MULTI, reached, beside=beside, half=half) if held else None
    if choice is None:
        return None
    labels = [*(way.rsplit("/", 1)[1] for way in held), "none"]
    return Finding(name, rule, labels[choice.place], labels[choice.low], labels[choice.high], choice.n)
