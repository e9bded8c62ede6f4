"""What was measured: figures of items, and answers of questions, each with the item that it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.intervals import Interval, bootstrap, bootstrap_eta
from emblema.eval.metrics import Share, flip_recovery
from emblema.link.policy.fidelity import divergence, first_token

FULL, BLIND = "full", "blind"


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What one method came to over the questions of a group in a setting; see `emblema.eval.metrics`."""

    n: int
    kl: Interval
    eta: Interval
    flips: Share


@dataclass(frozen=True, slots=True)
class NotedAnswer:
    """One question: by method, its divergence from re-prefill and its first token."""

    episode: str
    setting: str
    group: str
    losses: dict[str, float]
    tokens: dict[str, int]


@dataclass
class AnswerLog:
    """Figures by name. A question's answers are compared with its own re-prefill."""

    values: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    noted: list[NotedAnswer] = field(default_factory=list)

    def value(self, episode: str, figures: Mapping[str, float]) -> None:
        """Note figures of an item."""
        for name, figure in figures.items():
            self.values.setdefault(name, []).append((episode, float(figure)))

    def answers(self, episode: str, setting: str, group: str, logits: Mapping[str, np.ndarray]) -> None:
        """Note a question's answers; `logits` holds re-prefill's under `full`."""
        losses = {name: divergence(logits[FULL], answer) for name, answer in logits.items()}
        tokens = {name: first_token(answer) for name, answer in logits.items()}
        self.noted.append(NotedAnswer(episode, setting, group, losses, tokens))

    def mean(self, name: str) -> float:
        """Return the mean of a figure; NaN if it was never noted."""
        return float(np.mean([figure for _, figure in self.values.get(name, [("", float("nan"))])]))

    def names(self, setting: str, group: str) -> list[str]:
        """Return every method that answered in a setting, in the order of first use; not re-prefill."""
        found = dict.fromkeys(name for noted in self.of(setting, group) for name in noted.losses)
        return [name for name in found if name != FULL]

    def figures(self, name: str, setting: str, group: str) -> AnswerFigures | None:
        """Return what a method came to; None if nothing was answered so."""
        kept = [noted for noted in self.of(setting, group) if name in noted.losses]
        if not kept:
            return None
        episodes = [noted.episode for noted in kept]
        losses, floors = ([noted.losses[of] for noted in kept] for of in (name, BLIND))
        full, blind, own = ([noted.tokens[of] for noted in kept] for of in (FULL, BLIND, name))
        return AnswerFigures(
            len(kept),
            bootstrap(losses, episodes),
            bootstrap_eta(losses, floors, episodes),
            flip_recovery(full, blind, own),
        )

    def of(self, setting: str, group: str) -> list[NotedAnswer]:
        """Return the questions of a group in a setting."""
        return [noted for noted in self.noted if (noted.setting, noted.group) == (setting, group)]
