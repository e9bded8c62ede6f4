"""The scheduler's side without vLLM: budgets of a step, captures, what the worker is told, and what a reply reports."""

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from emblema.kv.patch import form_patch
from emblema.link.plan import RowSource
from emblema.link.prompt import ChunkPart
from emblema.store import Store
from emblema.store.identity import request_salt
from emblema.vllm import planner as planner_module
from emblema.vllm.planner import REMEMBERED_CAPTURES, WAITING_CAPTURES, LinkCounts, RequestPlanner
from emblema.vllm.request_plan import COSTS_MORE, ChunkStubs, MediaItem, ServedRequest, build_prompt
from emblema.vllm.step_costs import StepCosts, StepRates
from tests.link.pieces import LAYERS, LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, put, request, unplanned, zeros

ROW_BYTES = 4 * sum(layout.features for layout in LAYOUTS)

pytestmark = pytest.mark.usefixtures("planners_end")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


@pytest.fixture
def planner(store: Store) -> RequestPlanner:
    return RequestPlanner(SPEC, store, "blind", capture=True)


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
    assert unplanned(planner, "refused", refused) is None and planner.finish("refused") is None


def test_nothing_is_planned_without_a_spec(store: Store) -> None:
    planner = RequestPlanner(None, store, "blind", capture=True, refusal="no layout")
    assert unplanned(planner, "1", request("a")) is None and planner.finish("1") is None
    assert list(planner.next_captures(9)) == []


def test_an_error_of_a_plan_ends_nothing(planner: RequestPlanner, caplog: pytest.LogCaptureFixture) -> None:
    wrong = replace(request("a"), items=(MediaItem(0, None, "a", 2, 3, digest="shown"),))  # type: ignore[arg-type]
    assert unplanned(planner, "1", wrong) is None and "could not be planned" in caplog.text


def test_missing_pictures_are_captured_once_and_known_ones_never(
    planner: RequestPlanner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, request("a"))
    unplanned(planner, "1", request("a", "b", "c", "b", salt=None))
    unplanned(planner, "2", request("c", "d"))
    wanted = list(planner.next_captures(2))
    assert [capture.item.identifier for capture in wanted] == ["b", "c"]
    assert [capture.item.identifier for capture in planner.next_captures(9)] == ["d"]
    for number, capture in enumerate(wanted):
        name = f"capture {number}"
        planner.start_capture(name, capture)
        assert planner.prepare(name, never) and planner.get(name) is None, "a capture is linked itself"
    assert set(planner.capturing) == {"capture 0", "capture 1"}
    # It was taken up once; when it has ended, and is missing again, it may be captured again.
    unplanned(planner, "3", request("b"))
    assert list(planner.next_captures(9)) == []
    assert planner.finish("capture 0") is None and set(planner.capturing) == {"capture 1"}
    unplanned(planner, "4", request("b"))
    assert list(planner.next_captures(9)) == [], "it may not be stored yet"
    monkeypatch.setattr(planner_module, "RECAPTURE_SECONDS", 0.0)
    unplanned(planner, "5", request("b"))
    assert [capture.item.identifier for capture in planner.next_captures(9)] == ["b"]


def test_captures_are_of_the_tenant_and_can_be_declined(planner: RequestPlanner, store: Store) -> None:
    unplanned(planner, "1", request("a", capture=False))
    assert list(planner.next_captures(9)) == []
    unplanned(planner, "2", request("a", salt="alice"))
    unplanned(planner, "3", request("a", salt="bob"))
    wanted = list(planner.next_captures(9))
    assert [capture.capture.salt for capture in wanted] == [request_salt("alice"), request_salt("bob")]
    assert len({capture.capture.chunk.id for capture in wanted}) == 2
    put(store, request("a", salt="alice"))
    linked = unplanned(planner, "4", request("a", salt="bob"))
    assert linked is not None and linked.cached.spans == () and len(linked.missing) == 1
    silent = RequestPlanner(SPEC, store, "blind", capture=False)
    unplanned(silent, "1", request("new"))
    assert list(silent.next_captures(9)) == []


