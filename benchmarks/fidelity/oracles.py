"""The two oracles by name, for several shares from one look at the re-prefill; see `emblema.link.oracle`."""

from dataclasses import dataclass

from torch import Tensor

from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table
from emblema.link.oracle import choice
from emblema.link.prompt import Prompt
from emblema.link.strategies.chosen import Chosen
from emblema.models.table import KVTable


@dataclass(frozen=True, slots=True)
class Oracle:
    """A choice of the `percent` of visible chunk rows that `scores` puts highest; rounded up, in its favour."""

    kind: str
    percent: float

    @property
    def name(self) -> str:
        return f"oracle-{self.kind}-{self.percent:.12g}"

    @property
    def by_question(self) -> bool:
        """Whether each question has its own choice."""
        return self.kind == "query"

    def choose(self, scores: Tensor, prompt: Prompt) -> Chosen:
        """The strategy that computes the rows with the highest scores; StrategyError where the share is wrong."""
        return choice(self.kind, self.percent, scores, prompt)


def front_table(executor: Executor, prompt: Prompt) -> KVTable:
    """The re-prefilled table of what stands before the prompt's last part, slid chunks still in it."""
    return conditioned_table(executor, prompt.until(prompt.segments[-1].start))
