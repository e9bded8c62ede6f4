"""Readings of `query-R%`, carried out by a worker beside the rows that vLLM scheduled.

vLLM takes a reading for KV that is on its way from elsewhere: its request waits, with pages, and no row of it is
scheduled. Meanwhile the worker computes its rows, packed into one virtual request a step, and says in the end that the
KV is there, or that it could not be had. All workers of a model add the same rows to the same steps: what they do
depends on what the scheduler's side says alone. An error of one worker is a loss that it reports.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.prompt import Rows
from emblema.link.second_pass import margin_of, spanned_rows
from emblema.vllm.attention import PromptPositions
from emblema.vllm.packed_rows import NotedQuestion, PackedForward, PackedRows, packed_prompt
from emblema.vllm.prompt_loads import HandOver, PromptLoads, StagedPrompts
from emblema.vllm.readings import QueryReading, ReadingPhase
from emblema.vllm.side_rows import SideRun
from emblema.vllm.step_metadata import PlacedFeature, QuestionReport, ReadingOrder, SidePrompt, StepMetadata


@dataclass(slots=True, eq=False)
class Reading:
    """One reading under way.

    Attributes:
        order: what is read.
        state: which rows are next.
        noted: what its question attends.
        first: its first row that was not there before; all pages from there on are its own.
        encodings: what the encoder made of its pictures, by their names in the order, but for new ones.
        encoded: names of new pictures that the runner has.
        positions: of its prompt [axes, rows] or [rows] int64.
        shows_new: whether there are pictures among its texts, which the encoder has not seen.
        pack: its packed rows in the step under way.
        apart: whether the step has none of these, but runs of their own.
        lost: whether this worker missed something; its rows go on as the other workers' do.
    """

    order: ReadingOrder
    state: QueryReading
    noted: NotedQuestion
    first: int
    encodings: dict[str, Tensor] = field(default_factory=dict)
    encoded: set[str] = field(default_factory=set)
    positions: Tensor = field(default_factory=lambda: torch.empty(0))
    shows_new: bool = False
    pack: PackedRows | None = None
    apart: bool = False
    lost: bool = False


class QuestionRuns(PromptLoads[Reading]):
    """The readings of one worker.

    Args:
        device: of the pages.
        staged, hand_over, agree: see `PromptLoads`; nothing is staged of a reading once it has begun.
        drop: lets go of what is staged for a request.
        packing: has its model compute packed rows.
        positions: of prompts.
    """

    def __init__(
        self,
        device: torch.device,
        staged: StagedPrompts,
        drop: Callable[[str], None],
        packing: PackedForward,
        positions: PromptPositions,
        hand_over: HandOver | None,
        agree: Callable[[list[bool]], list[bool]] = list,
    ) -> None:
        super().__init__(staged, hand_over, agree)
        self._device, self._drop, self._packing, self._positions = device, drop, packing, positions
        self._questions: dict[str, QuestionReport] = {}
        self._margins: dict[str, float] = {}

    def begin_step(self, step: StepMetadata) -> None:
        for order in step.readings:
            state = QueryReading(order.texts, order.question)
            noted = NotedQuestion(order.question, self._packing.layers, self._device)
            first = min(start for start, _ in (*order.taken, *order.texts, order.question))
            reading = self._under_way[order.request_id] = Reading(order, state, noted, first)
            reading.shows_new = _shows_any(order.prompt, order.texts)
            self._guarded(reading, self._place)
            self._drop(order.request_id)
        for choice in step.choices:
            found = self._under_way.get(choice.request_id)
            if found is None:
                continue
            if choice.runs is None:
                self._end(found, failed=True)
            else:
                found.state.choose(choice.runs)

    @torch.inference_mode()
    def _place(self, reading: Reading) -> None:
        """Write the rows that a reading takes into its pages."""
        order = reading.order
        # First of all: a reading that is lost later still runs in the step that its request was scheduled for.
        reading.positions = self._positions.of(order.prompt)
        if self._hand_over is None:
            raise EmblemaError("nothing takes what the encoder made of its pictures")
        reading.encodings = self._staged.take(order.request_id, order.prompt, order.taken)
        # vLLM's prefix cache has the rows of what ends before.
        known = [*order.taken, order.question]
        shown = (each for each in order.prompt.features if each.stop > reading.first and _shows(each, known))
        if any(each.name not in reading.encodings for each in shown):
            raise EmblemaError("what the encoder made of its pictures is not stored")

    def runs(self, rows: int, slots: int, encoded: Container[str]) -> Sequence[SideRun]:
        made: list[SideRun] = []
        packed: list[SideRun] = []
        given: set[str] = set()
        for reading in self._under_way.values():
            reading.pack, question = None, reading.order.question[0]
            # Runs with new pictures are virtual requests of their own, as the runner encodes for one that has them.
            apart = reading.shows_new and reading.state.phase is ReadingPhase.READ
            runs = reading.state.next_runs(rows, slots) if apart else reading.state.next_runs(rows if slots > 0 else 0)
            own = [self._run(reading, run, encoded, given) for run in runs if apart and run[1] <= question]
            left = spanned_rows(runs[len(own) :])
            reading.apart = len(left) == 0
            if not reading.apart:
                own.append(self._packed(reading, left, question if apart else reading.first))
                packed.append(own[-1])
            made += own
            rows, slots = rows - sum(run.rows for run in own), slots - len(own)
        self._positions.begin_step([run.prompt.token_ids for run in packed])
        self._packing.begin_step([reading.pack for reading in self._under_way.values() if reading.pack is not None])
        return made

    def _packed(self, reading: Reading, rows: Tensor, first: int) -> SideRun:
        """Return the run of a reading's rows in this step, and hand over its encoder outputs.

        Args:
            reading: it.
            rows: their numbers [rows] int64.
            first: the row that the first of them has in the run.
        """
        self._count += 1
        order, state = reading.order, reading.state
        name = f"{order.request_id}\0query-{self._count}"
        # One that is lost may lack what the encoder made of its pictures.
        whole = replace(order.prompt, features=()) if reading.lost else order.prompt
        prompt, outputs = packed_prompt(whole, reading.encodings, name, first, rows)
        for own, output in outputs.items():
            if self._hand_over is not None:
                self._hand_over(own, output)
        self._unneeded |= outputs.keys()
        noted = reading.noted if state.is_noted else None
        # A reading that is lost has no positions where it was lost before its first step.
        positions = reading.positions[..., rows] if reading.positions.numel() else torch.zeros_like(rows)
        reading.pack = PackedRows(order.prompt.blocks, rows, first, positions, noted)
        reading.pack.failed = reading.lost
        return SideRun(prompt, name, first, len(rows))

    def settle(self) -> None:
        for reading in list(self._under_way.values()):
            if not reading.state.step:
                continue
            seen = reading.pack is not None and self._packing.is_complete(reading.pack)
            reading.lost |= not (seen or reading.apart)
            reading.state.finish_step()
            if reading.state.phase is ReadingPhase.CHOOSE:
                self._guarded(reading, self._report)
                if reading.order.request_id not in self._questions:
                    self._questions[reading.order.request_id] = QuestionReport(1, None)
            elif reading.state.phase is ReadingPhase.DONE:
                self._guarded(reading, self._decide)
                self._end(reading, failed=reading.lost)
        self._packing.end_step()

    def _report(self, reading: Reading) -> None:
        readings = None if reading.lost else reading.noted.readings
        if readings is None and not reading.lost:
            raise EmblemaError("the attention of a question was not seen in all layers")
        self._questions[reading.order.request_id] = QuestionReport(1, readings)

    def _decide(self, reading: Reading) -> None:
        """Have the answer stand if it is sure enough."""
        logits = None if reading.pack is None else self._packing.last_logits(reading.pack)
        if logits is None:
            raise EmblemaError("the answer of a reading was not seen")
        margin = margin_of(logits)
        self._margins[reading.order.request_id] = margin
        reading.lost |= margin < reading.order.least_margin

    def take_reports(self) -> tuple[dict[str, QuestionReport], dict[str, float]]:
        """Return what questions attend, and the margins of answers, since the last call."""
        questions, margins = self._questions, self._margins
        self._questions, self._margins = {}, {}
        return questions, margins


def _shows(feature: PlacedFeature, rows: Iterable[Rows]) -> bool:
    """Return whether a picture has any of some rows."""
    return any(start < feature.stop and feature.start < stop for start, stop in rows)


def _shows_any(prompt: SidePrompt, rows: Sequence[Rows]) -> bool:
    """Return whether any picture has any of some rows."""
    return any(_shows(feature, rows) for feature in prompt.features)
