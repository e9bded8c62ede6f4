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


rooms = st.lists(st.integers(0, 7), max_size=8)


def carried_out(reading: QueryReading, rooms: list[int]) -> list[Rows]:
    """The runs of a phase, by steps with some room and then with plenty."""
    made: list[Rows] = []
    phase = reading.phase
    for rows in [*rooms, *[5] * 200]:
        runs = reading.next_runs(rows)
        assert sum(stop - start for start, stop in runs) <= rows
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
    # Text, the question twice and the chosen rows; the last row once more is vLLM's own.
    asked = question[1] - question[0]
    assert reading.rows == len(rows_of(texts)) + 2 * asked + len(chosen)


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
