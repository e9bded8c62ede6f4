"""What was measured: figures of chunks, and answers of questions, each with the episode that it belongs to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.intervals import Interval, bootstrap, bootstrap_eta
from emblema.eval.metrics import Share, agreement, flip_recovery, median_eta
from emblema.link.policy.fidelity import divergence, first_token

FULL, BLIND = "full", "blind"
RESAMPLES = 500
SLID, VISIBLE, MULTI, SINGLE = "slid", "visible", "multi-hop", "single-hop"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` figures with its interval by episode."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One way to give the chunk its KV, over the questions of one hop in one setting; see `emblema.eval.metrics`."""

    name: str
    setting: str
    hop: str
    n: int
    kl: Interval
    eta: Interval
    eta_median: Share
    flips: Share
    agreement: Interval
    accuracy: Interval | None


@dataclass(frozen=True, slots=True)
class _QuestionLosses:
    episode: str
    setting: str
    hop: str
    expected: int | None
    losses: dict[str, float]
    tokens: dict[str, int]


@dataclass
class AnswerLog:
    """Figures by name. A question's answers are compared with its own re-prefill."""

    values: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    noted: list[_QuestionLosses] = field(default_factory=list)

    def value(self, episode: str, figures: Mapping[str, float]) -> None:
        """Note figures of a chunk; NaN says nothing and is left out."""
        for name, figure in figures.items():
            if not np.isnan(figure):
                self.values.setdefault(name, []).append((episode, float(figure)))

    def answers(
        self,
        episode: str,
        setting: str,
        hop: str,
        expected: int | None,
        logits: Mapping[str, np.ndarray],
    ) -> None:
        """Note a question's answers; `logits` holds re-prefill's under `full`."""
        losses = {name: divergence(logits[FULL], answer) for name, answer in logits.items()}
        tokens = {name: first_token(answer) for name, answer in logits.items()}
        self.noted.append(_QuestionLosses(episode, setting, hop, expected, losses, tokens))

    def estimate(self, name: str) -> Estimate | None:
        """Return the mean of a figure; None if it was never noted."""
        found = self.values.get(name)
        if not found:
            return None
        interval = bootstrap([figure for _, figure in found], [episode for episode, _ in found])
        return Estimate(interval.value, interval.low, interval.high, len(found))

    def names(self, setting: str, hop: str) -> list[str]:
        """Return every name answered in a setting, in the order of first use."""
        return list(dict.fromkeys(name for question in self._of(setting, hop) for name in question.losses))

    def row(self, name: str, setting: str, hop: str) -> AnswerRow | None:
        """Return one line; None if nothing was answered so."""
        kept = [question for question in self._of(setting, hop) if name in question.losses]
        if not kept:
            return None
        episodes = [question.episode for question in kept]
        losses, floors = [question.losses[name] for question in kept], [question.losses[BLIND] for question in kept]
        first, blind, own = ([question.tokens[of] for question in kept] for of in (FULL, BLIND, name))
        right = [
            float(question.tokens[name] == question.expected) for question in kept if question.expected is not None
        ]
        known = [question.episode for question in kept if question.expected is not None]
        same = np.equal(first, own).astype(float)
        found = bootstrap(same, episodes)
        return AnswerRow(
            name, setting, hop, len(kept), bootstrap(losses, episodes), bootstrap_eta(losses, floors, episodes),
            median_eta(losses, floors), flip_recovery(first, blind, own),
            Interval(agreement(first, own), found.low, found.high), bootstrap(right, known) if right else None,
        )  # fmt: skip

    def first(
        self,
        names: Sequence[str],
        setting: str,
        hop: str,
        reached: Callable[[np.ndarray, np.ndarray], np.ndarray],
        *,
        beside: str = BLIND,
        half: int | None = None,
    ) -> "Choice | None":
        """Return the first of ordered ways that reaches something, with its interval over resampled episodes.

        Args:
            reached: mean losses of the names [..., names] and of the way beside them and of blind reuse [..., 2], to
                which of the names reach it [..., names] bool.
            beside: another way that `reached` is told of.
            half: 0 or 1 looks at one half of the episodes alone; None at all of them.

        Returns:
            Places in `names`; `len(names)` where none reaches it. None if no question was answered in all these ways.
        """
        every = (*names, beside, BLIND)
        kept = [question for question in self._of(setting, hop) if all(name in question.losses for name in every)]
        if half is not None:
            kept = [question for question in kept if self.half(question.episode) == half]
        if not kept:
            return None
        table = np.array([[question.losses[name] for name in every] for question in kept])
        _, owner = np.unique([question.episode for question in kept], return_inverse=True)
        count = int(owner.max()) + 1
        sums = np.stack([np.bincount(owner, column, count) for column in table.T], axis=1)
        sizes = np.bincount(owner, minlength=count)
        draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        means = (draws @ sums) / (draws @ sizes)[:, None]
        count = len(names)
        places = _places(reached(means[:, :count], means[:, count:]))
        low, high = np.quantile(places, [0.025, 0.975], method="nearest")
        mean = table.mean(axis=0)[None]
        return Choice(int(_places(reached(mean[:, :count], mean[:, count:]))[0]), int(low), int(high), len(kept))

    def half(self, episode: str) -> int:
        """Return which half an episode belongs to: they take turns in the order in which they were first noted."""
        order = list(dict.fromkeys(question.episode for question in self.noted))
        return order.index(episode) % 2

    def _of(self, setting: str, hop: str) -> list[_QuestionLosses]:
        return [question for question in self.noted if (question.setting, question.hop) == (setting, hop)]


@dataclass(frozen=True, slots=True)
class Choice:
    """The place of the first that reaches something, its interval, and the questions that it was made on."""

    place: int
    low: int
    high: int
    n: int


def _places(reached: np.ndarray) -> np.ndarray:
    found = np.concatenate([reached, np.ones((*reached.shape[:-1], 1), dtype=bool)], axis=-1)
    return np.asarray(found.argmax(axis=-1))
