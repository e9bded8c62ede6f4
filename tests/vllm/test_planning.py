"""Plans of requests to vLLM, without vLLM: no second pass, and patches only of what comes again."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.kv.patch import form_patch
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.request_plan import MOST_MET, RequestPlanning
from emblema.store import Store
from emblema.store.catalogue import Catalogue
from emblema.store.identity import SHARED_SALT, owner_digest, request_salt
from emblema.store.record import SHARED
from emblema.store.store import TenantStore
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of, put, request, unplanned, with_encoding, zeros

pytestmark = pytest.mark.usefixtures("planners_end")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


def test_auto_never_plans_a_second_pass(store: Store) -> None:
    put(store, request("a", "b", "c"))
    for names in ("abc", "cab", "ba", "abc"):
        plan = RequestPlanning(SPEC, store, "auto", print).plan(request(*names))
        assert plan.plan.recomputation is None and plan.remark is None
        assert plan.cached.spans == () and plan.lacking


def test_a_second_pass_that_is_asked_for_is_computed_plainly_and_said(store: Store) -> None:
    put(store, request("a", "b"))
    lines: list[str] = []
    plan = RequestPlanning(SPEC, store, "query-12%", lines.append).plan(request("a", "b"))
    assert plan.cached.spans == () and plan.remark is not None and "a second time" in plan.remark and lines


def test_patches_are_formed_from_the_second_sighting_on(store: Store) -> None:
    planner = planner_of(store, "auto")
    put(store, request("a", "b"))
    first, second = planned(planner, "1", request("a", "b")), planned(planner, "2", request("a", "b"))
    assert first.needs == () and first.lacking
    assert [key.antecedents for key, _, _ in second.needs] == [(), (second.needs[0][0].chunk,)]
    report = planner.finish("1")
    assert report is not None and report["stored"] is False, "a patch is still to come"
    for key, rank, _ in second.needs:
        nothing = zeros(LAYOUTS[0], TOKENS)
        assert store.tenant().put_artifact(key, form_patch([nothing] * len(LAYOUTS), rank, torch.float32))
    third = planned(planner, "3", request("a", "b"))
    assert third.needs == () and not third.lacking and third.cached.spans
    assert {decision.lane for decision in third.plan.decisions} == {Lane.PATCH}
    report = planner.finish("3")
    assert report is not None and report["stored"] is True


def test_new_combinations_of_known_pictures_form_nothing(store: Store) -> None:
    """Traffic without repetitions: only the first picture comes again after the same, which is nothing."""
    planner = planner_of(store, "auto")
    put(store, request(*"abcd"))
    for number, names in enumerate(("abc", "acb", "adc", "cab", "cba", "dca")):
        plan = planned(planner, str(number), request(*names))
        assert all(not key.antecedents for key, _, _ in plan.needs)
        assert plan.cached.spans == ()


def test_a_picture_twice_in_one_request_is_met_once_in_each_place(store: Store) -> None:
    planner = planner_of(store, "auto")
    put(store, request("a"))
    assert planned(planner, "1", request("a", "a")).needs == ()
    assert len(planned(planner, "2", request("a", "a")).needs) == 2


def test_named_strategies_form_at_once(store: Store) -> None:
    put(store, request("a", "b"))
    planner = planner_of(store, "patch-4")
    assert planned(planner, "1", request("a", "b")).needs


def test_what_one_tenant_met_is_not_anothers_and_tenants_are_bounded(store: Store) -> None:
    planner = planner_of(store, "auto")
    for salt in ("alice", "bob"):
        put(store, request("a", "b", salt=salt))
    assert planned(planner, "1", request("a", "b", salt="alice")).needs == ()
    assert planned(planner, "2", request("a", "b", salt="bob")).needs == ()
    assert planned(planner, "3", request("a", "b", salt="alice")).needs
    for number in range(MOST_MET):
        planned(planner, f"more {number}", request("a", salt=str(number)))
    assert planner.maker is not None and len(planner.maker._planning._met) == MOST_MET
    assert planned(planner, "4", request("a", "b", salt="bob")).needs == (), "forgotten, as it came first"


def test_the_default_policy_wants_two_sightings() -> None:
    assert Policy().sightings == 2 and Policy().forming_seconds == 3.0


@pytest.mark.parametrize("salt", [None, "alice"])
def test_tenants_have_chunks_of_their_own(store: Store, salt: str | None) -> None:
    """One tenant's rows are taken by no other, nor what the encoder made for it."""
    planner = planner_of(store, "blind")
    put(store, request("a", "b", salt=salt))
    own = planned(planner, "own", request("a", "b", salt=salt))
    assert own.cached.spans and not own.missing and len(own.encodings(0)) == 2
    others: set[str | None] = {None, "alice", "bob"}
    for other in others - {salt}:
        plan = planned(planner, str(other), request("a", "b", salt=other))
        assert not plan.cached.spans and len(plan.missing) == 2 and not plan.encodings(0)
        ids = {chunk.id for _, chunk in plan.prompt.chunk_segments}
        assert ids.isdisjoint(chunk.id for _, chunk in own.prompt.chunk_segments)


def test_steps_name_the_tenant(store: Store) -> None:
    """What the worker loads and keeps is of the request's tenant."""
    planner = planner_of(store, "blind")
    put(store, request("a", salt="alice"))
    planned(planner, "1", request("a", salt="alice"))
    assert not planner.admit("1", 0)
    metadata = planner.step_metadata({}, lambda name: (0,), True, True)
    assert [order.salt for order in metadata.stagings] == [request_salt("alice")]
    planner = planner_of(store, "patch-4")
    plan = planned(planner, "2", request("a", salt="alice"))
    metadata = planner.step_metadata({"2": (0, plan.prompt.tokens)}, lambda name: (0,), True, True)
    assert [capture.salt for capture in metadata.patches] == [request_salt("alice")]


