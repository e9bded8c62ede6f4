"""The service's benchmark: replies decoded together are those of one by one; a leak shows as growth, noise does not."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from PIL.Image import Image
from rich.console import Console

from benchmarks.serve.decoding import SIZES, BatchDecoding
from benchmarks.serve.load import METHODS, LoadPlan, LoadRun, measure_load
from benchmarks.serve.report import load_tables, write_serve
from benchmarks.serve.requests import LARGE, NOVELTY, SUBSETS, TALKS, TEN, TRAFFIC, load_traffic
from benchmarks.serve.run import ServeBench, ServeOptions
from benchmarks.serve.servers import EMBEDDED, VLLM
from benchmarks.serve.single import SinglePlan, measure_knobs, measure_pictures
from benchmarks.serve.soak import ProcessSample, ServeSoak, soak_server
from benchmarks.serve.soak_report import growth, settled, soak_bars, write_serve_soak
from emblema import Engine


def test_replies_decoded_together_are_those_of_one_by_one() -> None:
    with Engine.load("reference") as engine:
        found = BatchDecoding(engine, 5, steps=4).round(2)
    assert set(found.seconds) == {0, *SIZES} and min(found.seconds.values()) > 0
    assert found.equal[0] == found.equal[1] == 32 * len(SIZES)


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
    quiet, leaking = ServeSoak(samples(0.0)), ServeSoak(samples(40_000.0, 0.05))
    assert all(bar.holds for bar in soak_bars(quiet))
    assert [bar.holds for bar in soak_bars(leaking)] == [False, False, True, True]
    quiet.outcomes[("whole", "500")] += 1
    assert not soak_bars(quiet)[-1].holds
    rest = settled(leaking.samples)
    assert rest[0].seconds >= 590 and growth(rest, lambda sample: sample.seconds) == pytest.approx(
        rest[-1].seconds - rest[0].seconds
    )


def test_pages_are_written(tmp_path: Path) -> None:
    found = ServeSoak(samples(0.0), seconds=1_800.0)
    found.outcomes[("whole", "200")] += 3
    write_serve_soak(found, {"minutes": 30.0}, tmp_path, Console(quiet=True))
    assert "growth of open handles" in (tmp_path / "serve-soak.md").read_text()


def loaded(method: str, rate: float, milliseconds: float, engine: str = EMBEDDED, traffic: str = SUBSETS) -> LoadRun:
    """A method that answered 20 requests of two tokens as fast as they arrived, or as it could."""
    seconds = 20 / min(rate or 1.0, 1_000 / milliseconds)
    return LoadRun(engine, traffic, method, rate, (milliseconds / 1_000,) * 20, seconds, 1.0, 40, 100, 400, 19, 10)


def test_bars_are_on_requests_without_a_queue_and_on_the_most_of_each(tmp_path: Path) -> None:
    runs = [loaded("prefix", rate, 100.0) for rate in (0.0, 8.0, 16.0)]
    runs += [loaded("auto", rate, 20.0) for rate in (0.0, 8.0, 16.0, 32.0)]
    runs += [replace(run, traffic=TALKS) for run in runs] + [replace(run, engine=VLLM) for run in runs]
    tables = load_tables(runs)
    assert [table.name for table in tables] == ["embedded-subsets", "embedded-talks", "vllm-subsets"]
    first, most, spent = tables[0].bars
    assert first.value == pytest.approx(0.2) and first.holds and "one after another" in first.name
    assert most.value == pytest.approx(3.2) and most.count == 80
    assert spent.value == 1.0 and spent.aim
    assert [("at 8 a second" in bar.name, bar.holds) for bar in tables[1].bars] == [
        (True, True), (True, False), (False, True), (False, False)
    ]  # fmt: skip
    page = write_serve(tables, runs, "python -m benchmarks serve", {"seed": 0}, "reference", tmp_path)
    assert "vllm, subsets: TTFT p50 of auto" in page.read_text() and (tmp_path / "serve.json").exists()


@pytest.mark.parametrize("name", TRAFFIC)
def test_every_rate_has_requests_of_its_own(name: str) -> None:
    traffic = load_traffic(name, (2.0, 4.0), 8, 3)
    asked = [
        [part if isinstance(part, str) else part.tobytes() for part in r.parts] for p in traffic.portions for r in p
    ]
    assert len({str(parts) for parts in asked}) == len(asked) and len(traffic.portions) == len(traffic.rates)
    assert [len(portion) for portion in traffic.portions] == {NOVELTY: [8], LARGE: [4, 4]}.get(name, [8, 8])
    if name in TEN:
        assert {sum(isinstance(part, Image) for part in r.parts) for r in traffic.portions[-1]} == {10}
    # Requests name what was uploaded by the picture itself.
    uploaded = {id(page) for page in traffic.pages}
    shown = {id(part) for portion in traffic.portions for r in portion for part in r.parts if isinstance(part, Image)}
    assert not traffic.files or shown <= uploaded


def test_a_run_goes_on_with_the_part_it_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(plan: LoadPlan, engine: str, name: str, *rest: object) -> tuple[LoadRun, ...]:
        if name == "windows" and not measured[1:]:
            measured.append("killed")
            raise KeyboardInterrupt
        measured.append(name)
        return (loaded("prefix", 4.0, 100.0, engine, name), loaded("auto", 4.0, 20.0, engine, name))

    monkeypatch.setattr("benchmarks.serve.run.measure_load", measure)
    plan = LoadPlan("reference", (4.0, 8.0), 8, 0)
    options = ServeOptions(
        "python -m benchmarks serve", ("load",), (EMBEDDED,), ("subsets", "windows"), plan, 1, SinglePlan(2, 0)
    )

    def run() -> Path:
        return ServeBench(options, lambda: pytest.fail("no model is needed"), tmp_path, Console(quiet=True)).run()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert "windows" in run().read_text() and measured == ["subsets", "killed", "windows"]


@pytest.mark.slow
def test_a_short_soak_ends_as_it_should(tmp_path: Path) -> None:
    found = soak_server(0.2, 1, tmp_path, lambda sample: None)
    assert len(found.samples) > 3 and sum(found.outcomes.values()) > 5
    assert not any(end.startswith("500") for _, end in found.outcomes)


@pytest.mark.slow
def test_a_server_under_load_answers_every_method(tmp_path: Path) -> None:
    found = measure_load(LoadPlan("reference", (8.0, 16.0), 8, 0), EMBEDDED, SUBSETS, tmp_path, lambda run: None)
    assert {run.method for run in found} == set(METHODS[EMBEDDED]) and {run.rate for run in found} == {8.0, 16.0}
    assert all(len(run.ttfts) == 8 and run.processor > 0 and run.tokens >= 8 for run in found)
    assert all(run.agreeing == 8 for run in found if run.method == "prefix")
    assert all(run.cached > 0.7 * run.prompt for run in found if run.method in ("auto", "full-reuse"))


@pytest.mark.slow
def test_one_request_at_a_time_by_knob_and_by_pictures() -> None:
    plan, screen = SinglePlan(1, 0), Console(quiet=True)
    with Engine.load("reference") as engine:
        knobs = measure_knobs(engine, plan, screen)
        two, every = measure_pictures(engine, plan, screen)
    assert {row["K or R"] for row in knobs.records if row["method"] == "mpic"} == {4, 8, 16, 32, 64, 128}
    assert {row["method"] for row in two.records} == {"prefix", "full-reuse"} and len(every.rows) == 2 * 5 * 6
    for row in knobs.records:
        assert row["method"] != "prefix" or row["TTFT to prefix"] == 1.0
