"""Which steps have room for what no request waits for."""

from typing import Any

import pytest

from emblema.served.captures import CaptureQueue
from emblema.vllm.batch_places import BatchPlaces
from emblema.vllm.captures import BESIDE_ROWS, PageCaptures
from emblema.vllm.idle_work import IdleWork
from emblema.vllm.step_metadata import StepMetadata

ROWS, PLACES = 2048, 8


class Side:
    """A canary that says what it is told; `running` is the test's."""

    def __init__(self, running: bool) -> None:
        self.running, self.waiting = running, not running
        self.begun = self.given_up = 0

    def tell(self, step: StepMetadata) -> StepMetadata:
        return step

    def begin(self, step: StepMetadata, *given: Any) -> StepMetadata:
        self.begun += 1
        return step

    def give_up(self) -> None:
        self.given_up += 1


def fill(side: Side, scheduled: dict[str, tuple[int, int]], **facts: bool) -> StepMetadata:
    work = IdleWork(None, side, ROWS, facts.pop("together", False))  # type: ignore[arg-type]
    told = {"idle": not scheduled, "waits": False, "reads": False} | facts
    return work.fill(StepMetadata(), scheduled, BatchPlaces(PLACES), **told)


def test_all_of_a_step_that_nobody_needs() -> None:
    side = Side(running=True)
    step = fill(side, {})
    assert (step.side_rows, step.side_slots) == (ROWS, PLACES) and side.begun == 1


def test_a_little_beside_answers_that_are_decoded() -> None:
    assert fill(Side(running=True), {"a": (7, 1), "b": (9, 1)}).side_rows == BESIDE_ROWS


@pytest.mark.parametrize("scheduled", [{"a": (0, 5)}, {"a": (0, 5), "b": (9, 1)}])
def test_nothing_beside_a_prefill(scheduled: dict[str, tuple[int, int]]) -> None:
    side = Side(running=True)
    assert fill(side, scheduled).side_rows == 0 and not side.begun and not side.given_up


class Hurried(PageCaptures):
    """Captures that requests wait for, of one chunk of a hundred rows."""

    urgent, running_rows = True, 100

    def __init__(self) -> None:
        super().__init__(CaptureQueue(lambda *given: None), 1, 32)

    def begin(self, idle: bool) -> tuple[()]:
        return ()


def test_what_requests_wait_for_is_captured_beside_prefills_in_the_rows_that_are_left() -> None:
    work = IdleWork(Hurried(), None, ROWS, False)
    assert work.urgent and not IdleWork(None, None, ROWS, False).urgent
    for scheduled, rows in (({"a": (0, 500)}, 100), ({"a": (0, ROWS - 30)}, 30)):
        step = work.fill(StepMetadata(), scheduled, BatchPlaces(PLACES), idle=False, waits=True, reads=True)
        assert step.side_rows == rows and step.side_slots == PLACES


def test_nothing_begins_and_pages_are_given_up_where_a_request_waits_for_them() -> None:
    side = Side(running=True)
    step = fill(side, {"a": (7, 1)}, waits=True)
    assert side.given_up == 1 and not side.begun and step.side_rows == BESIDE_ROWS
    assert fill(side, {"a": (7, 1)}, waits=True, reads=True).side_rows == 0 and side.given_up == 1


def test_no_rows_for_what_has_no_pages() -> None:
    assert fill(Side(running=False), {}).side_rows == 0


def test_engines_that_step_together_add_nothing_to_an_empty_step() -> None:
    side = Side(running=True)
    assert fill(side, {}, together=True) == StepMetadata() and not side.begun
    assert not IdleWork(None, side, ROWS, True).pending and IdleWork(None, side, ROWS, False).pending  # type: ignore[arg-type]
