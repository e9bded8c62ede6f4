"""Readings beside the scheduler: what workers are told, what is chosen by what they say"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.plan import ChunkOrigin, LinkPlan, Recomputation, RowRange, RowSource
from emblema.link.prompt import Rows
from emblema.models.noting import QuestionReadings
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.request_plan import RequestPlan
from emblema.served.spans import CachedSpans
from emblema.vllm.readings import LOST, QueryReading, QuestionReader, ReadingPhase, computed_rows, reading_of
from emblema.vllm.step_metadata import QuestionReport, SidePrompt, WorkerReport
from tests.vllm.requests import SPEC, request

LAYERS = len(SPEC.layouts)
CANDIDATES = ((2, 302), (303, 603))
"""Rows of two pictures, after two rows of text and with one between; the question is the last row."""
PROMPT = SidePrompt([], (), ())


def read_plan(budget: int = 4, margin: float = 0.5) -> RequestPlan:
    shown = request("a", "b")
    prompt = build_prompt(shown, ChunkStubs(SPEC))
    taken = [RowRange(*rows, RowSource.TAKEN, (0, LAYERS), ChunkOrigin("x")) for rows in CANDIDATES]
    computed = [RowRange(*rows, RowSource.COMPUTED, (0, LAYERS)) for rows in ((0, 2), (302, 303), (603, 604))]
    again = Recomputation(CANDIDATES, budget, (603, 604))
    plan = LinkPlan("query", prompt.tokens, LAYERS, (*taken, *computed), recomputation=again, least_margin=margin)
    plan.validate()
    return RequestPlan(shown, prompt, plan, cached=CachedSpans.of(plan))


def seen(*rows: int) -> QuestionReadings:
    """What a question attends: some rows alike, the others not at all."""
    weights = torch.zeros(604)
    weights[list(rows)] = 1.0
    return QuestionReadings(weights, weights)


def test_a_reading_begins_with_all_that_is_not_there() -> None:
    reader, plan = QuestionReader(1), read_plan()
    reader.begin("1", plan, 32, PROMPT)
    orders, choices = reader.take()
    assert choices == () and reader.take() == ((), ())
    (order,) = orders
    assert (order.taken, order.texts, order.question) == (((32, 302), (303, 603)), ((302, 303),), (603, 604))
    assert order.least_margin == 0.5 and order.prompt is PROMPT


def test_rows_are_chosen_when_all_workers_have_said_what_they_saw() -> None:
    reader = QuestionReader(2)
    reader.begin("1", read_plan(), 0, PROMPT)
    reader.take()
    reader.note(WorkerReport(questions={"1": QuestionReport(1, seen(5, 400))}))
    assert reader.take() == ((), ())
    reader.note(WorkerReport(questions={"1": QuestionReport(1, seen(6, 400))}))
    ((choice,),) = reader.take()[1:]
    chosen = [row for start, stop in choice.runs or () for row in range(start, stop)]
    assert len(chosen) == 4 and {5, 6, 400} <= set(chosen)


def test_one_worker_that_saw_nothing_ends_a_reading() -> None:
    reader, plan = QuestionReader(2), read_plan()
    reader.begin("1", plan, 0, PROMPT)
    reader.take()
    report = WorkerReport(questions={"1": QuestionReport(1, seen(5))})
    reader.note(report.joined(WorkerReport(questions={"1": QuestionReport(1, None)})))
    ((choice,),) = reader.take()[1:]
    assert choice.runs is None
    reader.end("1", succeeded=False)
    assert plan.remark == LOST and not plan.reads(0) and plan.margin is None


@pytest.mark.parametrize("succeeded", [True, False])
def test_what_came_of_it_is_in_the_plan(succeeded: bool) -> None:
    reader, plan = QuestionReader(1), read_plan()
    reader.begin("1", plan, 0, PROMPT)
    reader.note(WorkerReport(questions={"1": QuestionReport(1, seen(5))}))
    reader.take()
    reader.note(WorkerReport(margins={"1": 0.25}))
    reader.end("1", succeeded)
    assert plan.margin == 0.25
    assert (plan.linked, plan.reads(0)) == ((596, True) if succeeded else (0, False))
    assert (plan.remark is None) == succeeded


def test_a_request_that_has_ended_is_not_spoken_of() -> None:
    reader, plan = QuestionReader(1), read_plan()
    reader.begin("1", plan, 0, PROMPT)
    reader.take()
    reader.abandon("1")
    reader.note(WorkerReport(questions={"1": QuestionReport(1, seen(5))}))
    assert reader.take() == ((), ()) and reader.under_way
    reader.end("1", succeeded=False)
    assert plan.remark is None and not reader.under_way


def test_what_is_left_after_rows_that_are_there() -> None:
    plan = read_plan().plan
    left = reading_of(plan, 320)
    assert left is not None and left.candidates == ((320, 603),)
    assert reading_of(plan, 603) is None and computed_rows(plan, 0, 603) == ((0, 2), (302, 303))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Rows], list[Rows], Rows]:
    """Texts, chosen rows between them, and the question."""
    row, texts, chosen = 0, [], []
    for _ in range(draw(st.integers(0, 5))):
        gap, text, picture = draw(st.integers(0, 3)), draw(st.integers(0, 6)), draw(st.integers(1, 12))
        if text:
            texts.append((row + gap, row + gap + text))
        row += gap + text
        picks = sorted(draw(st.sets(st.integers(row, row + picture - 1), max_size=6)))
        chosen += [(pick, pick + 1) for pick in picks]
        row += picture
    return texts, chosen, (row, row + draw(st.integers(1, 9)))


rooms = st.lists(st.integers(0, 7), max_size=8)


def carried_out(reading: QueryReading, rooms: list[int]) -> list[Rows]:
    """The runs of a phase, by steps with some room and then with plenty."""
    made: list[Rows] = []
    phase = reading.phase
    for rows in [*rooms, *[5] * 200]:
        runs = reading.next_runs(rows, 1 + rows % 3)
        assert sum(stop - start for start, stop in runs) <= rows and len(runs) <= 1 + rows % 3
        assert runs == reading.step
        made += runs
        reading.finish_step()
        assert reading.step == ()
        if reading.phase is not phase:
            return made
    raise AssertionError("the phase does not end")


def rows_of(spans: list[Rows]) -> list[int]:
    return [row for start, stop in spans for row in range(start, stop)]


@given(layouts(), rooms, rooms)
def test_both_passes_run_every_row_once_and_in_order(layout, first, second) -> None:
    texts, chosen, question = layout
    reading = QueryReading(texts, question)
    assert rows_of(carried_out(reading, first)) == rows_of([*texts, question])
    assert reading.phase is ReadingPhase.CHOOSE
    assert reading.next_runs(100) == ()
    reading.finish_step()
    assert reading.phase is ReadingPhase.CHOOSE
    reading.choose(chosen)
    assert rows_of(carried_out(reading, second)) == rows_of([*chosen, question])
    assert reading.phase is ReadingPhase.DONE


@given(layouts(), rooms)
def test_steps_with_rows_of_the_question_are_noted_the_first_time(layout, room) -> None:
    texts, chosen, question = layout
    reading = QueryReading(texts, question)
    for rows in [*room, *[5] * 400]:
        if reading.phase is ReadingPhase.CHOOSE:
            reading.choose(chosen)
        first = reading.phase is ReadingPhase.READ
        own = rows_of(list(reading.next_runs(rows)))
        assert reading.is_noted == (first and any(row >= question[0] for row in own))
        reading.finish_step()
        if reading.phase is ReadingPhase.DONE:
            break
    assert own[-1] == question[1] - 1
