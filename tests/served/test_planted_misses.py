"""Planted misses where a serving engine's requests are planned: one cause each, and what the report tells of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.kv.patch import form_patch
from emblema.link.miss_reasons import MissReason
from emblema.link.misses import MissData
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.request_report import report_of
from emblema.served.requests import MediaItem, ServedRequest
from emblema.store import Store
from emblema.store.record import Terms
from emblema.store.settings import StoreSettings
from tests.link.pieces import LAYOUTS
from tests.planted_misses import PlantedMisses
from tests.served.test_request_plan import FULL_RANK, SpanCosts, keys_of
from tests.vllm.requests import SPEC, TOKENS, planner_of, put, request, unplanned, zeros

pytestmark = pytest.mark.usefixtures("planners_end")


class Plant:
    """What a miss is planted in: a store, and what plans for it."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder, self._opened, self.now = folder, opened, 1e9
        self.store = self.opened()
        self.planning = self.planning_of(self.store)

    def opened(self, folder: Path | None = None, **options: Any) -> Store:
        terms = options.pop("terms", Terms())
        settings = StoreSettings(device="cpu", host_bytes=0, terms=terms, clock=lambda: self.now)
        return self._opened.enter_context(Store(folder, settings=settings, **options))

    def planning_of(self, store: Store, spec: Any = SPEC) -> RequestPlanning:
        return RequestPlanning(spec, store, "auto", print)

    def plan(self, shown: ServedRequest, **costs: Any) -> RequestPlan:
        return self.planning.plan(shown, SpanCosts(**costs))


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    with ExitStack() as opened:
        yield Plant(tmp_path / "store", opened)


def misses(plan: RequestPlan) -> list[MissData]:
    found: Any = report_of(plan, SPEC)["misses"]
    return list(found)


def conversation(*pictures: str, turns: int = 1) -> ServedRequest:
    """Return a conversation about some pictures that has been going on for some turns."""
    shown = request(*pictures)
    return replace(shown, token_ids=[*shown.token_ids, *range(20, 20 + 5 * turns)])


PLANTED = PlantedMisses[Plant]()
plants = PLANTED.add


@plants(MissReason.NEW)
def a_picture_that_was_never_shown(plant: Plant) -> list[MissData]:
    return misses(plant.plan(request("a")))


@plants(MissReason.NEW)
def a_picture_that_another_tenant_has(plant: Plant) -> list[MissData]:
    put(plant.store, request("a", salt="one"))
    plant.plan(request("a", salt="one"))
    return misses(plant.plan(request("a", salt="two")))


@plants(MissReason.NOT_STORED, "shown before, and not stored since")
def a_picture_that_waits_to_be_captured(plant: Plant) -> list[MissData]:
    plant.plan(request("a"))
    return misses(plant.plan(request("a")))


@plants(MissReason.CHANGED, "another was here when the conversation was shorter", part=1)
def a_picture_that_changed_in_its_place(plant: Plant) -> list[MissData]:
    plant.plan(conversation("a", "b"))
    return misses(plant.plan(conversation("a", "b again", turns=2)))


@plants(MissReason.OTHER_OPTIONS, "seconds 1.0 before, 0.5 now")
def a_clip_at_another_pace(plant: Plant) -> list[MissData]:
    for seconds in (1.0, 0.5):
        item = MediaItem(0, "video", "clip", 2, TOKENS, digest="shown clip", seconds=seconds)
        plan = plant.plan(ServedRequest([1, 2, *[9] * TOKENS, 3], (item,)))
    return misses(plan)


@plants(MissReason.OTHER_MODEL, "stored by model eeeeeeee in bfloat16, this is ffffffff")
def a_picture_that_was_stored_in_another_data_type(plant: Plant) -> list[MissData]:
    other = replace(SPEC, fingerprint="e" * 64, dtype=torch.bfloat16)
    store = plant.opened(plant.folder)
    plan = plant.planning_of(store, other).plan(request("a"))
    for stub in plan.missing:
        store.tenant().put(replace(stub, rows=tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)))
    store.close()
    return misses(plant.planning_of(plant.opened(plant.folder)).plan(request("a")))


