"""The agent's trace: a seed decides it, windows follow one another, and answers follow from the window's pictures."""

from __future__ import annotations

from collections.abc import Sequence

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
    pages = [trace.pages[shown.picture] for shown in window[: place + 1]]
    meaning = {colour: land for page in pages if isinstance(page, Legend) for colour, land in page.lands.items()}
    assert isinstance(pages[-1], Map)
    return {ICON_NAMES[i]: LANDS[meaning[c]] for i, c in pages[-1].icon_colours().items() if c in meaning}


def named(words: list[str], names: Sequence[str]) -> int:
    """The place among names of the only one that a question has."""
    (found,) = (names.index(word) for word in words if word in names)
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), SHAPES)
def test_windows_follow_one_another_and_answers_from_their_pictures(seed: int, shape: TraceSettings) -> None:
    trace = agent_trace(seed, shape)
    before: tuple[ShownPicture, ...] = ()
    absorbed: dict[int, dict[str, str]] = {}
    seen: set[int] = set()
    for index, step in enumerate(trace.steps):
        assert step.index == index
        assert step.window == (*before, *step.entering)[step.leaving :]
        assert len(step.window) == min(shape.window, len(before) + len(step.entering))
        assert [shown.back for shown in step.entering][-1] is False
        # What leaves is gone before anything enters, so the window shows what is before each new picture.
        for shown in step.entering:
            gone = shown.picture in seen and all(shown.picture != other.picture for other in before)
            assert gone if shown.back else shown.picture not in seen
            seen.add(shown.picture)
            if isinstance(trace.pages[shown.picture], Map):
                absorbed[shown.picture] = lands_at(trace, step.window, step.window.index(shown))
        pages = [trace.pages[shown.picture] for shown in step.window]
        icons = [icon for page in pages if isinstance(page, Map) for icon in page.icon_colours()]
        assert len(icons) == len(set(icons))
        assert_answer_follows(trace, step, absorbed)
        before = step.window
    assert seen == set(range(len(trace.pages)))
    assert all(page.tile_numbers().shape == (8, 8) for page in trace.pages)


def assert_answer_follows(trace: Trace, step: TraceStep, absorbed: dict[int, dict[str, str]]) -> None:
    """Hold a step's answer to the window's pictures, or to what a map absorbed when it came in."""
    pages = [trace.pages[shown.picture] for shown in step.window]
    asked, words = step.question, step.question.text.split()
    needed = [pages[place] for place in sorted(asked.needs)]
    if asked.kind == "land":
        icon = ICON_NAMES[named(words, ICON_NAMES)]
        inside: dict[str, str] = {}
        for place in (place for place, page in enumerate(pages) if isinstance(page, Map)):
            inside |= lands_at(trace, step.window, place)
        if asked.where == "gone":
            (place,) = asked.needs
            assert icon not in inside and absorbed[step.window[place].picture][icon] == asked.answer
        else:
            assert inside[icon] == asked.answer and asked.where == "binding" and isinstance(needed[0], Legend)
        return
    assert asked.where == "one" and len(needed) == 1
    if asked.kind == "colour":
        assert isinstance(needed[0], Map)
        assert COLOUR_NAMES[needed[0].icon_colours()[named(words, ICON_NAMES)]] == asked.answer
    else:
        colour = named(words, COLOUR_NAMES)
        told = {page.lands[colour] for page in pages if isinstance(page, Legend) and colour in page.lands}
        assert [LANDS[land] for land in told] == [asked.answer]


def test_a_seed_decides_the_trace_and_fewer_steps_are_its_first() -> None:
    long, short = (agent_trace(5, TraceSettings(steps=steps, window=6)) for steps in (40, 15))
    assert long.steps[:15] == short.steps != agent_trace(6, TraceSettings(steps=15, window=6)).steps
    for own, other in zip(short.pages, long.pages, strict=False):
        assert own.tile_numbers().tolist() == other.tile_numbers().tolist()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(4, 32))
def test_novelty_shows_nothing_twice(seed: int, steps: int, window: int) -> None:
    shape = TraceSettings(steps=steps, window=window)
    trace = novelty_trace(seed, shape)
    shown = [new.picture for step in trace.steps for new in step.window]
    assert shown == list(range(len(trace.pages)))
    assert all(step.window == step.entering and len(step.window) == shape.window for step in trace.steps)
    assert [step.leaving for step in trace.steps] == [0] + [shape.window] * (len(trace.steps) - 1)
