"""A reading's runs: whatever room steps have, text and question run, then chosen rows and the question, in order."""

from hypothesis import given
from hypothesis import strategies as st

from emblema.link.prompt import Rows
from emblema.vllm.query_reading import QueryReading, ReadingPhase


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


rooms = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=8)


def carried_out(reading: QueryReading, rooms: list[tuple[int, int]]) -> list[Rows]:
    """The runs of a phase, by steps with some room and then with plenty."""
    made: list[Rows] = []
    phase = reading.phase
    for rows, slots in [*rooms, *[(5, 2)] * 200]:
        runs = reading.next_runs(rows, slots)
        assert len(runs) <= slots and sum(stop - start for start, stop in runs) <= rows
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
    assert reading.next_runs(100, 100) == ()
    reading.finish_step()
    assert reading.phase is ReadingPhase.CHOOSE
    reading.choose(chosen)
    assert rows_of(carried_out(reading, second)) == rows_of([*chosen, question])
    assert reading.phase is ReadingPhase.DONE
    # Text, the question twice and the chosen rows; the last row once more is vLLM's own.
    asked = question[1] - question[0]
    assert reading.rows == len(rows_of(texts)) + 2 * asked + len(chosen)


@given(layouts(), rooms)
def test_only_the_question_is_noted_and_only_the_last_row_decides(layout, room) -> None:
    texts, chosen, question = layout
    reading = QueryReading(texts, question)
    noted, decided = [], []
    for number, (rows, slots) in enumerate([*room, *[(5, 2)] * 400]):
        if reading.phase is ReadingPhase.CHOOSE:
            reading.choose(chosen)
        for run in reading.next_runs(rows, slots):
            noted += range(*run) if reading.is_noted(run) else ()
            decided += [number] if reading.decides(run) else ()
        reading.finish_step()
        if reading.phase is ReadingPhase.DONE:
            break
    assert noted == list(range(*question))
    assert decided == [number]


def test_rows_right_before_the_question_run_with_it() -> None:
    reading = QueryReading([(0, 2)], (8, 10))
    carried_out(reading, [])
    reading.choose([(3, 4), (6, 8)])
    assert reading.next_runs(100, 100) == ((3, 4), (6, 10))
    assert reading.decides((6, 10))
