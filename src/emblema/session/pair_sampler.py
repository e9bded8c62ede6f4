"""Which prompts the memory of pairs learns from, and how many of their rows."""

from collections.abc import Iterable

from emblema.kv.pairs import MOST_AVERAGED
from emblema.link.policy.learning_budget import LearningBudget
from emblema.link.policy.policy import Policy
from emblema.link.taken_rows import ShareSample


def worth_of(met: Iterable[int]) -> float:
    """Return what a prompt would teach, from 0 to 1: 1 where all of it is new.

    One more sighting changes a mean of n by its (n + 1)th part.

    Args:
        met: for each chunk after others, how many prompts it was learnt from with the antecedent that it was met with
            least.
    """
    worth = [1 / (1 + count) for count in met]
    return sum(worth) / len(worth) if worth else 0.0


class PairSampler:
    """Chooses the prompts that one tenant's pairs are learnt from; for one thread, but for its budget.

    Args:
        rows: of a prompt that are learnt from, at most.

    Attributes:
        budget: holds learning to a share of what the tenant's answers cost.
    """

    def __init__(self, rows: int) -> None:
        self.budget = LearningBudget()
        self._rows = rows
        # Prompts met, and those that are due to be learnt from.
        self._prompts, self._due = 0, 0.0

    def next(self, worth: float, policy: Policy, on_credit: bool = True) -> ShareSample | None:
        """Return which rows of the next prompt are learnt from; None where it is not worth it, or over the budget.

        An entry takes `MOST_AVERAGED` differences: so prompts whose pairs were met n times are learnt from as often as
        `MOST_AVERAGED` in n + 1.

        Args:
            worth: see `worth_of`.
            policy: bounds of the request.
            on_credit: whether it may be learnt from before that was earned.
        """
        self._prompts += 1
        self._due = min(1.0, self._due + MOST_AVERAGED * worth)
        worth_now = worth if on_credit else 0.0
        if self._due < 1 or not self.budget.allows(worth_now, policy.learning_share, policy.learning_ahead):
            return None
        self._due = 0.0
        return ShareSample(self._rows, self._prompts)
