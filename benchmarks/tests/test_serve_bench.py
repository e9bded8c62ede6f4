"""The service's benchmark: replies decoded together are those of one by one; a leak shows as growth, noise does not."""

from pathlib import Path

import numpy
import pytest
from rich.console import Console

from benchmarks.serve.decoding import SIZES, BatchDecoding
from benchmarks.serve.load import METHODS, LoadPlan, LoadRun
from benchmarks.serve.report import load_table, write_serve
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
    runs = [
        LoadRun("talks", method, rate, (0.1, 0.2), 4.0, 16, 100, 400, 2, 1) for rate in (2.0, 4.0) for method in METHODS
    ]
    table = load_table(runs, 1.0)
    assert [bar.holds for bar in table.bars] == [False, False]
    page = write_serve([table], runs, "python -m benchmarks serve", {"seed": 0}, "reference", tmp_path)
    assert "patch-25%" in page.read_text() and (tmp_path / "serve.json").exists()


def test_every_rate_has_orders_of_its_own() -> None:
    plan = LoadPlan("reference", (2.0, 4.0), 1, 3)
    orders = {tuple(id(part) for part in plan.of("talks", place).turns[-1].parts) for place in (0, 1)}
    assert len(orders) == 2 and plan.parts == (("talks", 0), ("talks", 1), ("novelty", 1))
    assert len(plan.of("talks", 0).turns) == 4 and plan.of("novelty", 1).pool == ()


@pytest.mark.slow
def test_a_short_soak_ends_as_it_should(tmp_path: Path) -> None:
    found = soak_server(0.2, 1, tmp_path, lambda sample: None)
    assert len(found.samples) > 3 and sum(found.outcomes.values()) > 5
    assert not any(end.startswith("500") for _, end in found.outcomes)
