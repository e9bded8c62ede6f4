"""Readings of `query-R%`: which rows run in which step, what is chosen, and what came of it. No vLLM in here.

A reading runs a prompt's text and question over rows that are taken as they are, notes what the question attends, and
then runs the chosen rows and the question again. Each part may take several steps, as rows only attend rows before
them. The prompt's last row is then computed once more, by vLLM itself.
"""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from emblema.link.plan import LinkPlan, Recomputation, RowSource
from emblema.link.policy.expectations import LATEST, draw_unsure_share
from emblema.link.prompt import Prompt, Rows
from emblema.link.second_pass import chosen_rows, runs_of, spanned_rows
from emblema.served.request_plan import RequestPlan
from emblema.vllm.step_metadata import (
    QuestionReport,
    ReadingChoice,
    ReadingOrder,
    SidePrompt,
    WorkerReport,
)

KEPT_OUTCOMES = 512
LOST = "what its question attends could not be read; its rows were computed"


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
    """

    def __init__(self, texts: Sequence[Rows], question: Rows) -> None:
        self.phase = ReadingPhase.READ
        self.step: tuple[Rows, ...] = ()
        self._question = question
        self._left: list[Rows] = [*texts, question]

    def next_runs(self, rows: int, most: int = sys.maxsize) -> tuple[Rows, ...]:
        """Begin a step and return the runs of rows that go into it, in order.

        Args:
            rows: that the step has room for.
            most: runs that it has room for.
        """
        made: list[Rows] = []
        while self._left and rows > 0 and len(made) < most:
            start, stop = self._left[0]
            end = min(stop, start + rows)
            made.append((start, end))
            rows -= end - start
            if end < stop:
                self._left[0] = (end, stop)
            else:
                del self._left[0]
        self.step = tuple(made)
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


@dataclass(slots=True)
class ReadingState:
    """A reading under way.

    Attributes:
        plan: the request's.
        again: what is chosen, of the rows that vLLM's prefix cache did not have.
        taken: the rows that are taken, as runs.
        report: what its question attends, as far as workers have said; None before the first.
        chosen: the rows that were chosen, as runs.
        margin: of its answer, once it has one.
        abandoned: whether its request has ended meanwhile.
    """

    plan: RequestPlan
    again: Recomputation
    taken: tuple[Rows, ...]
    report: QuestionReport | None = None
    chosen: tuple[Rows, ...] = ()
    margin: float | None = None
    abandoned: bool = False


class QuestionReader:
    """Follows the readings of one server; for the scheduler's thread.

    Args:
        workers: how many report what a question attends.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._under_way: dict[str, ReadingState] = {}
        self._orders: list[ReadingOrder] = []
        # Whether answers under `auto` stood, the latest ones.
        self._outcomes: deque[bool] = deque(maxlen=KEPT_OUTCOMES)
        self._choices: dict[str, ReadingChoice] = {}
        self._extra_rows = 0

    @property
    def under_way(self) -> bool:
        """Whether anything is being read."""
        return bool(self._under_way)

    def begin(self, request_id: str, plan: RequestPlan, ready: int, prompt: SidePrompt) -> None:
        """Begin to read a request that has its pages.

        Args:
            request_id: of vLLM.
            plan: the request's; it has a reading from `ready` on.
            ready: rows that vLLM's prefix cache has.
            prompt: see `ReadingOrder`.
        """
        again = reading_of(plan.plan, ready)
        if again is None:
            raise ValueError("this plan has nothing to be read")
        taken = tuple((max(start, ready), stop) for start, stop in plan.cached.spans if stop > ready)
        self._under_way[request_id] = ReadingState(plan, again, taken)
        self._extra_rows += again.question_rows
        texts = computed_rows(plan.plan, ready, again.question[0])
        self._orders.append(
            ReadingOrder(
                request_id, prompt, taken, texts, again.question, plan.plan.least_margin or 0.0, plan.kept_names
            )
        )

    def note(self, report: WorkerReport) -> None:
        """Take what workers report, and choose rows where all have said what a question attends."""
        for name, margin in report.margins.items():
            if name in self._under_way:
                self._under_way[name].margin = margin
        for name, question in report.questions.items():
            state = self._under_way.get(name)
            if state is None or state.abandoned:
                continue
            state.report = question if state.report is None else state.report.joined(question)
            if state.report.workers < self._workers:
                continue
            readings = state.report.readings
            if readings is not None:
                scores = readings.scores(spanned_rows(state.again.candidates))
                state.chosen = runs_of(chosen_rows(state.again, scores))
            self._choices[name] = ReadingChoice(name, None if readings is None else state.chosen)

    def take(self) -> tuple[tuple[ReadingOrder, ...], tuple[ReadingChoice, ...]]:
        """Return what the next step tells the workers: readings that begin, and choices."""
        orders, self._orders = tuple(self._orders), []
        choices, self._choices = tuple(self._choices.values()), {}
        return orders, choices

    def abandon(self, request_id: str) -> None:
        """Note that a request has ended; its pages are its own until the workers are done with them."""
        self._choices.pop(request_id, None)
        if request_id in self._under_way:
            self._under_way[request_id].abandoned = True

    def end(self, request_id: str, succeeded: bool) -> None:
        """Note that the workers are done with a reading; where it failed, the request is computed."""
        state = self._under_way.pop(request_id, None)
        self._choices.pop(request_id, None)
        if state is not None and not state.abandoned:
            plan = state.plan
            plan.margin = state.margin
            if plan.margin is not None and plan.plan.decisions:
                self._outcomes.append(succeeded)
            if not succeeded:
                self._extra_rows += state.again.question_rows + _count(state.chosen)
            if succeeded:
                plan.linked = _count(state.taken) - _count(state.chosen)
                plan.patched = plan.cached.patched_rows(state.taken) - plan.cached.patched_rows(state.chosen)
            elif plan.margin is None:
                plan.decline(LOST)
            else:
                plan.decline(f"computed in full: the two likeliest first tokens differed by {plan.margin:.2f} only")

    def take_extra_rows(self) -> int:
        """Return how many rows ran since the last call beside those that prompts count as computed.

        A question runs twice, and what is chosen for it counts for nothing where its answer does not stand.
        """
        rows, self._extra_rows = self._extra_rows, 0
        return rows

    def unsure_share(self, prompt: Prompt) -> float:
        """Draw the share of the prompts under `auto` that are computed in full after they were read.

        Any thread may ask.
        """
        return draw_unsure_share([not succeeded for succeeded in tuple(self._outcomes)[-LATEST:]], prompt)


def _count(runs: Sequence[Rows]) -> int:
    return sum(stop - start for start, stop in runs)


def reading_of(plan: LinkPlan, ready: int) -> Recomputation | None:
    """Return what is left of a plan's second pass where `ready` rows are there already; None where nothing is."""
    again = plan.recomputation
    return None if again is None or ready >= again.question[0] else again.after(ready)


def computed_rows(plan: LinkPlan, ready: int, stop: int) -> tuple[Rows, ...]:
    """Return the computed rows of a plan from `ready` up to `stop`, as runs in order."""
    spans: list[Rows] = []
    for part in sorted(plan.ranges, key=lambda part: part.start):
        start, end = max(part.start, ready), min(part.stop, stop)
        if part.source is not RowSource.COMPUTED or start >= end:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return tuple(spans)
