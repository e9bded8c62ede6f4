"""One reading of `query-R%` in pages: which rows run in which step. There is no model and no vLLM in here.

A reading runs a prompt's text and question over rows that are taken as they are, notes what the question attends, and
then runs the chosen rows and the question again. Each part may take several steps, as rows only attend rows before
them. The prompt's last row is then computed once more, by vLLM itself.
"""

from collections.abc import Sequence
from enum import StrEnum

from emblema.link.prompt import Rows


class ReadingPhase(StrEnum):
    """What a reading is about: text and question run, rows are chosen, these and the question run, or it has ended."""

    READ = "read"
    CHOOSE = "choose"
    COMPUTE = "compute"
    DONE = "done"


class QueryReading:
    """Where one reading is.

    Args:
        texts: rows before the question that are computed once, in order.
        question: rows that run twice; the prompt's last row is the last of them.

    Attributes:
        phase: what is to be done next.
        step: the runs of rows of the step under way; empty between steps.
        rows: how many rows went into steps so far.
    """

    def __init__(self, texts: Sequence[Rows], question: Rows) -> None:
        self.phase = ReadingPhase.READ
        self.step: tuple[Rows, ...] = ()
        self.rows = 0
        self._question = question
        self._left: list[Rows] = [*texts, question]

    def next_runs(self, rows: int) -> tuple[Rows, ...]:
        """Begin a step that has room for so many rows, and return the runs of rows that go into it, in order."""
        made: list[Rows] = []
        while self._left and rows > 0:
            start, stop = self._left[0]
            end = min(stop, start + rows)
            made.append((start, end))
            rows -= end - start
            if end < stop:
                self._left[0] = (end, stop)
            else:
                del self._left[0]
        self.step = tuple(made)
        self.rows += sum(stop - start for start, stop in made)
        return self.step

    @property
    def is_noted(self) -> bool:
        """Whether what rows of the question attend is noted in this step: the first time that they run."""
        return self.phase is ReadingPhase.READ and bool(self.step) and self.step[-1][1] > self._question[0]

    def finish_step(self) -> None:
        """End a step whose runs were computed."""
        if self.step and not self._left:
            self.phase = ReadingPhase.CHOOSE if self.phase is ReadingPhase.READ else ReadingPhase.DONE
        self.step = ()

    def choose(self, chosen: Sequence[Rows]) -> None:
        """Go on with the rows that were chosen, in order and before the question."""
        self._left = [*chosen, self._question]
        self.phase = ReadingPhase.COMPUTE
