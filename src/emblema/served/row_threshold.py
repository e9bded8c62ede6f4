"""When linking pays in a server: where it saves at least so many computed rows."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.prompt import Prompt, Rows

DEFAULT_ROWS = 256
"""Rows that linking has to save where that was neither measured nor given."""
PASSES = 2
"""Forwards of a second pass."""


@dataclass(frozen=True, slots=True)
class RowThreshold:
    """Costs of linking as one number of rows; see `Costs`.

    Each run of taken rows has to save so many computed rows, on average over a prompt's runs: what is computed between
    them is more work for a step. A second pass has to save so many for each of its two forwards, and for a third one
    where new chunks are prefilled alone before it. Rows that the prefix cache has are not saved. Nor are those of a
    prompt that is gone on from: rows of a second pass are in no prefix cache, so the next turn computes them.

    Attributes:
        rows: so many; with 0 linking always pays.
        unsure: returns the share of second passes for prompts like one whose answers are likely not to stand.
        captures: whether a prompt may wait for new chunks that are prefilled alone.
        continued: returns the share of new prompts like one that a later prompt began with.
    """

    rows: int
    unsure: Callable[[Prompt], float]
    captures: bool = True
    continued: Callable[[Prompt], float] = lambda prompt: 0.0

    def second_pass_pays(self, prompt: Prompt, rows: int, share: float) -> bool:
        """Return whether it pays; see `Costs`."""
        return self.rows == 0 or self._saved(prompt, rows, share) >= PASSES * self.rows

    def capturing_pays(self, prompt: Prompt, rows: int, share: float, new: Collection[Chunk], known: int) -> bool:
        """Return whether it pays; see `Costs`. At least half of the chunks' rows have to be known."""
        alone = sum(chunk.tokens for chunk in new)
        if not self.captures or alone > known:
            return False
        return self.rows == 0 or self._saved(prompt, rows, share) - alone >= (PASSES + 1) * self.rows

    def taking_pays(self, prompt: Prompt, taken: Sequence[Rows]) -> bool:
        """Return whether it pays; see `Costs`."""
        return self.runs_pay(taken, 0)

    def runs_pay(self, taken: Sequence[Rows], ready: int) -> bool:
        """Return whether taking runs of rows pays where the first `ready` rows of the prompt are there already."""
        left = [(max(start, ready), stop) for start, stop in taken if stop > ready]
        return bool(left) and sum(stop - start for start, stop in left) >= self.rows * len(left)

    def _saved(self, prompt: Prompt, rows: int, share: float) -> float:
        """Return how many rows less a second pass computes, as it is expected."""
        first, last = prompt.question_rows
        left = 1 - share - self.continued(prompt)
        return rows * left - (last - first) - self.unsure(prompt) * prompt.tokens
