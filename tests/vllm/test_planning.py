"""Plans of requests to vLLM, without vLLM: no second pass, and patches only of what comes again."""

from collections.abc import Iterator

import pytest
import torch

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.patch import form_patch
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.policy import COMPUTED, Lane, Policy
from emblema.store import Store
from emblema.vllm.model_spec import ModelSpec
from emblema.vllm.planner import MOST_SKETCHES, RequestPlanner
from emblema.vllm.request_plan import MediaItem, RequestPlan, ServedRequest, build_prompt, plan_request
from tests.link.pieces import LAYOUTS

SPEC = ModelSpec("test", "f" * 64, LAYOUTS, {}, 1, ((), ()), 1, torch.float32, torch.device("cpu"))
TOKENS = 300
"""Rows of a picture: long enough for a second pass to pay, were there one."""


def request(*pictures: str, salt: str | None = None, **options: object) -> ServedRequest:
    items, tokens = [], [1, 2]
    for index, name in enumerate(pictures):
        items.append(MediaItem(index, "image", name, len(tokens), TOKENS))
        tokens += [9] * TOKENS + [3]
    return ServedRequest(tokens, tuple(items), salt, options)


def put(store: Store, shown: ServedRequest) -> None:
    """Store the request's pictures, as their capture would."""
    for _, stub in build_prompt(shown, SPEC).chunk_segments:
        rows = tuple(_zeros(layout, stub.tokens) for layout in LAYOUTS)
        store.tenant(shown.store_salt).put(type(stub)(stub.id, stub.kind, stub.model, stub.encoded, rows))


def _zeros(layout: LayerLayout, tokens: int) -> LayerRows:
    return LayerRows(*(torch.zeros(heads, tokens, width) for heads, width in (layout.keys, layout.values)))


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


def planned(planner: RequestPlanner, name: str, shown: ServedRequest) -> RequestPlan:
    plan = planner.plan(name, lambda: shown)
    assert plan is not None
    return plan


def test_auto_never_plans_a_second_pass(store: Store) -> None:
    put(store, request("a", "b", "c"))
    for names in ("abc", "cab", "ba", "abc"):
        plan = plan_request(request(*names), SPEC, store.tenant(), "auto", print, FrequencySketch())
        assert plan.plan.recomputation is None and plan.remark is None
        assert {decision.lane for decision in plan.plan.decisions} == {Lane.FULL}
        assert (plan.plan.sources() == 0).all()


def test_a_second_pass_that_is_asked_for_is_computed_plainly_and_said(store: Store) -> None:
    put(store, request("a", "b"))
    lines: list[str] = []
    plan = plan_request(request("a", "b"), SPEC, store.tenant(), "query-12%", lines.append, FrequencySketch())
    assert plan.cached.spans == () and plan.remark is not None and "a second time" in plan.remark and lines


def test_patches_are_formed_from_the_second_sighting_on(store: Store) -> None:
    planner = RequestPlanner(SPEC, store, "auto", capture=True)
    put(store, request("a", "b"))
    first, second = planned(planner, "1", request("a", "b")), planned(planner, "2", request("a", "b"))
    assert first.needs == () and first.lacking
    assert [key.antecedents for key, _, _ in second.needs] == [(), (second.needs[0][0].chunk,)]
    report = planner.finish("1")
    assert report is not None and report["stored"] is False, "a patch is still to come"
    for key, rank, _ in second.needs:
        nothing = _zeros(LAYOUTS[0], TOKENS)
        assert store.tenant().put_artifact(key, form_patch([nothing] * len(LAYOUTS), rank, torch.float32))
    third = planned(planner, "3", request("a", "b"))
    assert third.needs == () and not third.lacking and third.cached.spans
    assert {decision.lane for decision in third.plan.decisions} == {Lane.PATCH}
    report = planner.finish("3")
    assert report is not None and report["stored"] is True


def test_new_combinations_of_known_pictures_form_nothing(store: Store) -> None:
    """Traffic without repetitions: only the first picture comes again after the same, which is nothing."""
    planner = RequestPlanner(SPEC, store, "auto", capture=True)
    put(store, request(*"abcd"))
    for number, names in enumerate(("abc", "acb", "adc", "cab", "cba", "dca")):
        plan = planned(planner, str(number), request(*names))
        assert all(not key.antecedents for key, _, _ in plan.needs)
        assert all(decision.lane in COMPUTED for decision in plan.plan.decisions)


def test_a_picture_twice_in_one_request_is_met_once_in_each_place(store: Store) -> None:
    planner = RequestPlanner(SPEC, store, "auto", capture=True)
    put(store, request("a"))
    assert planned(planner, "1", request("a", "a")).needs == ()
    assert len(planned(planner, "2", request("a", "a")).needs) == 2


def test_named_strategies_form_at_once(store: Store) -> None:
    put(store, request("a", "b"))
    planner = RequestPlanner(SPEC, store, "patch-4", capture=True)
    assert planned(planner, "1", request("a", "b")).needs


def test_what_one_tenant_met_is_not_anothers_and_tenants_are_bounded(store: Store) -> None:
    planner = RequestPlanner(SPEC, store, "auto", capture=True)
    for salt in ("alice", "bob"):
        put(store, request("a", "b", salt=salt))
    assert planned(planner, "1", request("a", "b", salt="alice")).needs == ()
    assert planned(planner, "2", request("a", "b", salt="bob")).needs == ()
    assert planned(planner, "3", request("a", "b", salt="alice")).needs
    for number in range(MOST_SKETCHES):
        planned(planner, f"more {number}", request("a", salt=str(number)))
    assert len(planner._met) == MOST_SKETCHES
    assert planned(planner, "4", request("a", "b", salt="bob")).needs == (), "forgotten, as it came first"


def test_the_default_policy_wants_two_sightings() -> None:
    assert Policy().sightings == 2 and Policy().forming_seconds == 3.0
