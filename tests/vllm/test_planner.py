"""The scheduler's side without vLLM: when a request may go, what the workers are told, and what a reply reports."""

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from emblema.kv.patch import form_patch
from emblema.link.plan import RowSource
from emblema.link.policy.decide import COSTS_MORE
from emblema.link.prompt import ChunkPart
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.request_plan import PatchNeed, RequestPlan
from emblema.served.request_report import PREFIX_HAS_IT
from emblema.served.requests import MediaItem, ServedRequest
from emblema.store import Store
from emblema.store.identity import request_salt
from emblema.vllm import plan_maker as plan_maker_module
from emblema.vllm import planner as planner_module
from emblema.vllm.planner import CAPTURING_SECONDS, MOST_CAPTURING_SECONDS, LinkCounts, RequestPlanner
from emblema.vllm.step_metadata import LinkOrder, SidePrompt, StepMetadata, WorkerReport
from tests.link.pieces import LAYERS, LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of, put, request, unplanned, zeros

ROW_BYTES = 4 * sum(layout.features for layout in LAYOUTS)

pytestmark = pytest.mark.usefixtures("planners_end")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


@pytest.fixture
def planner(store: Store) -> RequestPlanner:
    return planner_of(store, "blind")


def told(planner: RequestPlanner, scheduled: dict[str, tuple[int, int]] | None = None) -> StepMetadata:
    """What the workers are told in a step in which nothing waits."""
    return pickle.loads(pickle.dumps(planner.step_metadata(scheduled or {}, blocks, True, True)))


def stage(planner: RequestPlanner, name: str, ready: int = 0) -> None:
    """Have a request's rows staged by a worker, and the request admitted."""
    assert not planner.admit(name, ready)
    (order,) = told(planner).stagings
    planner.note(WorkerReport(staged={order.number: 1}))
    assert planner.admit(name, ready)


def linked(planner: RequestPlanner, name: str, ready: int = 0) -> LinkOrder:
    """What the workers are told of a request that has its pages."""
    planner.begin_load(name, ready, SidePrompt([], (), ()))
    (order,) = told(planner).links
    assert order.request_id == name
    return order


def blocks(name: str) -> tuple[int, ...]:
    return tuple(map(ord, name))


def never() -> ServedRequest:
    raise AssertionError("a request was described a second time")


