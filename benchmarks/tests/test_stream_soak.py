"""The soak: a stream that is killed twice answers as it did, and what grows too fast is found out."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stream.soak import (
    FixedAnswers,
    SoakLog,
    SoakPlan,
    SoakRound,
    quarters,
    soak,
    soak_bars,
    soak_table,
)
from benchmarks.table import Bar
from emblema.errors import EmblemaError
from emblema.models.names import bundled_folder
from emblema.stream.settings import StreamSettings

SETTINGS = StreamSettings(positions="packed", window=4, block=4, budget=4)
MB = 10**6
ANSWERS = (((3, 4), (1, 2)), ((5,), (7,)))


def soak_log(**changes: Any) -> SoakLog:
    """A soak in which nothing slows down, but for changes by a round's frames; host bytes go with the frames."""
    rounds = []
    for frames in range(200, 20_001, 200):
        host, over = 5000 * frames, 1.2 if frames % 1000 == 0 else None
        sound = SoakRound(frames, 0.005, 0.03, MB, host, 501 * MB + host, host + MB, over, over)
        rounds.append(replace(sound, **{name: change(frames) for name, change in changes.items()}))
    return SoakLog(rounds, [ANSWERS, ANSWERS], [ANSWERS, ANSWERS])


def missed(found: SoakLog) -> list[Bar]:
    return [bar for bar in soak_bars(found) if not bar.holds]


def test_a_soak_in_which_nothing_slows_down_holds() -> None:
    assert missed(soak_log()) == []
    ends = [(part[0].frames, part[-1].frames) for part in quarters(soak_log().rounds)]
    assert ends == [(5_200, 10_000), (15_200, 20_000)]
    table = soak_table(soak_log())
    assert [row["frames"] for row in table.records] == list(range(1_000, 20_001, 1_000))
    assert table.records[0]["over fresh"] == 1.2 and table.bars == soak_bars(soak_log())


def resident(frames: int) -> int:
    return 501 * MB + 5000 * frames


@pytest.mark.parametrize(
    ("changed", "change", "words", "fails"),
    [
        ("ttft", lambda frames: 0.03 + 4e-7 * frames, "first token, last quarter to", False),
        ("encoding", lambda frames: 0.005 + 7.5e-8 * frames, "encode a frame, last quarter to", False),
        ("over_short", lambda frames: 1.6, "first token, last quarter, over", False),
        ("over_short", lambda frames: 2.1, "first token, last quarter, over", True),
        ("over_short", lambda frames: None, "first token, last quarter, over", True),
        ("over_fresh", lambda frames: 1.4, "encode a frame, last quarter, over", True),
        ("device", lambda frames: MB + 100 * frames, "device bytes", True),
        ("host", lambda frames: frames**2, "host bytes", True),
        ("resident", lambda frames: resident(frames) + (frames > 15_000) * 55 * MB, "does not count", False),
        ("resident", lambda frames: resident(frames) + (frames == 17_000) * 70 * MB, "in any round", False),
    ],
)
def test_what_grows_too_fast_or_is_not_measured_is_found_out(
    changed: str, change: Any, words: str, fails: bool
) -> None:
    found = missed(soak_log(**{changed: change}))
    assert found and all(words in bar.name for bar in found)
    assert any(not bar.aim for bar in found) is fails


@pytest.mark.parametrize("after", [(((3, 4), (1, 2)), ((6,), (7,))), ()])
@pytest.mark.parametrize("kill", [0, 1])
def test_other_answers_after_a_kill_are_found_out(after: FixedAnswers, kill: int) -> None:
    found = soak_log()
    found.after[kill] = after
    assert ["after each kill" in bar.name for bar in missed(found)] == [True]


def test_what_is_known_to_miss_is_held_to_a_wider_bound() -> None:
    known = [pair for pair in pairwise(soak_bars(soak_log())) if pair[0].aim]
    assert len(known) == 5
    assert all((after.value, after.aim) == (bar.value, False) and after.bound > bar.bound for bar, after in known)


@pytest.mark.nightly
def test_a_killed_soak_goes_on_with_the_same_answers() -> None:
    """Three real processes, two of which are killed in the middle of a round."""
    model = str(bundled_folder("reference"))
    plan = SoakPlan(model, frames=130, every=20, compare=40, short=20, fresh=35, stretch=25, settings=SETTINGS)
    told: list[SoakRound] = []
    found = soak(plan, told.append)
    assert found.rounds == told and [done.frames for done in told] == [20, 40, 60, 80, 100, 120]
    assert found.after == found.before and [len(answers) >= 4 for answers in found.before] == [True, True]
    assert all(min(done.encoding, done.ttft) > 0 and done.resident > done.counted > 0 for done in told)
    assert [(done.over_short or 0) > 0 < (done.over_fresh or 0) for done in told] == [False, True] * 3
    assert len(soak_table(found).rows) == 6


@pytest.mark.slow
def test_a_process_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="ended by itself: .*nothing-here"):
        soak(SoakPlan(str(tmp_path / "nothing-here"), frames=80, every=20), lambda _: None)
