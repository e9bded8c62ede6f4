"""Generated streams: what they show, that every answer follows from the frames, and the videos that are written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS, ask, generate, make_stream, questions_of
from benchmarks.tasks.streams.questions import answers, seen
from benchmarks.tasks.streams.writing import write_streams
from benchmarks.tasks.tiles import COLOUR_COUNT, FIRST_LAND, ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS
from emblema.errors import PromptError
from emblema.media.video import sample_frames
from training.words import INDEX

MANY = dict.fromkeys(QUESTION_KINDS, 100)
SHOWN = "f7c85ecaf03636af"
"""Of three streams and their questions. The committed figures and `reference-stream` rest on them."""


def sights(tiles: np.ndarray, icon: str) -> list[tuple[int, str]]:
    """(frame, colour) of every frame that shows an icon, read cell by cell."""
    found = []
    for number, frame in enumerate(tiles):
        for tile in frame.reshape(-1)[1:]:
            glyph, colour = divmod(int(tile) - 1, COLOUR_COUNT)
            if glyph and ICON_NAMES[glyph - 1] == icon:
                found.append((number, COLOUR_NAMES[colour]))
    return found


def solve(tiles: np.ndarray, text: str) -> str:
    """The answer from the frames seen so far, which have to determine it; the generator is not asked."""
    shown = [LANDS[(int(frame[0, 0]) - FIRST_LAND) // COLOUR_COUNT] for frame in tiles]
    visits = [land for land, _ in groupby(shown)]

    def places(icon: str) -> list[str]:
        return [land for land, _ in groupby(shown[number] for number, _ in sights(tiles, icon))]

    solvers: dict[str, Callable[..., str]] = {
        r"in which land are we now ?": lambda: shown[-1],
        r"what colour is under the (\w+) now ?": lambda icon: one(
            colour for number, colour in sights(tiles, icon) if number == len(tiles) - 1
        ),
        r"in which land was the (\w+) ?": lambda icon: one(places(icon)),
        r"what colour was under the (\w+) ?": lambda icon: one(colour for _, colour in sights(tiles, icon)),
        r"in which land were the (\w+) and the (\w+) ?": lambda icon, other: one(
            set(places(icon)) & set(places(other))
        ),
        r"in which land was the (\w+) first ?": lambda icon: places(icon)[0],
        r"in which land was the (\w+) last ?": lambda icon: places(icon)[-1],
        r"which land came after the (\w+) ?": lambda land: one(
            after for before, after in pairwise(visits) if before == land
        ),
        r"how many times was the (\w+) seen ?": lambda land: NUMBERS[visits.count(land)],
    }
    matches = ((re.fullmatch(pattern.replace(" ?", r" \?"), text), solver) for pattern, solver in solvers.items())
    (answer,) = (solver(*found.groups()) for found, solver in matches if found)
    return answer


def one(found: Iterable[str]) -> str:
    """The only one of the answers found."""
    different = set(found)
    assert len(different) == 1, different
    return different.pop()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(STREAM_KINDS), st.integers(1, 200), st.floats(0, 1))
def test_every_answer_follows_from_the_frames_seen_and_from_the_evidence_alone(
    seed: int, kind: str, frames: int, share: float
) -> None:
    stream = make_stream(np.random.default_rng(seed), kind, frames)
    at = 1 + int(share * (frames - 1))
    asked = ask(np.random.default_rng(seed), stream, at, MANY)
    assert asked
    shown = stream.tiles(0, at)
    for each in asked:
        assert solve(shown, each.text) == each.answer
        inside = np.zeros(at, dtype=bool)
        for begin, end in each.evidence:
            assert 0 <= begin < end <= at
            inside[begin:end] = True
        if each.kind != "counted" and "after" not in each.text:
            assert solve(shown[inside], each.text) == each.answer


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(STREAM_KINDS), frames=st.integers(1, 300))
def test_a_stream_has_the_shape_that_it_promises(seed: int, kind: str, frames: int) -> None:
    stream = make_stream(np.random.default_rng(seed), kind, frames)
    assert len(stream) == frames and stream.tiles().shape == (frames, 2, 2)
    ends = [0, *(stay.end for stay in stream.stays)]
    assert [stay.begin for stay in stream.stays] == ends[:-1] and ends == sorted(set(ends))
    assert all(stay.land != later.land for stay, later in pairwise(stream.stays))
    for stay in stream.stays:
        assert len({thing.icon for thing in stay.things}) == len(stay.things)
        assert all(stay.begin <= thing.begin < thing.end <= stay.end for thing in stay.things)
        for slot in range(3):
            views = sorted((thing.begin, thing.end) for thing in stay.things if thing.slot == slot)
            assert all(first[1] <= second[0] for first, second in pairwise(views))


@pytest.mark.parametrize("kind", STREAM_KINDS)
@pytest.mark.parametrize("frames", [64, 1024])
def test_long_streams_have_questions_of_every_kind(kind: str, frames: int) -> None:
    held = [answers(seen(stream, frames)) for stream in generate(kind, frames, 5, 10)]
    for name in QUESTION_KINDS:
        assert sum(bool(each[name]) for each in held) >= (6 if frames == 64 else 10), name
    counts = {each.answer for found in held for each in found["counted"]}
    assert counts == {"one", "two", "three", "four"}


def test_the_same_seed_gives_the_same_stream_whatever_is_drawn_first() -> None:
    first, again = (list(generate("movie", 40, 9, count)) for count in (3, 2))
    assert first[:2] == again and first[0] != first[1]
    assert questions_of(first[0], (20, 40)) == questions_of(again[0], (20, 40))
    late, early = (np.asarray(stream.frame(39)) for stream in (first[0], again[0]))
    np.testing.assert_array_equal(late, early)


def test_the_same_seed_makes_the_same_streams_as_ever() -> None:
    drawn = [next(generate(kind, 128, 201, 1)) for kind in STREAM_KINDS]
    told = [(stream.stays, questions_of(stream, (64, 128)), stream.tiles(127).tolist()) for stream in drawn]
    assert hashlib.sha256(repr(told).encode()).hexdigest()[:16] == SHOWN


def test_words_of_all_questions_and_answers_are_in_the_bundled_vocabulary() -> None:
    streams = (stream for kind in STREAM_KINDS for stream in generate(kind, 128, 6, 3))
    asked = [each for stream in streams for each in questions_of(stream, limits=MANY)]
    assert {word for each in asked for word in [*each.text.split(), each.answer]} <= set(INDEX)


def test_generated_streams_are_written_with_their_questions(tmp_path: Path) -> None:
    drawn = [
        (stream, questions_of(stream, (12, 24))) for kind in ("ego", "live") for stream in generate(kind, 24, 2, 1)
    ]
    entries = json.loads(write_streams(drawn, tmp_path).read_text())
    assert [entry["video_id"] for entry in entries] == [stream.id for stream, _ in drawn]
    for (stream, questions), entry in zip(drawn, entries, strict=True):
        fields = ("question", "answer", "end_time", "question_type", "temporal_windows")
        assert [tuple(asked[name] for name in fields) for asked in entry["conversations"]] == [
            (q.text, q.answer, q.seconds, q.kind, [[begin * 2.0, end * 2.0] for begin, end in q.evidence])
            for q in sorted(questions, key=lambda question: question.at)
        ]
        shown = list(sample_frames(tmp_path / entry["video_path"], 0.5))
        assert [time for time, _ in shown] == [2.0 * place for place in range(24)] and entry["duration"] == 48.0
        for (_, read), own in zip(shown, stream.frames(), strict=True):
            assert np.abs(np.asarray(own, dtype=float) - np.asarray(read, dtype=float)).mean() < 4


def test_what_makes_no_sense_is_refused() -> None:
    (stream,) = generate("ego", 8, 0, 1)
    for kind, frames in (("soap", 8), ("ego", 0)):
        with pytest.raises(PromptError, match="unknown kind of stream|give one or more"):
            make_stream(np.random.default_rng(0), kind, frames)
    with pytest.raises(PromptError, match="1 to 8"):
        questions_of(stream, (9,))
    with pytest.raises(PromptError, match="one stream or more"):
        list(generate("ego", 8, 0, 0))
