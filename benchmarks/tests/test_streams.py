"""Generated streams: what they show, and that every answer follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS, ask, generate, make_stream, questions_of
from benchmarks.tasks.streams.questions import answers, seen
from benchmarks.tests.stream_solver import solve
from emblema.errors import PromptError
from training.words import INDEX

MANY = dict.fromkeys(QUESTION_KINDS, 100)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(STREAM_KINDS),
    frames=st.integers(1, 200),
    share=st.floats(0, 1),
)
def test_every_answer_follows_from_the_frames_seen(seed: int, kind: str, frames: int, share: float) -> None:
    stream = make_stream(np.random.default_rng(seed), kind, frames)
    at = 1 + int(share * (frames - 1))
    asked = ask(np.random.default_rng(seed), stream, at, MANY)
    shown = stream.tiles(0, at)
    assert asked
    for each in asked:
        assert solve(shown, each.text) == each.answer


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(STREAM_KINDS), frames=st.integers(1, 300))
def test_a_stream_has_the_shape_that_it_promises(seed: int, kind: str, frames: int) -> None:
    stream = make_stream(np.random.default_rng(seed), kind, frames)
    assert len(stream) == frames and stream.tiles().shape == (frames, 2, 2)
    end = 0
    for stay, later in zip(stream.stays, [*stream.stays[1:], None], strict=True):
        assert stay.begin == end < stay.end
        end = stay.end
        assert later is None or later.land != stay.land
        icons = [thing.icon for thing in stay.things]
        assert len(icons) == len(set(icons))
        for thing in stay.things:
            assert stay.begin <= thing.begin < thing.end <= stay.end
        for slot in range(3):
            views = sorted((thing.begin, thing.end) for thing in stay.things if thing.slot == slot)
            assert all(first[1] <= second[0] for first, second in zip(views, views[1:], strict=False))


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_evidence_alone_determines_the_answer(kind: str) -> None:
    """With the frames that are not evidence blanked out to another land, the evidence still shows what is asked for."""
    for stream in generate(kind, 96, 3, 4):
        shown = stream.tiles()
        for each in questions_of(stream, limits=MANY):
            inside = np.zeros(len(stream), dtype=bool)
            for begin, end in each.evidence:
                assert 0 <= begin < end <= each.at
                inside[begin:end] = True
            if each.kind != "counted" and "after" not in each.text:
                assert solve(shown[: each.at][inside[: each.at]], each.text) == each.answer


@pytest.mark.parametrize("kind", STREAM_KINDS)
@pytest.mark.parametrize("frames", [64, 1024])
def test_long_streams_have_questions_of_every_kind(kind: str, frames: int) -> None:
    held = [answers(seen(stream, frames)) for stream in generate(kind, frames, 5, 10)]
    for name in QUESTION_KINDS:
        assert sum(bool(each[name]) for each in held) >= (6 if frames == 64 else 10), name
    counts = {each.answer for found in held for each in found["counted"]}
    assert counts == {"one", "two", "three", "four"}


def test_recurring_things_change_their_colour_and_lands_return() -> None:
    for kind in STREAM_KINDS:
        (stream,) = generate(kind, 1024, 1, 1)
        held = seen(stream, 1024)
        assert any(len({thing.colour for _, thing in views}) > 1 for views in held.views.values())
        assert max(len(visits) for visits in held.visits.values()) > 4


def test_kinds_differ_in_the_pace_of_their_stays() -> None:
    def stays(kind: str) -> list[int]:
        return [stay.end - stay.begin for stream in generate(kind, 512, 2, 4) for stay in stream.stays]

    ego, movie, live = (stays(kind) for kind in STREAM_KINDS)
    assert np.median(ego) > 2 * np.median(movie)
    assert max(movie) <= 10
    assert np.mean(np.asarray(live) <= 2) > 0.3


def test_the_same_seed_gives_the_same_stream_whatever_is_drawn_first() -> None:
    first, again = (list(generate("movie", 40, 9, count)) for count in (3, 2))
    assert first[:2] == again and first[0] != first[1]
    assert questions_of(first[0], (20, 40)) == questions_of(again[0], (20, 40))
    late, early = (np.asarray(stream.frame(39)) for stream in (first[0], again[0]))
    np.testing.assert_array_equal(late, early)


def test_frames_are_drawn_with_noise_of_their_own() -> None:
    (stream,) = generate("ego", 60, 4, 1)
    stay = max(stream.stays, key=lambda each: each.end - each.begin)
    same = [n for n in range(stay.begin + 1, stay.end) if (stream.tiles(n - 1, n) == stream.tiles(n, n + 1)).all()]
    one, two = (np.asarray(picture, dtype=float) for picture in stream.frames(same[0] - 1, same[0] + 1))
    assert one.shape == (56, 56, 3)
    assert 0.5 < np.abs(one - two).mean() < 15


def test_words_of_all_questions_and_answers_are_in_the_bundled_vocabulary() -> None:
    for kind in STREAM_KINDS:
        for stream in generate(kind, 128, 6, 3):
            for each in questions_of(stream, limits=MANY):
                assert all(word in INDEX for word in [*each.text.split(), each.answer]), each.text


@pytest.mark.parametrize("kind, frames", [("soap", 8), ("ego", 0), ("live", -3)])
def test_what_cannot_be_drawn_is_refused(kind: str, frames: int) -> None:
    with pytest.raises(PromptError):
        make_stream(np.random.default_rng(0), kind, frames)


def test_times_outside_the_stream_are_refused() -> None:
    (stream,) = generate("ego", 8, 0, 1)
    for at in (0, 9):
        with pytest.raises(PromptError, match="1 to 8"):
            questions_of(stream, (at,))
    with pytest.raises(PromptError, match="one stream or more"):
        list(generate("ego", 8, 0, 0))
