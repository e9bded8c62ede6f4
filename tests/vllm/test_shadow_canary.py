"""Which answered prompts are compared inside vLLM, when, and on whose pages: one at a time; every page comes back."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from emblema.kv.patch import form_patch
from emblema.link.lanes import Lane
from emblema.link.policy.certificate import FIRST_LOOK
from emblema.link.policy.policy import Policy
from emblema.served.idle_time import CAPTURE_SHARE, IdleTime
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan
from emblema.store import Store
from emblema.store.identity import request_salt
from emblema.vllm.batch_places import BatchPlaces
from emblema.vllm.lane_ledgers import LaneLedgers
from emblema.vllm.plan_maker import PlanMaker
from emblema.vllm.planner import STAGING_SECONDS, RequestPlanner
from emblema.vllm.shadow_canary import MOST_BYTES, ShadowCanary
from emblema.vllm.step_metadata import ShadowOutcome, ShadowReport, SidePrompt, StepMetadata, WorkerReport
from tests.link.pieces import LAYOUTS
from tests.vllm.page_pool import PagePool
from tests.vllm.requests import SPEC, TOKENS, planned, put, request, zeros

pytestmark = pytest.mark.usefixtures("planners_end")

ALWAYS = Policy(canary=1, canary_rows=1e6)
PAGE = 32
WORKERS = 2
PATCHED = frozenset([("image", Lane.PATCH)])


@dataclass
class Server:
    """A planner, a canary, and the two workers that a test plays."""

    store: Store
    planner: RequestPlanner
    canary: ShadowCanary
    pool: PagePool
    idle_time: IdleTime = field(default_factory=IdleTime)
    now: float = 1000.0
    count: int = 0

    @property
    def maker(self) -> PlanMaker:
        assert self.planner.maker is not None
        return self.planner.maker

    def answer(self, *names: str, salt: str | None = None, linked: bool = True, **options: object) -> RequestPlan:
        """Have a request planned, carried out and answered."""
        self.count += 1
        plan = planned(self.planner, str(self.count), request(*names, salt=salt, **options))
        plan.linked = sum(stop - start for start, stop in plan.cached.spans) if linked else 0
        plan.complete = True
        self.canary.consider(str(self.count), plan)
        return plan

    def step(self, idle: bool = True) -> StepMetadata:
        self.settle()
        return self.canary.begin(self.canary.tell(StepMetadata()), self.idle_time, self.now, idle)

    def settle(self) -> None:
        """Wait for the planner's thread."""
        done = threading.Event()
        self.maker.do(done.set)
        assert done.wait(30)

    def report(self, **parts: Any) -> None:
        self.canary.note(WorkerReport(**parts), self.idle_time, self.now)

    def begin(self) -> Any:
        """Have what waits staged, and begun; return its order."""
        (order,) = self.step().stagings
        self.report(staged={order.number: WORKERS})
        return self.step().shadow

    def end(self, order: Any, outcome: ShadowOutcome | None) -> None:
        self.report(shadows={order.number: ShadowReport(WORKERS, outcome)})
        self.settle()

    def measured(self, salt: bytes = b"") -> dict[str, tuple[int, float]]:
        reports = LaneLedgers(self.store).of(salt).reports()
        return {f"{line.kind} {line.lane}": (line.measured, line.kl) for line in reports}


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


def server_of(store: Store, policy: Policy = ALWAYS, media: int = 0, spec: ModelSpec = SPEC) -> Server:
    planner = RequestPlanner(spec, store, "auto", True, BatchPlaces(8), WORKERS, policy=policy)
    pool = PagePool()
    assert planner.maker is not None
    canary = ShadowCanary(
        planner.maker, WORKERS, PAGE, lambda source, blocks, name: SidePrompt([], (), blocks), lambda source: media
    )
    canary.bind_pool(pool)
    return Server(store, planner, canary, pool)


def know(store: Store, *names: str, salt: str | None = None) -> None:
    """Have pictures stored, and a patch for each after those before it."""
    shown = request(*names, salt=salt)
    put(store, shown)
    server = server_of(store)
    for number in ("1", "2"):
        plan = planned(server.planner, number, shown)
    for key, rank, _ in plan.needs:
        nothing = form_patch([zeros(LAYOUTS[0], TOKENS)] * len(LAYOUTS), rank, SPEC.dtype)
        assert store.tenant(shown.store_salt).put_artifact(key, nothing)


