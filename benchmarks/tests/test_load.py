"""Load: requests follow from a seed, answers become figures, bounds speak of what was promised, the page is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.load.bars import rate_bars, stage_bars
from benchmarks.load.figures import LoadFigures, RateFigures, rate_figures, read_load, stage_figures, stretches
from benchmarks.load.page import blocks, bounds
from benchmarks.load.requests import AFTER, GONE, SHOWN, LoadRequest, Picture, Traffic, TrafficShape, traffic_of
from benchmarks.load.soak import ProcessSample, ServeSoak, growth, settled, soak_server
from benchmarks.load.stages import AUTO, FULL, PREFIX, SIX, STAGES, LoadAnswer, stages_of
from benchmarks.tasks.episodes import facts
from benchmarks.tasks.world import LANDS, Episode, Legend, Map
from benchmarks.tests.running import benchmarks, refused
from emblema.errors import EmblemaError, PromptError

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


def legends(traffic: Traffic, request: LoadRequest) -> set[str]:
    """All lands that the legends of a request name."""
    pages = [traffic.pages[page] for page in shown(request)]
    return {LANDS[land] for page in pages if isinstance(page, Legend) for land in page.lands.values()}


SHAPES = st.builds(
    TrafficShape,
    kind=st.sampled_from(["rag", "agent", "novelty"]),
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
    assert traffic.inline == (shape.kind != "rag")
    for request in traffic.requests:
        pages = shown(request)
        assert len(pages) <= shape.shown and len(set(pages)) == len(pages)
        if request.where in (GONE, AFTER):
            assert shape.kind == "agent"
            assert request.answer in legends(traffic, request) or request.where == GONE
        else:
            assert request.answer in answers(traffic, request)


def test_rag_shows_legends_and_maps_in_random_order_and_only_legends_slide() -> None:
    traffic = traffic_of(TrafficShape("rag", 60, pages=24, shown=8, slid=True), 5)
    assert len({tuple(shown(request)) for request in traffic.requests}) >= 55
    for request in traffic.requests:
        kinds = Counter(type(traffic.pages[page]) for page in shown(request))
        assert 1 <= kinds[Legend] <= 2 and kinds[Map] == 8 - kinds[Legend]
        pictures = [piece for piece in request.pieces if isinstance(piece, Picture)]
        assert all(picture.slid == isinstance(traffic.pages[picture.page], Legend) for picture in pictures)


def test_an_agent_looks_back_begins_again_and_is_asked_about_dropped_legends() -> None:
    requests = traffic_of(TrafficShape("agent", 150, shown=6), 11).requests
    wheres = Counter(request.where for request in requests)
    assert set(wheres) == {SHOWN, AFTER, GONE} and wheres[GONE] > 15
    pages = [shown(request) for request in requests]
    assert max(map(len, pages)) == 6
    assert sum(not set(now) & set(before) for before, now in zip(pages, pages[1:], strict=False)) >= 3
    sightings = [page for before, now in zip([[], *pages], pages, strict=False) for page in set(now) - set(before)]
    assert max(Counter(sightings).values()) > 1


def test_novelty_never_shows_a_page_again_and_noise_always_does() -> None:
    pages = [page for request in traffic_of(TrafficShape("novelty", 9, shown=6), 2).requests for page in shown(request)]
    assert len(pages) == len(set(pages)) == 54
    noise = traffic_of(TrafficShape("noise", 3, side=28, shown=2), 2)
    assert len(set(noise.requests)) == 1 and noise.pages[0].image().tobytes() != noise.pages[1].image().tobytes()


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"kind": "rush"}, "unknown traffic 'rush'"), ({"requests": 0}, "0 requests"), ({"shown": 29}, "29 of 30 pages")],
)
def test_a_wrong_shape_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(PromptError, match=told):
        TrafficShape(**({"kind": "rag"} | changes))  # type: ignore[arg-type]


def served(stage: str, texts: str, milliseconds: float, computed: int) -> list[LoadAnswer]:
    """Answers of a text each, all in the same time, of 100 rows."""
    seconds = milliseconds / 1e3
    return [LoadAnswer(text, seconds, 2 * seconds, 100, computed, 1, seconds, float(computed)) for text in texts]


def test_figures_are_ratios_to_the_first_arm_and_agreement_is_with_full() -> None:
    stage = stages_of(["rag"], 100, 30, 8)[0]
    traffic = traffic_of(stage.shape, 3)
    found = {PREFIX: served("rag", "a" * 100, 40, 90), FULL: served("rag", "b" * 100, 20, 100)}
    found[AUTO] = served("rag", "b" * 99 + "c", 10, 30)
    found[AUTO][-1] = replace(found[AUTO][-1], fell_back=True)
    whole, parts = stage_figures("engine", "rag", traffic, found)
    auto = whole[-1]
    assert (auto.ttft, auto.throughput, auto.processor, auto.ms) == pytest.approx((0.25, 4.0, 0.25, 10.0))
    assert (auto.rows, auto.ran, auto.agrees, auto.sure, auto.wrong) == pytest.approx((0.3, 0.3, 0.99, 99, 0.0))
    assert whole[0].agrees == 0.0 and whole[0].ttft == 1.0
    assert [part.seen for part in parts] == [40, 100] and all(row.method == AUTO for row in parts)
    assert list(stage_bars(stage, auto, parts, traffic, found)) == []


def test_stretches_cover_all_requests_and_none_is_short() -> None:
    for count in (1, 39, 40, 79, 80, 200):
        found = stretches(count)
        assert [place for part in found for place in part] == list(range(count))
        assert len(found) == max(1, count // 40)


def test_bounds_are_those_that_were_stated() -> None:
    shape = stages_of(["rag", "agent"], 200)
    for stage, names in zip(shape, ({0.35, 0.15, 0.4, 0.2, 0.99, 0.95}, {0.36, 1.05, 0.97, 0.95}), strict=True):
        traffic = traffic_of(stage.shape, 3)
        found = {FULL: served("x", "a" * 200, 20, 100), AUTO: served("x", "a" * 200, 10, 14)}
        whole, parts = stage_figures("engine", stage.name, traffic, found)
        bars = list(stage_bars(stage, whole[-1], parts, traffic, found))
        assert {bar.bound for bar in bars} == names
        # All but the last time of `rag` is on the right side.
        text = bounds(bars)
        assert text.count("**") == (4 if stage.name == "rag" else 0)


def rated(method: str, rate: float, milliseconds: float) -> RateFigures:
    """A method that answered 20 requests of two tokens as fast as they arrived, or as it could."""
    seconds = 20 / min(rate or 1.0, 1e3 / milliseconds)
    answers = [LoadAnswer("a", milliseconds / 1e3, 1.0, 400, 300, 2)] * 20
    return rate_figures("serve", "rag", method, rate, [LoadRequest((), "a")] * 20, answers, (seconds, 1.0), ["a"] * 20)


def test_bounds_at_rates_are_on_requests_without_a_queue_and_on_the_most_of_each() -> None:
    rows = [rated(PREFIX, rate, 100.0) for rate in (0.0, 8.0, 16.0)]
    rows += [rated(AUTO, rate, 20.0) for rate in (0.0, 8.0, 16.0, 32.0)]
    first, most, spent = rate_bars(rows)
    assert first.value == pytest.approx(0.2) and first.bound == 0.25 and first.count == 20
    assert most.value == pytest.approx(3.2) and most.count == 80 and spent.value == 1.0 and spent.aim
    assert rows[0].taken == 0.25 and rated(AUTO, float("inf"), 20.0).rate is None


def test_the_page_holds_its_figures() -> None:
    """Every table of the page is what the committed figures make, and so is what its first lines say."""
    found = read_load(RESULTS / "load.json")
    page = (RESULTS / "load.md").read_text(encoding="utf-8")
    made = blocks(found)
    assert set(SIX) < set(made)
    for name, text in made.items():
        own = page.split(f"<!-- {name} -->")[1].split("<!--/-->")[0]
        assert squeezed(own) == squeezed(text)
    first, after, wait, later = (
        bar.value for bar in found.bars if bar.stage == "rag-large" and bar.name.startswith(("rows", "TTFT"))
    )
    assert [f"{value:.3f}" for value in (first, after, wait, later) if value] == ["0.121", "0.069", "0.193", "0.135"]
    assert {row.agrees for row in found.stages if (row.stage, row.method) == ("rag-large", AUTO)} == {1.0}
    assert "`auto` computes 12 % of the rows at first and\n7 % after 160 requests" in page
    assert "takes 0.193 of a full prefill's time, then 0.135. 200 of 200" in page
    assert len(page.split()) <= 2_200


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_figures_of_a_run_take_the_place_of_the_same_stage_s(tmp_path: Path) -> None:
    found = read_load(RESULTS / "load.json")
    assert read_load(found.write(tmp_path / "load.json")) == found
    counts = {one.name: len(getattr(found, one.name)) for one in fields(LoadFigures)}
    row = replace(found.of("engine", "rag")[AUTO], ms=1.0)
    found.put(LoadFigures(stages=[row]))
    assert found.of("engine", "rag") == {AUTO: row} and len(found.stages) == counts["stages"] - 7
    assert len(found.rates) == counts["rates"]
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
        made.append(ProcessSample(float(second), int(resident), counted, 20, held, 5 * second))
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
    assert "--seed 5 --stages rag,agent" in found.runs[0].command and len(found.stages) == 8
    for stage in ("rag", "agent"):
        rows = found.of("engine", stage)
        assert rows[FULL].rows == rows[FULL].ttft == rows[FULL].agrees == rows[PREFIX].agrees == 1.0
        assert rows[PREFIX].ran == pytest.approx(rows[PREFIX].rows, rel=1e-3)
    assert "<!-- agent -->" in (tmp_path / "load.md").read_text()
    again = benchmarks("load", "--page", "--plain", "--report", str(tmp_path))
    assert again.returncode == 0 and "requests:" not in again.stdout


@pytest.mark.slow
def test_a_server_under_a_little_load_answers_every_method(tmp_path: Path) -> None:
    asked = (*LITTLE, "--engines", "serve", "--stages", "rag", "--rates", "0,inf", "--report", str(tmp_path))
    done = benchmarks("load", *asked, "--methods", "full,prefix,auto")
    assert done.returncode == 0, done.stderr
    rows = read_load(tmp_path / "load.json").rates
    assert {(row.method, row.rate) for row in rows} == {(m, r) for m in (FULL, PREFIX, AUTO) for r in (0.0, None)}
    assert all(row.requests == 2 and row.agrees == 1.0 and row.processor_ms > 0 for row in rows if row.method != AUTO)
    assert all((row.taken or 0.0) > 0.5 for row in rows if row.method == AUTO)


@pytest.mark.slow
def test_a_short_soak_ends_as_it_should(tmp_path: Path) -> None:
    found = soak_server(0.2, 1, tmp_path, lambda sample: None)
    assert len(found.samples) > 3 and found.outcomes.total() > 5
    assert not any(end.startswith("500") for _, end in found.outcomes)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stages", "speed"), "--only 'speed'"),
        (("--methods", "magic"), "magic"),
        (("--stages", "rag", "--shown", "40"), "40 of 30 pages"),
        (("--rates", "-1"), "requests a second"),
        (("--rates", "1"), "rates are of servers"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in refused("load", "--report", str(tmp_path / "pages"), *options)
    assert set(SIX) < set(STAGES)