def test_no_cache_salt_aims_at_another_owner(store: Store) -> None:
    planner = planner_of(store, "blind")
    salts = [SHARED_SALT.decode(), "alice", "bob", request_salt("alice").hex(), "\ud800", ""]
    owners = [owner_digest(request(salt=salt).store_salt) for salt in salts]
    assert SHARED not in owners and len(set(owners)) == len(salts)
    assert owner_digest(request().store_salt) == owners[-1], "no salt and an empty one are the common tenant"
    assert unplanned(planner, "1", request("a", salt=SHARED_SALT.decode())) is None


def test_a_name_that_was_another_pictures_is_not_trusted(store: Store) -> None:
    planner = planner_of(store, "blind")
    first = request("logo")
    false = replace(first, items=(replace(first.items[0], digest="something else"),))
    unseen = replace(first, items=(replace(first.items[0], digest=""),))
    assert planned(planner, "1", first).missing
    assert unplanned(planner, "2", unseen) is None, "its media is not there"
    assert planned(planner, "3", first).missing
    assert unplanned(planner, "4", false) is None and unplanned(planner, "5", first) is None
    # What is shown is the name; the same picture under two names is one chunk.
    again = replace(first, items=(replace(first.items[0], identifier="other"),))
    ids = [stub.id for shown in (first, again) for _, stub in build_prompt(shown, ChunkStubs(SPEC)).chunk_segments]
    assert ids[0] == ids[1]


def test_names_are_checked_of_requests_that_are_not_linked_too(store: Store) -> None:
    planner = planner_of(store, "blind")
    first = request("logo")
    false = replace(first, items=(replace(first.items[0], digest="something else"),), refusal="prompt_logprobs")
    assert unplanned(planner, "1", false) is None and unplanned(planner, "2", first) is None


def test_the_scheduler_never_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question to the store is asked on the planner's thread; of known pieces, whether anything has changed."""
    with Store(tmp_path) as writer:
        with_encoding(writer, request(*"abcdefghij"))
        writer.flush()
    store = Store(tmp_path)
    asked: list[str] = []
    read = Catalogue.read

    def noted(catalogue: Catalogue, ask: Any) -> Any:
        asked.append(threading.current_thread().name)
        return read(catalogue, ask)

    planner = planner_of(store, "auto")
    for name in ("0", "00"):
        planned(planner, name, request(*"abcdefghij"))
    monkeypatch.setattr(Catalogue, "read", noted)
    planned(planner, "1", request(*"jihgfedcba"))
    assert not planner.admit("1", 0)
    (order,) = planner.step_metadata({}, lambda name: (0,), True, True).stagings
    assert len(order.encodings) == 10
    planner.finish("1")
    assert asked == ["emblema-plan"]
    # Absent pieces are remembered as absent, until something is written; here by another process.
    first = planned(planner, "2", request("a", "new"))
    assert len(first.missing) == 1 and 2 <= len(asked) <= 4
    asked.clear()
    assert len(planned(planner, "3", request("a", "new")).missing) == 1 and len(asked) == 1
    with Store(tmp_path) as writer:
        put(writer, request("new"))
        writer.flush()
    assert not planned(planner, "4", request("a", "new")).missing
    planner.close()


def test_a_store_that_hangs_does_not_hold_requests_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.planner.PLANNING_SECONDS", 0.05)
    planner = planner_of(store, "blind")
    put(store, request("a"))
    free = threading.Event()
    held = TenantStore.held
    monkeypatch.setattr(TenantStore, "held", lambda own, ids: (free.wait(60), held(own, ids))[1])
    assert not planner.prepare("1", lambda: request("a"))
    time.sleep(0.1)
    assert planner.prepare("1", lambda: request("a")) and planner.get("1") is None
    # The next ones do not even wait for the deadline.
    assert planner.prepare("2", lambda: request("a")) and planner.get("2") is None
    free.set()
    until = time.monotonic() + 30
    while unplanned(planner, f"3 at {time.monotonic()}", request("a")) is None:
        assert time.monotonic() < until


def test_a_step_waits_for_plans_and_not_twice_for_a_late_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.planner.AWAITING_SECONDS", 30.0)
    planner = planner_of(store, "blind")
    put(store, request("a"))
    for name in ("1", "2", "3"):
        planner.announce(name, lambda: request("a"))
    planner.await_plans(idle=False)
    assert all(planner.prepare(name, lambda: request("a")) and planner.get(name) for name in ("1", "2", "3"))
    monkeypatch.setattr("emblema.vllm.planner.AWAITING_SECONDS", 0.05)
    free = threading.Event()
    held = TenantStore.held
    monkeypatch.setattr(TenantStore, "held", lambda own, ids: (free.wait(60), held(own, ids))[1])
    planner.announce("4", lambda: request("new"))
    waits = []
    for idle in (False, False, True):
        began = time.monotonic()
        planner.await_plans(idle)
        waits.append(time.monotonic() - began >= 0.05)
    assert waits == [True, False, True], "a late plan holds up no step that has other work"
    free.set()


def test_rows_are_left_alone_while_requests_wait(store: Store) -> None:
    planner = planner_of(store, "patch-4")
    put(store, request("a", "b"))
    plan = planned(planner, "1", request("a", "b"))
    for quiet in (False, True):
        metadata = planner.step_metadata({"1": (0, plan.prompt.tokens)}, lambda name: (0,), quiet, True)
        assert len(metadata.patches) == quiet