def test_waiting_and_remembered_captures_are_bounded(planner: RequestPlanner) -> None:
    shown = [f"picture {number}" for number in range(REMEMBERED_CAPTURES + 2)]
    small = [ServedRequest([1, 2, 9, 3], (MediaItem(0, "image", name, 2, 1, digest=name),)) for name in shown]
    for number, each in enumerate(small):
        unplanned(planner, str(number), each)
    wanted = [capture.item.identifier for capture in planner.next_captures(10**6)]
    assert wanted == shown[-WAITING_CAPTURES:] and WAITING_CAPTURES == 64
    # The first two are forgotten and may be requested again; the third is remembered.
    for number in (0, 1):
        unplanned(planner, f"again {number}", small[number])
    assert [capture.item.identifier for capture in planner.next_captures(9)] == shown[:2]
    unplanned(planner, "again", small[-1])
    assert list(planner.next_captures(9)) == []


def test_a_step_s_budgets_hold_over_all_its_requests(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b"))
    for name in "12345":
        unplanned(planner, name, request("a", "b"))
    assert planner.reserve("1", 0) is None, "there is no step"
    with planner.scheduling(rows=8, free_slots=lambda: 5, waiting=lambda: 0) as step:
        claim = planner.reserve("1", 0)
        assert claim is not None and claim.stop == 603 and claim.compute_spans == ((0, 2), (302, 303))
        assert step.claim_of("1") is claim and step.claim_of("2") is None
        step.confirm(allocated=False)
        assert step.claim_of("1") is None and step.claims == {} and step.rows == 8
        assert planner.reserve("1", 0) == claim
        step.confirm(allocated=True)
        assert (step.claims, step.rows, step.used_slots) == ({"1": claim}, 5, 2)
        step.confirm(allocated=True)
        assert step.rows == 5, "what was confirmed is claimed once"
        # Two of five slots are used, and the waiting request takes one: two spans fit; three rows of five go.
        assert planner.reserve("2", 0) == claim
        step.confirm(allocated=True)
        assert (step.rows, step.used_slots) == (2, 4)
        # One slot is left, for the request itself, so no span before a picture; a running one has the slot for a span.
        assert planner.reserve("3", 0) is None
        third = planner.get("3")
        assert third is not None
        reached = step.skip("3", third, 0)
        assert reached is not None and reached.stop == 302 and step.claim_of("3") is reached
        assert (step.rows, step.used_slots) == (0, 5)
        fourth = planner.get("4")
        assert fourth is not None and step.skip("4", fourth, 0) is None and "4" not in step.claims
    assert planner.step is None


def test_the_worker_is_told_what_to_load_and_the_reply_what_was_linked(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b", salt="alice"))
    shown = request("a", "b", salt="alice")
    unplanned(planner, "1", shown)
    with planner.scheduling(rows=100, free_slots=lambda: 9, waiting=lambda: 0) as step:
        planner.reserve("1", 0)
        step.confirm(allocated=True)
        told = planner.step_metadata({"1": (603, 1)}, blocks)
    (load,) = told.loads
    assert (load.salt, load.blocks, load.claim.stop) == (request_salt("alice"), (49,), 603)
    assert [(part.start, part.stop) for part in load.plan.ranges if part.source is RowSource.TAKEN] == [
        (2, 302),
        (303, 603),
    ]
    assert told.chunks == () and told.patches == () and pickle.loads(pickle.dumps(told)).loads[0].claim == load.claim
    assert planner.take_counts() == LinkCounts(600, 600 * ROW_BYTES)
    planner.count_encoding()
    assert planner.take_counts() == LinkCounts(0, 0, 1) and planner.take_counts() == LinkCounts(0, 0, 0)
    assert planner.finish("1") == {
        "strategy": "blind",
        "prompt_tokens": 604,
        "media_tokens": 600,
        "linked_tokens": 600,
        "kv_bytes": 600 * ROW_BYTES,
        "stored": True,
        "remark": None,
    }
    assert planner.get("1") is None and planner.finish("1") is None


def test_a_request_that_asks_is_told_of_its_pieces(planner: RequestPlanner, store: Store) -> None:
    shown = request("a", "b", strategy="patch-25%", pieces=True)
    put(store, shown)
    plan = unplanned(planner, "1", shown)
    assert plan is not None
    ids = [chunk.id for _, chunk in plan.prompt.chunk_segments]
    report = planner.finish("1")
    assert report is not None and not report["stored"]
    assert report["pieces"] == {"model": SPEC.fingerprint, "chunks": ids, "forming": ids}
    unplanned(planner, "2", request("a", "b", strategy="patch-25%"))
    assert "pieces" not in (planner.finish("2") or {})


def test_a_claim_of_a_request_that_was_not_scheduled_loads_nothing(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a"))
    unplanned(planner, "1", request("a"))
    with planner.scheduling(rows=100, free_slots=lambda: 9, waiting=lambda: 0) as step:
        planner.reserve("1", 0)
        step.confirm(allocated=True)
        assert planner.step_metadata({"2": (0, 5)}, blocks).loads == ()
    assert planner.take_counts() == LinkCounts()
    report = planner.finish("1")
    assert report is not None and report["strategy"] == "plain" and report["linked_tokens"] == report["kv_bytes"] == 0


def test_preempted_and_failed_requests_count_from_the_start(planner: RequestPlanner, store: Store) -> None:
    put(store, request("a", "b"))
    plan = unplanned(planner, "1", request("a", "b"))
    assert plan is not None
    for _ in range(2):
        with planner.scheduling(rows=100, free_slots=lambda: 9, waiting=lambda: 0) as step:
            planner.reserve("1", 0)
            step.confirm(allocated=True)
            planner.step_metadata({"1": (603, 1)}, blocks)
        assert plan.linked == 600
    plan.fail()
    assert plan.cached.spans == () and plan.linked == 0 and "could not be loaded" in str(plan.remark)
    with planner.scheduling(rows=100, free_slots=lambda: 9, waiting=lambda: 0):
        assert planner.reserve("1", 0) is None


def test_chunks_and_patches_are_captured_when_their_last_row_is_there(store: Store) -> None:
    planner = RequestPlanner(SPEC, store, "patch-4", capture=True)
    shown = request("a", "b", salt="alice")
    unplanned(planner, "1", shown)
    (wanted, _) = list(planner.next_captures(9))
    planner.start_capture("solo", wanted)
    assert planner.step_metadata({"solo": (0, TOKENS - 1)}, blocks).chunks == ()
    (captured,) = planner.step_metadata({"solo": (TOKENS - 1, 1)}, blocks).chunks
    assert (captured.salt, captured.identifier, captured.blocks) == (
        request_salt("alice"),
        "emblema-shown a",
        blocks("solo"),
    )
    put(store, shown)
    planner.finish("1")
    plan = unplanned(planner, "2", shown)
    assert plan is not None and plan.needs and not plan.cached.spans
    assert planner.step_metadata({"2": (0, 603)}, blocks).patches == ()
    (patches,) = planner.step_metadata({"2": (603, 1)}, blocks).patches
    assert (patches.salt, patches.needs, patches.blocks) == (request_salt("alice"), plan.needs, (50,))
    assert patches.alone
    (patches,) = planner.step_metadata({"2": (603, 1), "another": (0, 5)}, blocks).patches
    assert not patches.alone
    assert planner.step_metadata({"2": (604, 1)}, blocks).patches == (), "a token of the reply came"
    first, second = (key for key, _, _ in plan.needs)
    assert first.antecedents == () and second.antecedents == (first.chunk,)
    assert {(rank, layers) for _, rank, layers in plan.needs} == {(4, tuple(range(LAYERS)))}
    report = planner.finish("2")
    assert report is not None and report["stored"] is False and "formed of this prompt's own rows" in report["remark"]


def test_encoder_outputs_are_found_by_the_digest_of_the_picture(store: Store) -> None:
    """Those of the request's own tenant alone, and the rows of media alone."""
    spec = replace(SPEC, markers=((7,), (8,)))
    # Of pictures whose rows are taken, none is needed.
    planner = RequestPlanner(spec, store, "full", capture=True)

    def shown(salt: str) -> ServedRequest:
        tokens = [1, 7, 9, 9, 8, 2, 7, 9, 9, 9, 8, 3]
        return ServedRequest(
            tokens, (MediaItem(0, "image", "a", 2, 2, digest="a"), MediaItem(1, "image", "b", 7, 3, digest="b")), salt
        )

    for salt, offset in (("alice", 0.0), ("bob", 100.0)):
        for _, stub in build_prompt(shown(salt), ChunkStubs(spec)).chunk_segments:
            embeds = torch.arange(stub.tokens * 2, dtype=torch.float32).reshape(stub.tokens, 2) + offset
            encoded = replace(stub.encoded, embeds=embeds)
            rows = tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)
            store.tenant(request_salt(salt)).put(replace(stub, encoded=encoded, rows=rows))
    unplanned(planner, "1", shown("alice"))
    unplanned(planner, "2", shown("bob"))
    assert planner.encoder_output("1", "a").tolist() == [[2, 3], [4, 5]]  # type: ignore[union-attr]
    assert planner.encoder_output("1", "b").tolist() == [[2, 3], [4, 5], [6, 7]]  # type: ignore[union-attr]
    assert planner.encoder_output("2", "a").tolist() == [[102, 103], [104, 105]]  # type: ignore[union-attr]
    assert planner.encoder_output("1", "none") is None and planner.encoder_output("none", "a") is None


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
    planner = RequestPlanner(SPEC, store, "blind", capture=True)
    put(store, request("a"))
    for number, strategy in enumerate((7, "nonsense", ["blind"])):
        plan = unplanned(planner, str(number), request("a", strategy=strategy))
        assert plan is not None and plan.cached.spans == () and plan.remark and not plan.missing
    named = unplanned(planner, "named", request("a", strategy="full"))
    assert named is not None and named.cached.spans == ()


def test_only_auto_is_computed_where_linking_does_not_pay_and_that_is_decided_once(store: Store) -> None:
    cheap, dear = StepRates(), StepRates(taken=2.0)
    shown = request("a", "b")
    put(store, shown)
    costs = StepCosts(shared=False)
    planner = RequestPlanner(SPEC, store, "auto", capture=True, costs=costs)
    for name in ("1", "2"):
        plan = unplanned(planner, name, shown)
    assert plan is not None and plan.needs
    for need, rank, _ in plan.needs:
        patch = form_patch([zeros(layout, TOKENS) for layout in LAYOUTS], rank, torch.float32)
        assert store.tenant().put_artifact(need, patch)

    def reach(name: str, rates: StepRates, strategy: str = "auto") -> int:
        """Return how far a request may skip, planned while linking was cheap."""
        unplanned(planner, name, request("a", "b", strategy=strategy))
        costs.rates = rates
        with planner.scheduling(rows=100, free_slots=lambda: 9, waiting=lambda: 0):
            claim = planner.reserve(name, 0)
        costs.rates = cheap
        return 0 if claim is None else claim.stop

    assert reach("pays", cheap) == 603 and reach("pays", dear) == 603, "it was decided already"
    assert reach("does not", dear) == 0 and reach("does not", cheap) == 0
    report = planner.finish("does not")
    assert report is not None and (report["strategy"], report["remark"]) == ("plain", COSTS_MORE)
    assert reach("named", dear, "blind") == 603
    costs.rates = dear
    refused = unplanned(planner, "not planned at all", shown)
    assert refused is not None and refused.cached.spans == () and refused.remark == COSTS_MORE


def test_a_line_is_logged_once_and_lines_are_bounded(
    planner: RequestPlanner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "MOST_LINES", 2)
    for number, refusal in enumerate(("one", "one", "two", "three", "one")):
        unplanned(planner, str(number), replace(request("a"), refusal=refusal))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["one", "two"]


def test_the_names_that_were_shown_last_are_remembered(
    planner: RequestPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "REMEMBERED_NAMES", 2)
    for number, name in enumerate("abac"):
        assert unplanned(planner, str(number), request(name)) is not None

    def shown_falsely(name: str) -> ServedRequest:
        own = request(name)
        return replace(own, items=(replace(own.items[0], digest="another"),))

    assert unplanned(planner, "false a", shown_falsely("a")) is None
    assert unplanned(planner, "false b", shown_falsely("b")) is not None, "forgotten, as it came first"
