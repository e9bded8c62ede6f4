"""Real weights: what is asked can be answered from what is shown, and figures are what can be worked out."""

import math
import random
from typing import Any

import pytest
import torch

from benchmarks.real.bound import BoundOptions, bound_row
from benchmarks.real.measure import RealOptions, divergences, measure_real
from benchmarks.real.passages import PASSAGES, PassageQuestion, draw_episode
from benchmarks.real.speed import SpeedOptions, measure_speed
from benchmarks.real.summary import summary_rows
from benchmarks.real.traffic import TrafficOptions, requests_of
from emblema.errors import EmblemaError

SHORT = (0, 1)


@pytest.mark.parametrize("number", range(12))
def test_answers_stand_in_the_passages_that_a_question_needs(number: int) -> None:
    episode = draw_episode(20261127, number, 6, (3, 7))
    assert len(set(episode.passages)) == 6
    assert [question.kind for question in episode.questions] == ["two", "one", "direct", "list", "free"]
    for question in (question for asked in episode.asked.values() for question in asked):
        assert question.answer in " ".join(episode.passages[place] for place in question.needs)
        others = [text for place, text in enumerate(episode.passages[:3]) if place not in question.needs]
        if question.kind in ("direct", "two"):
            assert not any(question.answer in text.replace(".", " ").split() for text in others)
    assert [len(asked) for asked in episode.asked.values()] == [3] * 5
    assert all(place < 3 <= person for place, person in (question.needs for question in episode.asked["two"]))


def test_the_seed_and_the_number_decide() -> None:
    assert draw_episode(1, 2, 4, SHORT) == draw_episode(1, 2, 4, SHORT)
    assert len({draw_episode(seed, number, 4, SHORT).passages for seed in range(3) for number in range(3)}) == 9


@pytest.mark.parametrize("shape", ["subsets", "chat"])
def test_a_request_shows_what_its_question_needs(shape: Any) -> None:
    wanted = TrafficOptions("m", shape, 40, 7)
    seen: list[tuple[list[str], PassageQuestion]] = list(requests_of(wanted))
    assert len(seen) == 40 and all(len(texts) <= PASSAGES for texts, _ in seen)
    answered = [question.answer in " ".join(texts) for texts, question in seen if question.kind in ("one", "direct")]
    assert sum(answered) >= 0.8 * len(answered)
    if shape == "subsets":
        assert all(answered) and len({tuple(texts) for texts, _ in seen}) == 40


def test_divergence_and_margin_are_those_of_their_definition() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))
    found = divergences(logits, logits.flip(0))
    assert float(found[0]) == pytest.approx(0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.25 / 0.1), abs=1e-6)
    assert float(divergences(logits, logits).abs().max()) == 0


def record(method: str, episode: str, kind: str, first: float, **more: Any) -> dict[str, Any]:
    held = {"agree": True, "whole": False, "right": False, "sure": 0.5, "margin": 0.1, "rows": 0.5, "seconds": 0.5}
    named = {"anchor": "head", "method": method, "episode": episode, "kind": kind}
    return {**named, "first": first, "mean": first, **held, **more}


def test_rows_are_sums_over_informative_questions() -> None:
    records = [
        record("blind", "a", "two", 1.0),
        record("blind", "b", "one", 3.0, agree=False, sure=0.1),
        record("blind", "b", "list", 100.0),
        record("patch-25%", "a", "two", 0.5),
        record("patch-25%", "b", "one", 3.5),
        record("patch-25%", "b", "list", 0.0),
    ]
    blind, patch = summary_rows(records, ("head", "blind"))
    assert (blind["kl"], blind["eta"], blind["agree"], blind["agree_sure"]) == (2.0, 0.0, 0.5, 1.0)
    assert (patch["kl"], patch["eta"], patch["worse"], patch["prompts"]) == (2.0, 0.0, 0.5, 3)
    assert patch["kl_two"] == 0.5 and math.isnan(patch["kl_direct"])
    with pytest.raises(EmblemaError, match="was not measured|not among"):
        summary_rows(records, ("none", "blind"))


@pytest.mark.slow
def test_a_small_run() -> None:
    """On a bundled model, which reads no English: re-prefill's answer is met where all is computed."""
    wanted = RealOptions("reference", 1, 3, SHORT, ("full", "blind", "patch-50%"), ("none", "head"))
    found = list(measure_real(wanted))
    assert len(found) == 5 * 2 * 3
    for one in found:
        assert one["rows"] <= 1 and (one["method"] != "full" or (one["first"] <= 1e-6 and one["whole"]))


@pytest.mark.parametrize("change", [{"anchors": ("tail",)}, {"methods": ("no-such",)}])
def test_what_cannot_be_measured_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EmblemaError):
        RealOptions("m", 1, 1, **change)


def records_of(method: str, draw: Any, episodes: int = 200) -> list[dict[str, Any]]:
    """Answers of a method, five an episode."""
    return [
        {"episode": str(number // 5), "anchor": "head", "method": method, **draw()} for number in range(5 * episodes)
    ]


def test_a_bound_is_certified_on_one_half_kept_on_the_other_and_taken_back_after_a_shift() -> None:
    rnd = random.Random(8)

    def sure() -> dict[str, Any]:
        margin = rnd.random()
        return {"margin": margin, "agree": margin > 0.3 or rnd.random() > 0.4, "first": 0.004}

    def spoilt() -> dict[str, Any]:
        return {"margin": rnd.random(), "agree": rnd.random() > 0.4, "first": 0.4}

    records = [*records_of("query-25%", sure), *records_of("blind", spoilt)]
    row = bound_row(records, BoundOptions("query-25%", "blind", seed=3))
    assert row["certified"] == row["splits"] == row["kept"] == 20 and 0.2 <= row["margin"] <= 0.45
    assert 0.5 <= row["accepted"] <= 0.8 and row["wrong"] <= 0.02 and row["kl"] == pytest.approx(0.004)
    assert row["closed"] == 20 and row["closes_last"] <= 200
    hopeless = bound_row(records, BoundOptions("blind", "blind"))
    assert hopeless["certified"] == 0 == hopeless["accepted"]
    with pytest.raises(EmblemaError, match="not measured"):
        bound_row(records, BoundOptions("epic-8", "blind"))


@pytest.mark.slow
def test_every_way_is_timed_beside_a_full_prefill() -> None:
    """On the bundled model, whose tokenizer does not know the words: only the table is looked at."""
    rows = list(measure_speed(SpeedOptions("reference", (300,), rounds=1)))
    assert [row["way"] for row in rows] == ["full", "prefix", "blind", "patch-25%", "query-25%"]
    shares = {row["way"]: row["rows"] for row in rows}
    assert shares["full"] == 1 and shares["prefix"] < 0.3 and shares["blind"] < 0.3 < shares["query-25%"] < 0.8
    with pytest.raises(EmblemaError):
        SpeedOptions("reference", (10,))
