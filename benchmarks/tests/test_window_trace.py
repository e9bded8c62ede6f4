"""The agent's trace: a seed decides it, windows follow one another, and answers follow from the window's pictures."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, Legend, Map
from benchmarks.window.trace import ShownPicture, Trace, TraceSettings, TraceStep, agent_trace, novelty_trace

SHAPES = st.builds(
    TraceSettings,
    steps=st.integers(1, 40),
    window=st.integers(4, 32),
    look_back=st.integers(2, 8),
    listed=st.integers(2, 10),
    changing=st.booleans(),
    gone=st.sampled_from([0.0, 0.2, 1.0]),
)


def lands_at(trace: Trace, window: tuple[ShownPicture, ...], place: int) -> dict[str, str]:
    """Icons of the map at a place, each with its land by the legends before it, read from the cells."""
    meaning: dict[int, int] = {}
    for shown in window[:place]:
        page = trace.pages[shown.picture]
        if isinstance(page, Legend):
            meaning |= page.lands
    page = trace.pages[window[place].picture]
    assert isinstance(page, Map)
    return {ICON_NAMES[i]: LANDS[meaning[c]] for i, c in page.icon_colours().items() if c in meaning}


def maps_of(trace: Trace, step: TraceStep) -> list[int]:
    return [place for place, shown in enumerate(step.window) if isinstance(trace.pages[shown.picture], Map)]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), SHAPES)
def test_windows_follow_one_another(seed: int, shape: TraceSettings) -> None:
    trace = agent_trace(seed, shape)
    before: tuple[ShownPicture, ...] = ()
    seen: set[int] = set()
    for index, step in enumerate(trace.steps):
        assert step.index == index
        assert step.window == (*before, *step.entering)[step.leaving :]
        assert len(step.window) == min(shape.window, len(before) + len(step.entering))
        assert [shown.back for shown in step.entering][-1] is False
        for shown in step.entering:
            gone = shown.picture in seen and all(shown.picture != other.picture for other in before)
            assert gone if shown.back else shown.picture not in seen
            seen.add(shown.picture)
        icons = [
            icon for place in maps_of(trace, step) for icon in trace.pages[step.window[place].picture].icon_colours()
        ]
        assert len(icons) == len(set(icons))
        before = step.window
    assert seen == set(range(len(trace.pages)))
    assert all(page.tile_numbers().shape == (8, 8) for page in trace.pages)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), SHAPES)
def test_every_answer_follows_from_the_pictures(seed: int, shape: TraceSettings) -> None:
    trace = agent_trace(seed, shape)
    absorbed: dict[int, dict[str, str]] = {}
    for step in trace.steps:
        # What leaves is gone before anything enters, so the window shows what is before each new picture.
        for shown in step.entering:
            place = step.window.index(shown)
            if isinstance(trace.pages[shown.picture], Map):
                absorbed[shown.picture] = lands_at(trace, step.window, place)
        asked, words = step.question, step.question.text.split()
        inside = {}
        for place in maps_of(trace, step):
            inside |= lands_at(trace, step.window, place)
        if asked.kind == "land":
            (icon,) = (word for word in words if word in ICON_NAMES)
            if asked.where == "gone":
                (place,) = asked.needs
                assert icon not in inside and absorbed[step.window[place].picture][icon] == asked.answer
            else:
                assert inside[icon] == asked.answer and asked.where == "binding"
                assert isinstance(trace.pages[step.window[min(asked.needs)].picture], Legend)
            continue
        assert asked.where == "one"
        (page,) = (trace.pages[step.window[place].picture] for place in asked.needs)
        if asked.kind == "colour":
            (icon,) = (word for word in words if word in ICON_NAMES)
            assert isinstance(page, Map)
            assert COLOUR_NAMES[page.icon_colours()[ICON_NAMES.index(icon)]] == asked.answer
        else:
            (colour,) = (word for word in words if word in COLOUR_NAMES)
            pages = (trace.pages[shown.picture] for shown in step.window)
            legends = [other for other in pages if isinstance(other, Legend)]
            told = {
                LANDS[legend.lands[COLOUR_NAMES.index(colour)]]
                for legend in legends
                if COLOUR_NAMES.index(colour) in legend.lands
            }
            assert told == {asked.answer}


def test_a_seed_decides_the_trace_and_fewer_steps_are_its_first() -> None:
    long, short = (agent_trace(5, TraceSettings(steps=steps, window=6)) for steps in (40, 15))
    assert long.steps[:15] == short.steps
    assert [page.tile_numbers().tolist() for page in short.pages] == [
        page.tile_numbers().tolist() for page in long.pages[: len(short.pages)]
    ]
    assert agent_trace(6, TraceSettings(steps=15, window=6)).steps != short.steps


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(4, 32))
def test_novelty_shows_nothing_twice(seed: int, steps: int, window: int) -> None:
    shape = TraceSettings(steps=steps, window=window)
    trace = novelty_trace(seed, shape)
    shown = [new.picture for step in trace.steps for new in step.window]
    assert shown == list(range(len(trace.pages)))
    assert all(step.window == step.entering and len(step.window) == shape.window for step in trace.steps)
    assert [step.leaving for step in trace.steps] == [0] + [shape.window] * (len(trace.steps) - 1)