def test_a_request_is_described_and_planned_once(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b"))
    plan = unplanned(planner, "1", request("a", "b"))
    assert plan is not None and plan.cached.spans == ((2, 302), (303, 603))
    assert planner.prepare("1", never) and planner.get("1") is plan
    assert planner.get("2") is None and planner.finish("2") is None
    assert unplanned(planner, "text", ServedRequest([1, 2], ())) is None
    assert planner.prepare("text", never) and planner.get("text") is None
    refused = replace(request("a", "b"), refusal="it is not to be")
    assert unplanned(planner, "refused", refused) is None
    assert planner.finish("refused") == {
        "strategy": "plain",
        "prompt_tokens": 604,
        "media_tokens": 600,
        "linked_tokens": 0,
        "kv_bytes": 0,
        "stored": False,
        "remark": "it is not to be",
        "misses": [(0, 300, "refused", "it is not to be"), (1, 300, "refused", "it is not to be")],
    }
    assert planner.finish("text") is None


def test_nothing_is_planned_without_a_spec(store: Store) -> None:
    planner = RequestPlanner(None, store, "blind", True, 2048, 8, refusal="no layout")
    assert unplanned(planner, "1", request("a")) is None
    assert planner.admit("1", 0) and planner.awaited_rows("1", 0) == 0
    assert (planner.finish("1") or {})["remark"] == "no layout"


def test_an_error_of_a_plan_ends_nothing(planner: RequestPlanner, caplog: pytest.LogCaptureFixture) -> None:
    wrong = replace(request("a"), items=(MediaItem(0, None, "a", 2, 3, digest="shown"),))  # type: ignore[arg-type]
    assert unplanned(planner, "1", wrong) is None and "could not be planned" in caplog.text


def test_the_workers_are_told_what_to_take_and_the_reply_what_was_linked(planner: RequestPlanner, store: Store) -> None:
    shown = request("a", "b", salt="alice")
    put(store, shown)
    unplanned(planner, "1", shown)
    assert not planner.admit("1", 0) and not planner.admit("1", 0)
    (order,) = told(planner).stagings
    assert (order.request_id, order.salt, order.prompt.tokens) == ("1", request_salt("alice"), 604)
    taken = [(part.start, part.stop) for part in order.plan.ranges if part.source is RowSource.TAKEN]
    assert taken == [(2, 302), (303, 603)] and [name for name, _ in order.encodings] == ["a", "b"]
    assert told(planner).stagings == (), "it is ordered once"
    planner.note(WorkerReport(staged={order.number + 7: 1}))
    assert not planner.admit("1", 0), "another order was staged"
    planner.note(WorkerReport(staged={order.number: 1}))
    assert planner.admit("1", 0)
    assert planner.awaited_rows("1", 0) == 603 and planner.awaited_rows("1", 603) == 0
    link = linked(planner, "1")
    assert (link.taken, link.computed) == (((2, 302), (303, 603)), ((0, 2), (302, 303)))
    assert link.prompt is not None and told(planner).links == ()
    planner.end_load("1", succeeded=True)
    assert planner.take_counts() == LinkCounts(600, 600 * ROW_BYTES) and planner.take_counts() == LinkCounts()
    told(planner, {"1": (603, 1)})
    after = told(planner, {"1": (604, 1)})
    assert after.dropped == ("1",) and after.links == ()
    assert planner.finish("1") == {
        "strategy": "blind",
        "prompt_tokens": 604,
        "media_tokens": 600,
        "linked_tokens": 600,
        "kv_bytes": 600 * ROW_BYTES,
        "stored": True,
        "remark": None,
        "misses": [],
    }
    assert planner.get("1") is None and planner.finish("1") is None and told(planner).dropped == ()


def test_a_prompt_that_is_computed_waits_only_for_encoder_outputs_that_vllm_lacks(store: Store) -> None:
    planner = planner_of(store, "full")
    put(store, request("a", "b"))
    planner.encoded.follow(["a"], [])
    unplanned(planner, "1", request("a", "b"))
    stage(planner, "1")
    planner.encoded.follow(["a", "b"], [])
    unplanned(planner, "2", request("a", "b"))
    assert planner.admit("2", 0) and planner.admit("2", 0)
    (order,) = told(planner).stagings
    assert [name for name, _ in order.encodings] == ["a", "b"], "whatever the runners turn out to lack"
    planner.note(WorkerReport(staged={order.number: 1}))
    assert planner.admit("2", 0) and planner.awaited_rows("2", 0) == 0
    told(planner, {"2": (0, 604)})
    assert told(planner).dropped == ("2",)
    planner.encoded.follow(["c"], ["b"])
    unplanned(planner, "3", request("a", "b"))
    assert not planner.admit("3", 0), "it was freed"
    assert planner.encoded.has(["a", "c"])


def test_rows_are_awaited_whatever_vllm_has(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b"))
    planner.encoded.follow(["a", "b"], [])
    unplanned(planner, "1", request("a", "b"))
    stage(planner, "1")


def test_all_workers_have_to_have_the_rows(store: Store) -> None:
    planner = planner_of(store, "blind", workers=2)
    put(store, request("a"))
    unplanned(planner, "1", request("a"))
    assert not planner.admit("1", 0)
    (order,) = told(planner).stagings
    planner.note(WorkerReport(staged={order.number: 1}))
    assert not planner.admit("1", 0)
    planner.note(WorkerReport(staged={order.number: 1}))
    assert planner.admit("1", 0)
    unplanned(planner, "2", request("a"))
    assert not planner.admit("2", 0)
    (order,) = told(planner).stagings
    planner.note(WorkerReport(staged={order.number: 1}).joined(WorkerReport(unstaged={order.number})))
    assert planner.admit("2", 0) and told(planner).dropped == ("2",), "the worker that has them lets go"
    assert planner.awaited_rows("2", 0) == 0
    report = planner.finish("2")
    assert report is not None and report["linked_tokens"] == 0 and "could not be loaded" in str(report["remark"])


def test_rows_that_do_not_come_in_time_are_computed(
    planner: RequestPlanner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, request("a"))
    unplanned(planner, "1", request("a"))
    assert not planner.admit("1", 0)
    (order,) = told(planner).stagings
    monkeypatch.setattr(planner_module, "STAGING_SECONDS", 0.0)
    assert planner.admit("1", 0) and told(planner).dropped == ("1",)
    planner.note(WorkerReport(staged={order.number: 1}))
    assert planner.awaited_rows("1", 0) == 0 and planner.admit("1", 0)


def test_a_request_that_ends_before_it_is_staged_is_told_of(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a"))
    for name in ("never ordered", "ordered"):
        unplanned(planner, name, request("a"))
        assert not planner.admit(name, 0)
        if name == "ordered":
            assert len(told(planner).stagings) == 1
        planner.finish(name)
        step = told(planner)
        assert step.stagings == () and step.dropped == (("ordered",) if name == "ordered" else ())


def test_a_preempted_request_is_staged_again_and_counts_from_the_start(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b"))
    plan = planned(planner, "1", request("a", "b"))
    for _ in range(2):
        stage(planner, "1")
        assert linked(planner, "1").taken and plan.linked == 600
    planner.end_load("1", succeeded=False)
    assert plan.cached.spans == () and plan.linked == 0 and "could not be loaded" in str(plan.remark)
    assert planner.awaited_rows("1", 0) == 0 and planner.admit("1", 0)
    assert planner.take_counts() == LinkCounts()


def test_others_wait_while_a_step_has_too_little_room_for_a_prompt_that_waits(
    planner: RequestPlanner, store: Store
) -> None:
    put(store, request("a"))
    planned(planner, "1", request("a"))
    stage(planner, "1")
    assert planner.load_room(0, 0) == (0, 0) and not planner.starving
    linked(planner, "1")
    for rows, slots, starving in ((255, 8, True), (256, 8, False), (2048, 3, True), (2048, 4, False)):
        assert planner.load_room(rows, slots) == (rows, slots) and planner.starving == starving
    planner.finish("1")
    planner.load_room(0, 0)
    assert planner.starving, "its pages are its own until the workers are done with them"
    planner.end_load("1", succeeded=True)
    assert planner.load_room(0, 0) == (0, 0) and not planner.starving


def test_a_reply_says_why_nothing_was_linked(store: Store) -> None:
    planner = planner_of(store, "auto")

    def remark(name: str, shown: ServedRequest, ready: int = 0) -> object:
        planned(planner, name, shown)
        planner.admit(name, ready)
        told(planner)
        return (planner.finish(name) or {})["remark"]

    assert "not stored yet" in str(remark("new", request("a", "b")))
    put(store, request("a", "b"))
    assert "antecedents are not known" in str(remark("another order", request("b", "a")))
    assert remark("found", request("a", "b", strategy="blind"), 604) == PREFIX_HAS_IT
    assert remark("full", request("a", "b", strategy="full")) is None


def test_a_request_that_asks_is_told_of_its_pieces(planner: RequestPlanner, store: Store) -> None:
    shown = request("a", "b", strategy="patch-25%", pieces=True)
    put(store, shown)
    plan = unplanned(planner, "1", shown)
    assert plan is not None
    ids = [chunk.id for _, chunk in plan.prompt.chunk_segments]
    report = planner.finish("1")
    assert report is not None and not report["stored"]
    assert report["pieces"] == {"model": SPEC.fingerprint, "chunks": ids, "forming": ids, "shards": 1}
    unplanned(planner, "2", request("a", "b", strategy="patch-25%"))
    assert "pieces" not in (planner.finish("2") or {})


def test_patches_are_captured_when_the_last_row_is_there(store: Store) -> None:
    planner = planner_of(store, "patch-4")
    shown = request("a", "b", salt="alice")
    put(store, shown)
    plan = planned(planner, "2", shown)
    assert plan.needs and not plan.cached.spans
    assert told(planner, {"2": (0, 603)}).patches == ()
    (patches,) = told(planner, {"2": (603, 1)}).patches
    assert (patches.salt, patches.needs, patches.blocks) == (request_salt("alice"), plan.needs, (50,))
    assert told(planner, {"2": (604, 1)}).patches == (), "a token of the reply came"
    first, second = (key for key, _, _ in plan.needs)
    assert first.antecedents == () and second.antecedents == (first.chunk,)
    assert {(rank, layers) for _, rank, layers in plan.needs} == {(4, tuple(range(LAYERS)))}
    report = planner.finish("2")
    assert report is not None and report["stored"] is False and "formed of this prompt's own rows" in report["remark"]


def test_markers_belong_to_the_chunk_where_the_prompt_has_them() -> None:
    spec = replace(SPEC, markers=((7,), (8,)))
    tokens = [7, 9, 9, 8, 9, 9, 5]
    prompt = build_prompt(
        ServedRequest(
            tokens, (MediaItem(0, "image", "a", 1, 2, digest="a"), MediaItem(1, "image", "b", 4, 2, digest="b"))
        ),
        ChunkStubs(spec),
    )
    chunks = [segment.part.chunk for segment in prompt.segments if isinstance(segment.part, ChunkPart)]
    assert [chunk.encoded.token_ids.tolist() for chunk in chunks] == [[7, 9, 9, 8], [9, 9]]
    assert [chunk.encoded.visual.tolist() for chunk in chunks] == [[False, True, True, False], [True, True]]
    assert prompt.tokens == 7 and [segment.start for segment, _ in prompt.chunk_segments] == [0, 4]


def test_a_stub_has_the_positions_of_its_grid_and_an_id_of_all_that_it_is_made_of() -> None:
    spec = replace(SPEC, axes=3, merge=2)
    item = MediaItem(0, "image", "a", 0, 6, (1, 4, 6), digest="a")
    stub = ChunkStubs(spec).make(item, [7, *[9] * 6], 1, b"")
    # 2 rows of 3 tokens after one token of text.
    assert stub.encoded.positions.tolist() == [
        [0, 1, 1, 1, 1, 1, 1],
        [0, 1, 1, 1, 2, 2, 2],
        [0, 1, 2, 3, 1, 2, 3],
    ]
    assert stub.encoded.span == 4
    flat = ChunkStubs(spec).make(replace(item, grid=None), [7, *[9] * 6], 1, b"")
    assert flat.encoded.positions[0].tolist() == list(range(7)) and flat.encoded.span == 7
    plain = ChunkStubs(SPEC).make(item, [7, *[9] * 6], 1, b"")
    assert plain.encoded.positions.tolist() == [list(range(7))]
    others = [
        ChunkStubs(spec).make(item, [7, *[9] * 6], 1, b"salt"),
        ChunkStubs(spec).make(item, [6, *[9] * 6], 1, b""),
        ChunkStubs(spec).make(replace(item, digest="b"), [7, *[9] * 6], 1, b""),
        ChunkStubs(spec).make(replace(item, kind="video"), [7, *[9] * 6], 1, b""),
        ChunkStubs(spec).make(replace(item, grid=(1, 6, 4)), [7, *[9] * 6], 1, b""),
        ChunkStubs(replace(spec, fingerprint="e" * 64)).make(item, [7, *[9] * 6], 1, b""),
        ChunkStubs(replace(spec, dtype=torch.bfloat16)).make(item, [7, *[9] * 6], 1, b""),
        ChunkStubs(replace(spec, version="other")).make(item, [7, *[9] * 6], 1, b""),
    ]
    assert len({stub.id, *(other.id for other in others)}) == 1 + len(others)


def test_a_strategy_that_is_no_name_is_computed_plainly(store: Store) -> None:
    planner = planner_of(store, "blind")
    put(store, request("a"))
    for number, strategy in enumerate((7, "nonsense", ["blind"])):
        plan = unplanned(planner, str(number), request("a", strategy=strategy))
        assert plan is not None and plan.cached.spans == () and plan.remark and not plan.missing
    named = unplanned(planner, "named", request("a", strategy="full"))
    assert named is not None and named.cached.spans == ()


def put_patches(planner: RequestPlanner, store: Store, shown: ServedRequest) -> None:
    """Have a request come until its patches are wanted, and store them."""
    needs: tuple[PatchNeed, ...] = ()
    while not needs:
        needs = planned(planner, f"{time.monotonic()}", shown).needs
    for need, rank, _ in needs:
        patch = form_patch([zeros(layout, TOKENS) for layout in LAYOUTS], rank, torch.float32)
        assert store.tenant().put_artifact(need, patch)


def test_only_auto_is_computed_where_linking_does_not_pay_and_that_is_decided_once(store: Store) -> None:
    shown = request("a", "b")
    put(store, shown)
    planner = planner_of(store, "auto")
    put_patches(planner, store, shown)

    def taken(name: str, least_rows: int, strategy: str = "auto") -> bool:
        """Return whether a request takes rows that was planned while all that may be was linked."""
        planner.least_rows = 0
        found = planned(planner, name, request("a", "b", strategy=strategy))
        planner.least_rows = least_rows
        planner.admit(name, 0)
        return bool(found.cached.spans)

    assert not taken("too few rows", TOKENS + 1)
    report = planner.finish("too few rows")
    assert report is not None and (report["strategy"], report["remark"]) == ("plain", COSTS_MORE)
    assert taken("named", TOKENS + 1, "blind"), "whatever that costs"
    planner.least_rows = TOKENS + 1
    refused = planned(planner, "not planned at all", shown)
    assert refused.cached.spans == () and refused.remark == COSTS_MORE
    planner.least_rows = TOKENS
    plan = planned(planner, "enough rows", request("b", "a", "b"))
    assert plan.cached.spans == () and plan.needs == (), "its patches are others"


def test_a_prompt_that_begins_as_a_linked_one_did_leaves_its_pages_to_those_that_go_on_from_it(store: Store) -> None:
    shown = request("a", "b")
    put(store, request("a", "b", "c"))
    planner = planner_of(store, "auto", least_rows=TOKENS)
    put_patches(planner, store, shown)

    def taken(name: str, ready: int = 0) -> bool:
        plan = planned(planner, name, shown)
        planner.admit(name, ready)
        return bool(plan.cached.spans)

    assert [taken(str(turn)) for turn in range(4)] == [True, False, True, False], "no pages are left in this test"
    assert not taken("found", shown.items[1].start + TOKENS), "the prefix cache has all of it"
    without = RequestPlanner(SPEC, store, "auto", True, 2048, 8, shared=False)
    without.least_rows = TOKENS
    for turn in range(3):
        plan = planned(without, f"without {turn}", shown)
        without.admit(f"without {turn}", 0)
        assert plan.cached.spans


def test_the_rows_of_a_second_pass_have_to_be_saved_twice(store: Store) -> None:
    put(store, request(*"abcdef"))
    # Of 1,800 rows three quarters, less the question and a tenth of a prompt, as one answer of ten does not stand.
    saved = 1350 - 1 - 180
    for least_rows, reads in ((1, True), (saved // 2 - 1, True), (saved // 2 + 1, False)):
        planner = planner_of(store, "auto", least_rows=least_rows, second_pass=None)
        plan = planned(planner, "1", request(*"abcdef"))
        assert plan.reads(0) == reads


def awaiting(store: Store, shown: ServedRequest) -> tuple[RequestPlanner, RequestPlan]:
    """Return a planner that a prompt waits at, and the plan whose missing pictures are wanted."""
    planner = planner_of(store, "auto", second_pass=None)
    until = time.monotonic() + 30
    while not (wanted := planner.take_wanted()):
        assert not planner.prepare("1", lambda: shown) and time.monotonic() < until
        time.sleep(0.001)
    (plan,) = wanted
    assert not planner.prepare("1", lambda: shown) and not planner.take_wanted() and planner.get("1") is None
    return planner, plan


def test_a_prompt_with_a_new_picture_waits_until_that_is_captured_and_is_read(store: Store) -> None:
    put(store, request("a", "b", "c"))
    shown = request("a", "b", "c", "d")
    planner, waiting = awaiting(store, shown)
    (new,) = waiting.missing
    assert new.id == waiting.prompt.chunk_segments[-1][1].id and not waiting.cached.spans
    planner.note(WorkerReport(captured={new.id: 1}))
    assert not planner.prepare("1", lambda: shown), "it is not stored yet"
    put(store, request("d"))
    plan = planned(planner, "1", shown)
    assert plan.plan.recomputation is not None and len(plan.cached.spans) == 4 and not plan.missing and plan.reads(0)


def test_a_new_picture_after_what_the_prefix_cache_has_is_computed_in_its_place(store: Store) -> None:
    """A conversation that grows costs what it does without the plugin."""
    put(store, request("a", "b", "c"))
    shown = request("a", "b", "c", "d")
    planner, until = planner_of(store, "auto", second_pass=None), time.monotonic() + 30
    while not planner.prepare("1", lambda: shown, ready=shown.items[2].start + TOKENS):
        assert time.monotonic() < until
        time.sleep(0.001)
    plan = planner.get("1")
    assert plan is not None and not planner.take_wanted() and not plan.cached.spans and len(plan.missing) == 1


def test_turns_of_a_conversation_that_goes_on_are_computed(store: Store) -> None:
    """What a second pass makes is in no prefix cache, so linking one turn has the next one computed in full."""
    names = "abcdefghijklmnop"
    put(store, request(*names))
    planner = planner_of(store, "auto", least_rows=100, second_pass=None)
    read = []
    for last in range(2, len(names)):
        plan = planned(planner, str(last), request(*names[:last]))
        planner.admit(str(last), 0)
        read.append(bool(plan.cached.spans))
    assert read[0] and not any(read[9:]), "at first nothing is known of what follows"
    apart = planner_of(store, "auto", least_rows=100, second_pass=None)
    for place in range(12):
        plan = planned(apart, str(place), request(*(names[place:] + names[:place])[:4]))
        apart.admit(str(place), 0)
        assert plan.cached.spans, "other prompts are not gone on from"


def test_a_prompt_whose_new_picture_does_not_come_is_computed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "CAPTURING_SECONDS", 0.05)
    put(store, request("a", "b", "c"))
    shown = request("a", "b", "c", "d")
    planner, waiting = awaiting(store, shown)
    plan = planned(planner, "1", shown)
    assert not plan.awaits and plan.missing == waiting.missing and not plan.cached.spans


def test_a_prompt_goes_on_waiting_while_pictures_of_others_are_captured_but_not_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many prompts that come at once each waits for the pictures of those before it."""
    now = [1000.0]
    monkeypatch.setattr(planner_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    put(store, request("a", "b", "c"))
    shown = request("a", "b", "c", "d")
    planner, _ = awaiting(store, shown)
    waited = 0.0
    while waited + CAPTURING_SECONDS < MOST_CAPTURING_SECONDS:
        now[0] += CAPTURING_SECONDS - 0.1
        waited += CAPTURING_SECONDS - 0.1
        planner.note(WorkerReport(captured={"another's": 1}))
        assert not planner.prepare("1", lambda: shown)
        assert not planner.reads, "it was not planned again"
    now[0] += MOST_CAPTURING_SECONDS - waited
    planner.note(WorkerReport(captured={"another's": 1}))
    assert not planned(planner, "1", shown).cached.spans


def test_a_picture_that_is_captured_and_never_stored_is_not_awaited_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "CAPTURING_SECONDS", 1e6)
    monkeypatch.setattr(planner_module, "REPLANNING_SECONDS", 0.0)
    put(store, request("a", "b", "c"))
    shown = request("a", "b", "c", "d")
    planner, waiting = awaiting(store, shown)
    planner.note(WorkerReport(captured={chunk.id: 1 for chunk in waiting.missing}))
    plan = planned(planner, "1", shown)
    assert not plan.awaits and plan.missing == waiting.missing


@pytest.mark.parametrize(("known", "least_rows", "capture"), [("ab", 0, True), ("abcd", 400, True), ("abcd", 0, False)])
def test_no_prompt_waits_for_more_than_it_knows_or_too_little_or_where_it_may_leave_nothing(
    store: Store, known: str, least_rows: int, capture: bool
) -> None:
    put(store, request(*known))
    planner = planner_of(store, "auto", least_rows=least_rows, second_pass=None)
    plan = planned(planner, "1", request(*known, "x", "y", "z" if len(known) < 3 else "y", capture=capture))
    assert not plan.awaits and plan.missing and not planner.take_wanted()


def test_a_line_is_logged_once_and_lines_are_bounded(
    planner: RequestPlanner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "MOST_LINES", 2)
    for number, refusal in enumerate(("one", "one", "two", "three", "one")):
        unplanned(planner, str(number), replace(request("a"), refusal=refusal))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["one", "two"]


def test_the_names_that_were_shown_last_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_maker_module, "REMEMBERED_NAMES", 2)
    planner = planner_of(store, "blind")
    for number, name in enumerate("abac"):
        assert unplanned(planner, str(number), request(name)) is not None

    def shown_falsely(name: str) -> ServedRequest:
        own = request(name)
        return replace(own, items=(replace(own.items[0], digest="another"),))

    assert unplanned(planner, "false a", shown_falsely("a")) is None
    assert unplanned(planner, "false b", shown_falsely("b")) is not None, "forgotten, as it came first"
