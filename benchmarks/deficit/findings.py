"""What the log comes to: plateaus, budgets and shares, each chosen by a rule and with the choice's own interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.deficit.answerlog import MULTI, SLID, VISIBLE, AnswerLog
from benchmarks.deficit.result import DeficitResult
from benchmarks.deficit.selectors import redundancy_names
from benchmarks.deficit.tokens import AGAIN, CELLS, SHARES
from emblema.eval.metrics import PLATEAU, RESAMPLES, Interval

DEEP = 0.95
"""Share of the whole patch's recovery that a layer-sparse one has to keep: the paper's half-depth patch has it."""
MOST = 0.9
"""Recovery that counts as most of the gap."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A choice among ordered labels, with its interval; `rule` says what was chosen."""

    name: str
    rule: str
    value: str
    low: str
    high: str
    n: int


def setting_of(result: DeficitResult) -> str:
    """The setting that headline figures are taken in: slid where the task slides."""
    return SLID if any(one.setting == SLID for one in result.log.noted) else VISIBLE


def found(result: DeficitResult, setting: str) -> list[Finding]:
    """Every choice that the log has the answers for."""
    log, layers = result.log, result.model.layers
    held = log.names(setting, MULTI)
    ranks = [name for name in held if name.startswith("rank/")]
    deepest = [f"deepest/{count}" for count in range(1, layers)] + ["rank/full"]
    reprefill = [f"reprefill/{count}" for count in range(1, layers + 1)]
    again = [f"oracle again/{share}" for share in AGAIN]
    choices = [
        _found(log, "plateau", ranks, setting, _of_full(PLATEAU), "rank/full", 0,
               f"smallest rank with {PLATEAU:.0%} of full rank's recovery, on one half of the items"),
        _found(log, "plateau, other half", ranks, setting, _of_full(PLATEAU), "rank/full", 1,
               "the same on the half held out"),
        _found(log, "depth budget", deepest, setting, _of_full(DEEP), "rank/full", None,
               f"fewest deepest layers of {layers} whose patch keeps {DEEP:.0%} of the whole patch's recovery"),
        _found(log, "tokens, oracle", [f"oracle tokens/{one}" for one in SHARES], setting, _at_least(MOST), "full",
               None, f"smallest percent of tokens of largest deficit, given true rows, that recovers {MOST:.0%}"),
        _found(log, "tokens, first", [f"first tokens/{one}" for one in SHARES], setting, _at_least(MOST), "full",
               None, "the same for the first tokens of the chunk"),
        _found(log, "tokens, computed again", again, setting, _at_least(MOST), "full", None,
               "the same for tokens of largest deficit computed in context among canonical ones"),
        _found(log, "heads, oracle", [f"oracle heads/{one}" for one in CELLS], setting, _at_least(MOST), "full",
               None, "smallest percent of (layer, slot, head) cells, given true rows, that recovers the same"),
    ]  # fmt: skip
    for rank in ("rank/16", "rank/64"):
        rule = f"fewest deepest layers of {layers} run again in context whose KL is no more than the patch's of {rank}"
        choices.append(_found(log, f"re-prefill to match {rank}", reprefill, setting, _no_worse, rank, None, rule))
    return [one for one in choices if one is not None]


def correlations(result: DeficitResult) -> dict[str, tuple[Interval, int]]:
    """Rank correlation over chunks of the deficit's relative size with motion, similarity and embedding difference."""
    figures = {}
    for name in redundancy_names():
        pairs = np.array([(size, other[name]) for size, other in result.pairs if name in other])
        if len(pairs) < 4:
            continue
        generator = np.random.default_rng(0)
        draws = [pairs[generator.integers(len(pairs), size=len(pairs))] for _ in range(RESAMPLES // 4)]
        known = [one for one in map(_spearman, draws) if np.isfinite(one)]
        if known:
            low, high = np.quantile(known, [0.025, 0.975])
            figures[name] = (Interval(_spearman(pairs), float(low), float(high)), len(pairs))
    return figures


def _spearman(pairs: np.ndarray) -> float:
    """Rank correlation of two columns, ties by their order; NaN where one does not vary."""
    left, right = (np.argsort(np.argsort(column, kind="stable")) for column in pairs.T)
    if len(np.unique(pairs[:, 0])) < 2 or len(np.unique(pairs[:, 1])) < 2:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])


Reached = Callable[[np.ndarray, np.ndarray], np.ndarray]


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


def _found(
    log: AnswerLog, name: str, names: Sequence[str], setting: str, reached: Reached, beside: str, half: int | None,
    rule: str,
) -> Finding | None:  # fmt: skip
    held = [one for one in names if one in log.names(setting, MULTI)]
    choice = log.first(held, setting, MULTI, reached, beside=beside, half=half) if held else None
    if choice is None:
        return None
    value, low, high = (_label(held, place) for place in (choice.place, choice.low, choice.high))
    return Finding(name, rule, value, low, high, choice.n)


def _label(names: Sequence[str], place: int) -> str:
    return "none" if place == len(names) else names[place].rsplit("/", 1)[1]