def test_a_linked_prompt_is_compared_once_it_is_staged_and_its_pages_come_back(store: Store) -> None:
    know(store, "a", "b", salt="alice")
    server = server_of(store)
    plan = server.answer("a", "b", salt="alice")
    assert plan.plan.decisions and server.canary.waiting and not server.canary.running
    (staging,) = server.step().stagings
    assert staging.number < 0 and staging.plan == plan.plan and staging.salt == request_salt("alice")
    server.report(staged={staging.number: 1})
    assert server.step() == StepMetadata(), "the other worker has not read it"
    server.report(staged={staging.number: 1})
    order = server.step().shadow
    assert order is not None and server.canary.running and not server.canary.waiting
    assert order.taken == plan.cached.spans and order.tokens == plan.prompt.tokens and not order.noted
    pages = order.prompt.blocks
    assert pages == tuple(range(len(pages))) and len(pages) == -(-plan.prompt.tokens // PAGE)
    outcome = ShadowOutcome(0.25, False, 0.4, 700)
    server.report(shadows={order.number: ShadowReport(1, outcome)})
    assert server.canary.running and len(server.pool.free) < 100
    server.report(shadows={order.number: ShadowReport(1, outcome)})
    server.settle()
    assert not server.canary.running and sorted(server.pool.free) == list(range(100))
    assert server.measured(request_salt("alice")) == {"image patch": (1, 0.25)} and not server.measured()
    counts = server.canary.take_counts()
    assert counts == {"canary checks": 1, "canary rows": 700, "canary_kl image patch": 0.25}
    assert server.canary.take_counts() == {}


def test_a_closed_lane_is_not_taken_and_is_tried_until_it_opens(store: Store) -> None:
    know(store, "a", "b")
    server = server_of(store, Policy(canary=1, canary_rows=1e6, query_share=0))
    for _ in range(2):
        server.maker.do(lambda: server.maker.record(b"", PATCHED, ShadowOutcome(0.5, False, 0.1, 1), True))
    server.settle()
    plan = server.answer("a", "b")
    assert not plan.cached.spans and all(Lane.PATCH in own.closed for own in plan.plan.decisions)
    tried: set[str] = set()
    for _ in range(300):
        order = server.begin()
        assert order.taken == tuple(segment.rows for segment, _ in plan.prompt.chunk_segments)
        before = server.measured()
        server.end(order, ShadowOutcome(0.001, True, 0.9, 10))
        after = server.measured()
        tried |= {lane for lane in after if after[lane] != before.get(lane)}
        plan = server.answer("a", "b")
        if plan.cached.spans:
            break
    assert tried == {"image patch"}
    assert plan.cached.spans and server.canary.take_counts()["canary trials"] >= FIRST_LOOK


def test_a_share_of_the_requests_and_of_the_rows_is_compared(store: Store) -> None:
    know(store, "a", "b")
    server = server_of(store, Policy(canary=0.05, learning=0, canary_rows=1e6))
    checked = 0
    for _ in range(400):
        server.answer("a", "b")
        if server.canary.waiting:
            checked += 1
            server.end(server.begin(), ShadowOutcome(0.0, True, 0.9, 10))
    assert 10 <= checked <= 20
    server = server_of(store, Policy(canary=1, canary_rows=0.05))
    rows = computed = 0
    for _ in range(400):
        plan = server.answer("a", "b")
        computed += plan.prompt.tokens - plan.linked
        if server.canary.waiting:
            rows += 2 * plan.prompt.tokens - plan.linked
            server.end(server.begin(), ShadowOutcome(0.0, True, 0.9, 10))
    assert rows <= 0.05 * computed
    server = server_of(store, Policy(canary=0))
    server.answer("a", "b")
    assert not server.canary.waiting


def test_what_is_not_compared(store: Store) -> None:
    know(store, "a", "b")
    put(store, request("c"))
    server = server_of(store)
    server.answer("a", "b", capture=False)
    server.answer("a", "x")
    server.answer("a", "b", strategy="blind")
    incomplete = planned(server.planner, "gone", request("a", "b"))
    server.canary.consider("gone", incomplete)
    assert not server.canary.waiting
    large = server_of(store, media=MOST_BYTES + 1)
    large.answer("a", "b")
    assert not large.canary.waiting


def test_nothing_begins_without_a_quiet_moment_or_pages(store: Store) -> None:
    know(store, "a", "b")
    server = server_of(store)
    server.answer("a", "b")
    server.idle_time.begin(server.now - 1)
    server.idle_time.end(server.now)
    assert server.step(idle=False) == StepMetadata()
    server.now += 1 / CAPTURE_SHARE
    (order,) = server.step(idle=False).stagings
    server.report(staged={order.number: WORKERS})
    # More than half of what is free is left to requests.
    del server.pool.free[30:]
    assert server.step().shadow is None and not server.canary.running
    assert server.step().dropped == (order.request_id,)
    assert len(server.pool.free) == 30 and server.canary.take_counts() == {"canary skipped": 1}


def test_what_is_not_read_in_time_or_at_all_is_let_go(store: Store) -> None:
    know(store, "a", "b")
    server = server_of(store)
    server.answer("a", "b")
    (order,) = server.step().stagings
    server.report(unstaged={order.number})
    assert server.step().dropped == (order.request_id,) and not server.canary.waiting
    server.answer("a", "b")
    (order,) = server.step().stagings
    server.now += STAGING_SECONDS + 1
    server.step()
    assert server.step().dropped == (order.request_id,) and not server.canary.waiting
    assert not server.measured()


def test_a_comparison_that_is_given_up_counts_for_nothing(store: Store) -> None:
    know(store, "a", "b")
    server = server_of(store)
    server.answer("a", "b")
    order = server.begin()
    server.canary.give_up()
    server.canary.give_up()
    assert server.step().shadows_ended == (order.number,) and len(server.pool.free) < 100
    assert server.step().shadows_ended == ()
    # It was done before the workers heard of it.
    server.end(order, ShadowOutcome(0.5, False, 0.4, 700))
    assert len(server.pool.free) == 100 and not server.measured()


def test_workers_that_disagree_measure_nothing() -> None:
    seen = ShadowReport(1, ShadowOutcome(0.5, False, 0.4, 700))
    for one, two in ((seen, ShadowReport(1, None)), (ShadowReport(1, None), seen)):
        joined = WorkerReport(shadows={-1: one}).joined(WorkerReport(shadows={-1: two}))
        assert joined.shadows == {-1: ShadowReport(2, None)}
    assert seen.joined(seen) == ShadowReport(2, seen.outcome)
