"""The soak: a stream that is killed twice answers as it did, and what grows too fast is found out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stream.soak import (
    MISSED,
    FixedAnswers,
    SoakLog,
    SoakPlan,
    SoakRound,
    has_failed,
    quarters,
    soak,
    soak_bars,
    soak_table,
)
from emblema.errors import EmblemaError, PromptError
from emblema.models.load import bundled_folder
from emblema.stream.settings import AblationSettings, StreamSettings

SETTINGS = StreamSettings(
    positions="packed", window=4, block=4, budget=4, ablation=AblationSettings(first=6, largest=4)
)
MB = 10**6


def round_at(frames: int) -> SoakRound:
    """A round of a soak in which nothing slows down: times stay, host bytes go with the frames."""
    host, beside = 5000 * frames, frames % 1000 == 0
    return SoakRound(
        process=int(frames > 50 * 200),
        frames=frames,
        encoded=200,
        encode_cpu=1.0,
        ttft_cpu=(0.02, 0.03, 0.04),
        device={"local": MB},
        host={"rows": host},
        visual=frames // 20,
        resident=500 * MB + host + MB,
        counted=host + MB,
        right=(True, False),
        short_cpu=(0.03, 0.02, 0.025) if beside else (),
        fresh_encoded=100 if beside else 0,
        fresh_cpu=0.5 if beside else 0.0,
    )


def soak_log(change: Callable[[SoakRound], SoakRound] = lambda found: found) -> SoakLog:
    answers = FixedAnswers(10_000, (((3, 4), (1, 2)), ((5,), (7,))))
    rounds = [change(round_at(frames)) for frames in range(200, 20_001, 200)]
    return SoakLog(rounds, [answers, answers], [answers, answers])


def missed(found: SoakLog) -> list[str]:
    return [bar.name for bar in soak_bars(found) if not bar.holds]


def test_a_soak_in_which_nothing_slows_down_holds() -> None:
    assert missed(soak_log()) == []
    second, last = quarters(soak_log().rounds)
    assert (second[0].frames, second[-1].frames) == (5_200, 10_000)
    assert (last[0].frames, last[-1].frames) == (15_200, 20_000)
    table = soak_table(soak_log())
    assert [row["frames"] for row in table.records] == list(range(1_000, 20_001, 1_000))
    assert table.records[0]["over fresh"] == 0.03 / 0.025 and table.bars == soak_bars(soak_log())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: replace(found, ttft_cpu=(0.03 + 4e-7 * found.frames,)), "first token, last quarter to"),
        (lambda found: replace(found, encode_cpu=1.0 + 1.5e-5 * found.frames), "encode a frame, last quarter to"),
        (lambda found: replace(found, ttft_cpu=(0.04,)), "first token, last quarter, over"),
        (lambda found: replace(found, encode_cpu=2.7), "encode a frame, last quarter, over"),
        (lambda found: replace(found, device={"local": MB + 100 * found.frames}), "device bytes"),
        (lambda found: replace(found, host={"rows": found.frames**2}), "host bytes"),
        (lambda found: replace(found, resident=found.resident + (found.frames > 15_000) * 55 * MB), "does not count"),
        (lambda found: replace(found, resident=found.resident + (found.frames == 17_000) * 70 * MB), "in any round"),
    ],
)
def test_what_grows_too_fast_is_found_out(change: Callable[[SoakRound], SoakRound], words: str) -> None:
    found = missed(soak_log(change))
    assert len(found) == 1 and words in found[0]


def test_a_soak_without_a_comparison_at_its_end_holds_nothing_of_times() -> None:
    found = soak_log(lambda found: replace(found, short_cpu=(), fresh_encoded=0, fresh_cpu=0.0))
    assert ["fresh stream" in name for name in missed(found)] == [True, True]


@pytest.mark.parametrize("after", [FixedAnswers(10_000, (((3, 4), (1, 2)), ((6,), (7,)))), FixedAnswers(10_000)])
@pytest.mark.parametrize("kill", [0, 1])
def test_other_answers_after_a_kill_are_found_out(after: FixedAnswers, kill: int) -> None:
    found = soak_log()
    found.after[kill] = after
    assert ["after each kill" in name for name in missed(found)] == [True]


def test_a_bar_that_is_known_to_be_missed_fails_only_beyond_what_is_known() -> None:
    bars = soak_bars(soak_log())
    assert set(MISSED) < {bar.name for bar in bars}
    for bar in bars:
        known = MISSED.get(bar.name, bar.bound)
        assert not has_failed(replace(bar, value=known)) and not has_failed(bar)
        assert has_failed(replace(bar, value=known - 0.01 if bar.least else known + 0.01))
        assert has_failed(replace(bar, value=None))


@pytest.mark.parametrize("wrong", [{"frames": 700}, {"minutes": 0.0}])
def test_a_soak_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        SoakPlan("reference", **wrong)


@pytest.mark.slow
def test_a_killed_soak_goes_on_with_the_same_answers() -> None:
    """Three real processes, two of which are killed in the middle of a round."""
    model = str(bundled_folder("reference"))
    plan = SoakPlan(model, frames=130, every=20, compare=40, short=20, fresh=35, stretch=25, settings=SETTINGS)
    told: list[SoakRound] = []
    found = soak(plan, told.append)
    assert found.rounds == told and [done.frames for done in told] == [20, 40, 60, 80, 100, 120]
    assert [done.process for done in told] == [0, 0, 1, 1, 2, 2]
    assert [answers.frames for answers in found.before] == [40, 80] and len(found.before[0].answers) >= 4
    assert found.after == found.before
    assert all(done.encoded == 20 and done.resident > done.counted > 0 for done in told)
    assert [len(done.short_cpu) == len(done.ttft_cpu) for done in told] == [False, True] * 3
    assert all(min(done.short_cpu) > 0 < done.fresh_cpu and done.fresh_encoded == 15 for done in told[1::2])
    assert len(soak_table(found).rows) == 6


@pytest.mark.slow
def test_a_process_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="ended by itself: .*nothing-here"):
        soak(SoakPlan(str(tmp_path / "nothing-here"), frames=80, every=20), lambda _: None)