@plants(MissReason.EVICTED)
def a_picture_that_left_the_disk(plant: Plant) -> list[MissData]:
    store = plant.opened(plant.folder)
    put(store, request("a"))
    store.flush()
    size = store.statistics.disk_bytes
    store.close()
    small = plant.opened(plant.folder, device_bytes=size * 3 // 2, disk_bytes=size * 3 // 2)
    put(small, request("b"))
    small.flush()
    return misses(plant.planning_of(small).plan(request("a")))


@plants(MissReason.EXPIRED)
def a_picture_whose_time_ended(plant: Plant) -> list[MissData]:
    store = plant.opened(plant.folder, terms=Terms(seconds=60))
    put(store, request("a"))
    store.close()
    plant.now += 61
    return misses(plant.planning_of(plant.opened(plant.folder)).plan(request("a")))


@plants(MissReason.DELETED)
def a_picture_that_was_deleted(plant: Plant) -> list[MissData]:
    put(plant.store, request("a"))
    (chunk,) = (key.chunk for key in keys_of(request("a")))
    plant.store.tenant().delete(chunk)
    return misses(plant.plan(request("a")))


@plants(MissReason.LOST, "stored rows could not be loaded; they were computed")
def a_picture_whose_rows_cannot_be_loaded(plant: Plant) -> list[MissData]:
    put(plant.store, request("a"))
    plan = plant.plan(replace(request("a"), options={"strategy": "blind"}))
    plan.fail()
    return misses(plan)


@plants(MissReason.NEW_ORDER, "its antecedents are not known", part=1)
def a_picture_behind_another_than_before(plant: Plant) -> list[MissData]:
    put(plant.store, request("a", "b"))
    return misses(plant.plan(request("a", "b")))


@plants(MissReason.COSTS, "linking was expected to cost more than it saves")
def a_picture_that_is_as_fast_computed(plant: Plant) -> list[MissData]:
    shown = request("a")
    put(plant.store, shown)
    patch = form_patch([zeros(layout, TOKENS) for layout in LAYOUTS], FULL_RANK, torch.float32)
    assert plant.store.tenant().put_artifact(keys_of(shown)[0], patch)
    return misses(plant.plan(shown, spans=lambda spans, rows: False))


@plants(MissReason.UNSURE, "margin 0.25")
def a_picture_of_an_answer_that_was_not_sure(plant: Plant) -> list[MissData]:
    put(plant.store, request("a"))
    plan = plant.plan(request("a"))
    plan.margin = 0.25
    return misses(plan)


@plants(MissReason.STRATEGY, "full")
def a_picture_that_the_strategy_computes(plant: Plant) -> list[MissData]:
    put(plant.store, request("a"))
    return misses(plant.plan(request("a", strategy="full")))


def served(plant: Plant, *shown: ServedRequest) -> list[MissData]:
    """Return what a server's report tells of the last of some requests."""
    planner = planner_of(plant.opened(), "auto")
    for number, each in enumerate(shown):
        unplanned(planner, str(number), each)
        report: Any = planner.finish(str(number))
    return list(report["misses"])


@plants(MissReason.REFUSED, "its cache_salt is the shared library's")
def a_picture_of_a_request_with_a_wrong_salt(plant: Plant) -> list[MissData]:
    return served(plant, request("a", salt="emblema 2026-11 shared library 1"))


@plants(MissReason.REFUSED, "a picture is not there to be checked against its name")
def a_picture_that_the_engine_has_dropped(plant: Plant) -> list[MissData]:
    shown = request("a")
    return served(plant, replace(shown, items=tuple(replace(item, digest="") for item in shown.items)))


def renamed(picture: str, **more: Any) -> ServedRequest:
    """Return a request whose one picture has a name that a client gave it."""
    shown = request(picture)
    return replace(shown, items=tuple(replace(item, identifier="uuid", **more) for item in shown.items))


@plants(MissReason.CHANGED, "other pixels of this size under its uuid before")
def a_picture_with_the_uuid_of_another(plant: Plant) -> list[MissData]:
    return served(plant, renamed("a"), renamed("b"))


@plants(MissReason.OTHER_OPTIONS, "300 rows under its uuid before, 200 now")
def a_picture_with_its_uuid_at_another_size(plant: Plant) -> list[MissData]:
    return served(plant, renamed("a"), renamed("a", digest="shown a, smaller", tokens=200))


@plants(MissReason.CHANGED, "its uuid was given to several pictures")
def a_picture_with_a_uuid_of_several(plant: Plant) -> list[MissData]:
    return served(plant, renamed("a"), renamed("b"), renamed("c"))


@pytest.mark.parametrize("name", PLANTED.table)
def test_a_planted_miss_is_told_with_its_reason(plant: Plant, name: str) -> None:
    rows, more = PLANTED.told(name, plant)
    assert rows == (200 if "200 now" in more else TOKENS)


def test_at_least_twenty_reasons_and_causes_are_planted_with_the_engine() -> None:
    assert {MissReason.LOST, MissReason.REFUSED} <= PLANTED.reasons


def test_a_prompt_that_waits_for_captures_is_told_of_as_it_was_first(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned again once its pictures were to be there; that it waited makes no picture an old one."""
    shown, other = request("a"), plant.plan(request("b"))
    monkeypatch.setattr(plant.planning, "_plan", lambda *given: replace(other, awaits=True))
    plant.planning.plan(shown)
    monkeypatch.undo()
    assert [why for _, _, why, _ in misses(plant.plan(shown))] == [MissReason.NEW]


def test_nothing_is_told_where_all_is_taken(plant: Plant) -> None:
    shown = request("a", "b")
    put(plant.store, shown)
    plan = plant.plan(replace(shown, options={"strategy": "blind"}))
    plan.linked = 2 * TOKENS
    assert misses(plan) == []
