"""Load: requests follow from a seed, answers become figures, bounds speak of what was promised, the page is made."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.load.bars import rate_bars, stage_bars
from benchmarks.load.figures import by_method, put, rate_figures, read_load, stage_figures, write_load
from benchmarks.load.page import blocks, bounds
from benchmarks.load.requests import TURNS, AssistantText, LoadRequest, Picture, Traffic, TrafficShape, traffic_of
from benchmarks.load.run import send_at_rate
from benchmarks.load.server_arm import ServerArm
from benchmarks.load.soak import ProcessSample, ServeSoak, growth, settled, soak_server
from benchmarks.load.stages import AUTO, FULL, PREFIX, SIX, LoadAnswer, stages_of
from benchmarks.tasks.episodes import facts
from benchmarks.tasks.world import Episode, Legend, Map
from benchmarks.tests.running import benchmarks
from benchmarks.window.experiment import Row
from emblema.errors import EmblemaError

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LITTLE = ("--requests", "4", "--pages", "8", "--shown", "4", "--seed", "5", "--plain")


def shown(request: LoadRequest) -> list[int]:
    """The pages of a request in order."""
    return [piece.page for piece in request.pieces if isinstance(piece, Picture)]


def answers(traffic: Traffic, request: LoadRequest) -> set[str]:
    """The answers that the pages of a request give, of whatever is named in its question."""
    pages = tuple(page for place in shown(request) for page in [traffic.pages[place]] if isinstance(page, Legend | Map))
    known = facts(Episode(0, pages, ()))
    words = set(str(request.pieces[-1]).split())
    return {answer for kind in known.values() for subject, (answer, _) in kind.items() if subject in words}


SHAPES = st.builds(
    TrafficShape,
    kind=st.sampled_from(["rag", "agent", "novelty", "talk"]),
    requests=st.integers(1, 30),
    side=st.sampled_from([4, 8]),
    pages=st.sampled_from([24, 30, 100]),
    shown=st.integers(4, 16),
)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), SHAPES)
def test_what_is_asked_follows_from_what_is_sent(seed: int, shape: TrafficShape) -> None:
    traffic = traffic_of(shape, seed)
    assert traffic_of(shape, seed).requests == traffic.requests and len(traffic.requests) == shape.requests
    assert traffic.inline == (shape.kind not in ("rag", "talk"))
    for request in traffic.requests:
        pages = shown(request)
        assert len(pages) <= shape.shown and len(set(pages)) == len(pages)
        assert answers(traffic, request) or shape.kind == "agent"
        assert shape.kind == "agent" or not request.dropped


def test_rag_shows_legends_and_maps_in_random_order_and_only_legends_slide() -> None:
    traffic = traffic_of(TrafficShape("rag", 60, pages=24, shown=8, slid=True), 5)
    assert len({tuple(shown(request)) for request in traffic.requests}) >= 55
    for request in traffic.requests:
        pictures = [piece for piece in request.pieces if isinstance(piece, Picture)]
        assert 1 <= sum(picture.slid for picture in pictures) <= 2 and len(pictures) == 8
        assert all(picture.slid == isinstance(traffic.pages[picture.page], Legend) for picture in pictures)


def test_an_agent_looks_back_begins_again_and_is_asked_about_dropped_legends() -> None:
    requests = traffic_of(TrafficShape("agent", 150, shown=6), 11).requests
    assert 15 < sum(request.dropped for request in requests) < 75
    pages = [shown(request) for request in requests]
    assert max(map(len, pages)) == 6
    assert sum(not set(now) & set(before) for before, now in zip(pages, pages[1:], strict=False)) >= 3
    sightings = [page for before, now in zip([[], *pages], pages, strict=False) for page in set(now) - set(before)]
    assert max(Counter(sightings).values()) > 1


def test_novelty_never_shows_a_page_again_and_the_same_prompt_always_does() -> None:
    pages = [page for request in traffic_of(TrafficShape("novelty", 9, shown=6), 2).requests for page in shown(request)]
    assert len(pages) == len(set(pages)) == 54
    same = traffic_of(TrafficShape("same", 3, shown=8), 2)
    assert same.inline and len(same.requests) == 3 and len(set(same.requests)) == 1


def test_a_turn_of_a_conversation_sends_all_before_it_again_with_one_more_page() -> None:
    requests = traffic_of(TrafficShape("talk", 10, shown=6), 4).requests
    for before, now in zip(requests, requests[1:], strict=False):
        assert now.follows == (now.group == before.group)
        if now.follows:
            assert now.pieces[: len(before.pieces)] == before.pieces
            reply, page, question = now.pieces[len(before.pieces) :]
            assert isinstance(reply, AssistantText) and isinstance(page, Picture) and isinstance(question, str)
    assert [len(shown(request)) for request in requests] == [3, 4, 5, 6] * 2 + [3, 4]
    with pytest.raises(EmblemaError, match=f"give {TURNS} or more"):
        TrafficShape("talk", shown=3)


class CountingArm(ServerArm):
    """A server that takes a while, and notes which requests are under way together."""

    def __init__(self) -> None:
        self.open, self.together = set[int](), list[set[int]]()

    def body(self, request: LoadRequest, tokens: int) -> bytes:
        return str(request.group).encode()

    def send(self, body: bytes, arrival: float) -> LoadAnswer:
        assert int(body) not in self.open
        self.open.add(int(body))
        time.sleep(0.02)
        self.together.append(set(self.open))
        self.open.remove(int(body))
        return LoadAnswer(body.decode(), 1.0, 1.0, 1, 1)


def test_at_any_rate_a_turn_waits_for_the_answer_before_it() -> None:
    requests, arm = traffic_of(TrafficShape("talk", 12), 4).requests, CountingArm()
    answers, _ = send_at_rate(arm, requests, float("inf"), 0)
    assert [answer.text for answer in answers] == [str(request.group) for request in requests]
    assert len(arm.together) == 12 and max(map(len, arm.together)) == 3


def served(texts: str, milliseconds: float, computed: int) -> list[LoadAnswer]:
    """Answers of a text each, all in the same time, of 100 rows."""
    seconds = milliseconds / 1e3
    return [LoadAnswer(text, seconds, 2 * seconds, 100, computed, 1, float(computed)) for text in texts]


def test_figures_are_ratios_to_the_first_arm_and_agreement_is_with_full() -> None:
    shape = stages_of(["rag"], 100, 30, 8)["rag"]
    requests = traffic_of(shape, 3).requests
    found = {PREFIX: served("a" * 100, 40, 90), FULL: served("b" * 100, 20, 100)}
    found[AUTO] = served("b" * 99 + "c", 10, 30)
    found[AUTO][-1] = replace(found[AUTO][-1], fell_back=True)
    whole, parts = stage_figures(requests, found)
    auto = {"ttft": 0.25, "throughput": 4.0, "rows": 0.3, "ran": 0.3, "agrees": 0.99, "sure": 99, "wrong": 0.0}
    assert {name: whole[-1][name] for name in auto} == pytest.approx(auto)
    assert whole[0]["agrees"] == 0.0 and whole[0]["ttft"] == 1.0
    assert [part["seen"] for part in parts] == [40, 100] and all(row["method"] == AUTO for row in parts)
    assert list(stage_bars(shape, whole[-1], parts, requests, found)) == []


def test_bounds_are_those_that_were_stated() -> None:
    stated = {"rag": {0.35, 0.15, 0.4, 0.2, 0.99, 0.95}, "agent": {0.36, 1.05, 0.97, 0.95}}
    for stage, shape in stages_of(["rag", "agent"], 200).items():
        requests = traffic_of(shape, 3).requests
        found = {FULL: served("a" * 200, 20, 100), AUTO: served("a" * 200, 10, 14)}
        whole, parts = stage_figures(requests, found)
        bars = list(stage_bars(shape, whole[-1], parts, requests, found))
        assert {bar.bound for bar in bars} == stated[stage]
        # All but the last time of `rag` is on the right side.
        text = bounds([{"engine": "engine", "stage": stage, **bar.data()} for bar in bars])
        assert text.count("**") == (4 if stage == "rag" else 0)


def rated(method: str, rate: float, milliseconds: float) -> Row:
    """A method that answered 20 requests of two tokens as fast as they arrived, or as it could."""
    seconds = 20 / min(rate or 1.0, 1e3 / milliseconds)
    answers = [LoadAnswer("a", milliseconds / 1e3, 1.0, 400, 300, 2)] * 20
    return rate_figures(method, rate, answers, (seconds, 1.0), ["a"] * 20)


def test_bounds_at_rates_are_on_requests_without_a_queue_and_on_the_most_of_each() -> None:
    rows = [rated(PREFIX, rate, 100.0) for rate in (0.0, 8.0, 16.0)]
    rows += [rated(AUTO, rate, 20.0) for rate in (0.0, 8.0, 16.0, 32.0)]
    first, most, spent = rate_bars(rows)
    assert first.value == pytest.approx(0.2) and first.bound == 0.25 and first.count == 20
    assert most.value == pytest.approx(3.2) and most.count == 80 and spent.value == 1.0 and spent.aim
    assert rows[0]["taken"] == 0.25 and rated(AUTO, float("inf"), 20.0)["rate"] is None


def test_the_first_lines_of_the_page_say_what_its_figures_do() -> None:
    found, page = read_load(RESULTS / "load.json"), (RESULTS / "load.md").read_text(encoding="utf-8")
    assert set(SIX) < set(made := blocks(found)) and all(f"<!-- {name} -->" in page for name in made)
    large = [bar for bar in found["bars"] if (bar["engine"], bar["stage"]) == ("engine", "rag-large")]
    first, later, ttft, after = (bar["value"] for bar in large if bar["name"].startswith(("rows", "TTFT")))
    assert by_method(found["stages"], "engine", "rag-large")[AUTO]["agrees"] == 1.0
    assert f"`auto` computes {first:.0%} of the rows at first and\n{later:.0%} after".replace("%", " %") in page
    assert f"takes {ttft:.3f} of a full prefill's time, then {after:.3f}. 200 of 200" in page


def test_figures_of_a_run_take_the_place_of_the_same_stage_s(tmp_path: Path) -> None:
    found, before = (read_load(RESULTS / "load.json") for _ in range(2))
    assert read_load(write_load(found, tmp_path / "load.json")) == found
    row = {**by_method(found["stages"], "engine", "rag")[AUTO], "ms": 1.0}
    put(found, {"stages": [row]})
    assert by_method(found["stages"], "engine", "rag") == {AUTO: row}
    assert len(found["stages"]) == len(before["stages"]) - 7 and found["rates"] == before["rates"]
    (tmp_path / "load.json").write_text("[]")
    with pytest.raises(EmblemaError, match="no file of `benchmarks load`"):
        read_load(tmp_path / "load.json")


def samples(leak: float, handles: float = 0.0) -> list[ProcessSample]:
    """A process whose caches fill at first, with noise, and that leaks so many bytes a second and handles."""
    random = numpy.random.default_rng(0)
    made = []
    for second in range(0, 1_800, 18):
        counted = int(2e8 * min(1.0, second / 900))
        resident = 5e8 + counted + 5e7 * min(1.0, second / 300) + leak * second + random.normal(0, 5e6)
        held = int(25 + handles * second + random.integers(-4, 5))
        made.append(ProcessSample(float(second), int(resident), counted, 20, held))
    return made


def test_leaks_are_seen_and_noise_is_not() -> None:
    sound, leaking = ServeSoak(samples(0.0)), ServeSoak(samples(40_000.0, 0.05))
    assert all(bar.holds for bar in sound.bars())
    assert [bar.holds for bar in leaking.bars()] == [False, False, True, True]
    sound.outcomes[("whole", "500")] += 1
    assert not sound.bars()[-1].holds and sound.table().rows == (("whole", "500", 1),)
    rest = settled(leaking.samples)
    assert rest[0].seconds >= 590
    assert growth(rest, lambda sample: sample.seconds) == pytest.approx(rest[-1].seconds - rest[0].seconds)


def test_a_little_load_of_the_engine_is_measured_and_written(tmp_path: Path) -> None:
    asked = (*LITTLE, "--stages", "rag,agent", "--methods", "full,prefix,query-12%,auto", "--report", str(tmp_path))
    done = benchmarks("load", *asked)
    assert done.returncode == 0, done.stderr
    found = read_load(tmp_path / "load.json")
    assert "--seed 5 --plain --stages rag,agent" in found["runs"][0]["command"] and len(found["stages"]) == 8
    for stage in ("rag", "agent"):
        rows = by_method(found["stages"], "engine", stage)
        assert {rows[FULL][name] for name in ("rows", "ttft", "agrees")} == {rows[PREFIX]["agrees"]} == {1.0}
        assert rows[PREFIX]["ran"] == pytest.approx(rows[PREFIX]["rows"], rel=1e-3)
    assert "<!-- agent -->" in (tmp_path / "load.md").read_text()
    again = benchmarks("load", "--page", "--plain", "--report", str(tmp_path))
    assert again.returncode == 0 and "requests:" not in again.stdout


@pytest.mark.slow
def test_a_server_under_a_little_load_answers_every_method(tmp_path: Path) -> None:
    asked = (*LITTLE, "--engines", "serve", "--stages", "rag", "--rates", "0,inf", "--report", str(tmp_path))
    done = benchmarks("load", *asked, "--methods", "full,prefix,auto")
    assert done.returncode == 0, done.stderr
    rows = read_load(tmp_path / "load.json")["rates"]
    asked_at = {(method, rate) for method in (FULL, PREFIX, AUTO) for rate in (0.0, None)}
    assert {(row["method"], row["rate"]) for row in rows} == asked_at
    for row in rows:
        if row["method"] == AUTO and row["rate"] == 0:
            assert row["taken"] > 0.5
        elif row["method"] == AUTO:
            # Requests that come at once cannot take what the other is still computing: how much they take is chance.
            assert 0 < row["taken"] < 1
        else:
            assert row["requests"] == 2 and row["agrees"] == 1.0 and row["processor_ms"] > 0


@pytest.mark.nightly
def test_a_short_soak_ends_as_it_should(tmp_path: Path) -> None:
    found = soak_server(0.2, 1, tmp_path, lambda sample: None)
    assert len(found.samples) > 3 and found.outcomes.total() > 5 and found.bars()[-1].holds
