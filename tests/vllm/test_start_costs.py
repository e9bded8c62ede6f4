"""What linking has to save, from seconds that are measured at a server's start."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from emblema.kv.layout import LayerRows
from emblema.vllm import start_costs
from emblema.vllm.start_costs import NEVER, PLACED, StartCosts, measure_costs, placing
from tests.vllm.requests import SPEC

CPU = torch.device("cpu")


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float, row: float) -> Callable[[int], None]:
        def run(rows: int) -> None:
            self.runs.append(rows)
            self.now += seconds + row * rows

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(start_costs, "time", clock)
    return clock


def measured(clock: Clock, row: float, taken: float, most_rows: int = 8192) -> StartCosts:
    return measure_costs(clock.work(0.01, row), clock.work(0.001, taken), most_rows, list, CPU)


def test_linking_saves_what_a_forward_and_a_load_cost(clock: Clock) -> None:
    costs = measured(clock, row=1e-4, taken=1e-5)
    assert costs.row == pytest.approx(1e-4) and costs.taken == pytest.approx(1e-5)
    assert costs.least_rows == pytest.approx((0.0101 + 0.00116) / 8e-5, abs=1)


def test_linking_never_pays_where_placing_a_row_takes_as_long_as_computing_it(clock: Clock) -> None:
    assert measured(clock, row=1e-5, taken=1e-5).least_rows == NEVER
    assert measured(clock, row=0.0, taken=0.0).least_rows == NEVER


@pytest.mark.parametrize(("row", "most_rows", "longest"), [(1e-4, 8192, 1024), (1e-2, 8192, 16), (1e-6, 1000, 256)])
def test_forwards_grow_until_rows_are_most_of_their_time(
    clock: Clock, row: float, most_rows: int, longest: int
) -> None:
    measured(clock, row, 0.0, most_rows)
    assert max(rows for rows in clock.runs if rows > 1) == max(longest, max(PLACED))


def test_workers_go_on_together(clock: Clock) -> None:
    """One of them finds its forwards long enough: none runs another."""
    measure_costs(clock.work(0.01, 1e-6), clock.work(0.001, 0.0), 8192, lambda facts: [False] * len(facts), CPU)
    assert set(clock.runs) == {1, *PLACED}


def test_rows_are_placed_as_those_of_a_linked_prompt() -> None:
    written: list[tuple[int, int]] = []

    def write(layer: int, slots: torch.Tensor | slice, rows: LayerRows) -> None:
        assert int(torch.arange(512)[slots].min()) >= 32, "the first page is not a request's"
        written.append((layer, rows.tokens))

    pages = SimpleNamespace(
        rows=torch.empty(0),
        slots=lambda blocks, rows: torch.cat([32 * block + torch.arange(32) for block in blocks])[:rows],
        write=write,
    )
    place = placing(SPEC, pages, 32)  # type: ignore[arg-type]
    for rows in PLACED:
        place(rows)
    assert written == [(layer, rows) for rows in PLACED for layer in range(len(SPEC.layouts))]
