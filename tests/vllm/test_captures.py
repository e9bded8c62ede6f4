"""What is captured, when, and on whose pages: each chunk once, under its tenant, and every page comes back."""

import math
from collections.abc import Iterable

import pytest

from emblema.link.plan import LinkPlan
from emblema.served import captures as captures_module
from emblema.served.captures import REMEMBERED_CAPTURES, WAITING_CAPTURES, CaptureQueue
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.requests import MediaItem, ServedRequest
from emblema.store import Store
from emblema.store.identity import request_salt
from emblema.vllm.captures import BESIDE_ROWS, PageCaptures
from emblema.vllm.step_metadata import StepMetadata
from tests.link.pieces import LAYERS
from tests.vllm.page_pool import PagePool
from tests.vllm.requests import SPEC, TOKENS, request

PAGE = 32
PAGES = -(-TOKENS // PAGE)
ROWS, PLACES = 2048, 8


@pytest.fixture
def pool() -> PagePool:
    return PagePool()


@pytest.fixture
def captures(pool: PagePool) -> PageCaptures:
    queue = CaptureQueue(lambda request, item, capture: f"feature of {item.identifier}")
    captures = PageCaptures(queue, 2, PAGE, ROWS)
    captures.bind_pool(pool)
    return captures


def plan(shown: ServedRequest, stored: str = "") -> RequestPlan:
    """The plan of a request whose pictures are missing, but for those named."""
    prompt = build_prompt(shown, ChunkStubs(SPEC))
    chunks = zip(shown.items, (chunk for _, chunk in prompt.chunk_segments), strict=True)
    missing = {chunk.id: chunk for item, chunk in chunks if item.identifier not in stored}
    return RequestPlan(shown, prompt, LinkPlan("plain", prompt.tokens, LAYERS, ()), tuple(missing.values()))


def shown_of(names: Iterable[str], salt: str | None = None) -> ServedRequest:
    return request(*names, salt=salt)


def drain(captures: PageCaptures) -> list[str]:
    """Have everything captured, and return the names in their order."""
    names = []
    while begun := captures.begin(idle=True):
        names += [capture.feature.removeprefix("feature of ") for capture in begun]
        captures.finish({capture.chunk.id: 2 for capture in begun})
    return names


def test_missing_pictures_are_captured_once_and_known_ones_never(
    captures: PageCaptures, pool: PagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures.queue.request(plan(shown_of("abcb"), stored="a"))
    captures.queue.request(plan(shown_of("cd")))
    begun = captures.begin(idle=True)
    assert [capture.identifier for capture in begun] == [f"emblema-shown {name}" for name in "bcd"]
    assert captures.running and not captures.waiting and captures.begin(idle=True) == ()
    pages = [block for capture in begun for block in capture.blocks]
    assert len(pages) == len(set(pages)) == 3 * PAGES == 100 - len(pool.free)
    # Both workers have to be done with the pages.
    captures.finish({begun[0].chunk.id: 1})
    assert len(pool.free) == 100 - 3 * PAGES
    captures.finish({begun[0].chunk.id: 1, begun[1].chunk.id: 2})
    assert len(pool.free) == 100 - PAGES and captures.running
    captures.finish({begun[2].chunk.id: 2})
    assert sorted(pool.free) == list(range(100)) and not captures.running
    captures.queue.request(plan(shown_of("b")))
    assert drain(captures) == [], "it may not be stored yet"
    monkeypatch.setattr(captures_module, "RECAPTURE_SECONDS", 0.0)
    captures.queue.request(plan(shown_of("b")))
    assert drain(captures) == ["b"]


def test_what_requests_wait_for_comes_first_and_awaits_no_quiet_moment(captures: PageCaptures) -> None:
    captures.queue.request(plan(shown_of("abc")))
    captures.queue.idle_time.pressed, captures.queue.idle_time._from = True, math.inf
    assert not captures.begin(idle=False) and not captures.urgent
    captures.queue.request(plan(shown_of("cd")), urgent=True)
    begun = captures.begin(idle=False)
    assert [capture.identifier for capture in begun] == ["emblema-shown c", "emblema-shown d"], "c was waiting already"
    assert captures.urgent and captures.waiting
    captures.finish({capture.chunk.id: 2 for capture in begun})
    assert not captures.urgent and not captures.begin(idle=False)
    captures.queue.idle_time.pressed = False
    assert drain(captures) == ["a", "b"]


def test_a_picture_that_found_no_room_is_requested_again(captures: PageCaptures) -> None:
    names = [f"p{number}" for number in range(WAITING_CAPTURES + 1)]
    small = [ServedRequest([1, 2, 9, 3], (MediaItem(0, "image", name, 2, 1, digest=name),)) for name in names]
    for shown in (*small, small[0]):
        captures.queue.request(plan(shown))
    assert "p0" in drain(captures)


def test_what_is_deleted_waits_no_longer(captures: PageCaptures) -> None:
    captures.queue.request(plan(shown_of("ab")))
    captures.queue.drop(plan(shown_of("a")))
    assert drain(captures) == ["b"]
    captures.queue.request(plan(shown_of("a")))
    assert drain(captures) == ["a"], "it may be shown again"


def test_captures_are_of_the_tenant(captures: PageCaptures) -> None:
    for salt in ("alice", "bob"):
        captures.queue.request(plan(shown_of("a", salt)))
    begun = captures.begin(idle=True)
    assert [capture.salt for capture in begun] == [request_salt("alice"), request_salt("bob")]
    assert len({capture.chunk.id for capture in begun}) == 2


def test_nothing_begins_without_pages(captures: PageCaptures, pool: PagePool) -> None:
    del pool.free[PAGES + 1 :]
    captures.queue.request(plan(shown_of("ab")))
    (first,) = captures.begin(idle=True)
    assert len(first.blocks) == PAGES and captures.waiting
    captures.finish({first.chunk.id: 2})
    assert drain(captures) == ["b"]
    pool.free = pool.free[1:PAGES]
    captures.queue.request(plan(shown_of("c")))
    assert not captures.begin(idle=True) and captures.waiting and not captures.running


def test_captures_have_room_for_the_anchor(pool: PagePool) -> None:
    """Its rows have pages too; what is then longer than a prompt may be is left alone."""
    anchor = tuple(range(40))
    long, captures = (
        PageCaptures(CaptureQueue(lambda request, item, capture: None, anchor, TOKENS + 40 + more), 1, PAGE, ROWS)
        for more in (0, 1)
    )
    for each in (long, captures):
        each.bind_pool(pool)
        each.queue.request(plan(shown_of("a")))
    assert not long.waiting
    (begun,) = captures.begin(idle=True)
    assert begun.anchor == anchor and begun.tokens == TOKENS + 40 and len(begun.blocks) == -(-begun.tokens // PAGE)
    assert begun.token_ids == [*anchor, *begun.chunk.encoded.token_ids.tolist()]


def test_waiting_and_remembered_captures_are_bounded(captures: PageCaptures) -> None:
    shown = [f"picture {number}" for number in range(REMEMBERED_CAPTURES + 2)]
    small = [ServedRequest([1, 2, 9, 3], (MediaItem(0, "image", name, 2, 1, digest=name),)) for name in shown]
    for each in small:
        captures.queue.request(plan(each))
    assert drain(captures) == shown[-WAITING_CAPTURES:] and WAITING_CAPTURES == 64
    # The first two are forgotten and may be requested again; the last is remembered.
    for number in (0, 1, -1):
        captures.queue.request(plan(small[number]))
    assert drain(captures) == shown[:2]


def filled(captures: PageCaptures, scheduled: dict[str, tuple[int, int]], **facts: bool) -> StepMetadata:
    """A step with what it captures."""
    told = {"idle": not scheduled, "waits": False, "reads": False} | facts
    return captures.fill(StepMetadata(), scheduled, PLACES, **told)


def test_captures_have_all_of_an_idle_step_and_a_little_beside_answers(captures: PageCaptures) -> None:
    captures.capture(plan(shown_of("ab")))
    step = filled(captures, {})
    assert len(step.captures) == 2 and (step.side_rows, step.side_slots) == (ROWS, PLACES) and captures.pending
    assert filled(captures, {"a": (7, 1), "b": (9, 1)}).side_rows == BESIDE_ROWS


@pytest.mark.parametrize("scheduled", [{"a": (0, 5)}, {"a": (0, 5), "b": (9, 1)}])
def test_nothing_is_captured_beside_a_prefill(captures: PageCaptures, scheduled: dict[str, tuple[int, int]]) -> None:
    captures.capture(plan(shown_of("a")))
    step = filled(captures, scheduled)
    assert step.side_rows == 0 and not step.captures and captures.waiting


def test_nothing_begins_where_a_request_waits_and_what_holds_its_pages_goes_on(captures: PageCaptures) -> None:
    captures.capture(plan(shown_of("a")))
    assert not filled(captures, {"a": (7, 1)}, waits=True).captures
    filled(captures, {})
    captures.capture(plan(shown_of("b")))
    step = filled(captures, {"a": (7, 1)}, waits=True)
    assert step.side_rows == BESIDE_ROWS and not step.captures
    assert filled(captures, {"a": (7, 1)}, waits=True, reads=True).side_rows == 0


def test_what_requests_wait_for_is_captured_beside_prefills_in_the_rows_that_are_left(captures: PageCaptures) -> None:
    captures.capture(plan(shown_of("a")), urgent=True)
    for scheduled, rows in (({"a": (0, 500)}, PAGES * PAGE), ({"a": (0, ROWS - 30)}, 30)):
        step = filled(captures, scheduled, waits=True, reads=True)
        assert step.side_rows == rows and step.side_slots == PLACES


def test_nothing_is_captured_where_that_is_off_or_declined(captures: PageCaptures) -> None:
    captures.capture(plan(request("a", capture=False)))
    off = PageCaptures(CaptureQueue(lambda *given: None), 1, PAGE, ROWS, enabled=False)
    off.capture(plan(shown_of("a")))
    assert not captures.waiting and not off.waiting and not off.pending


def test_pictures_of_conversations_that_grow_are_captured_once_others_show_them() -> None:
    planning = RequestPlanning(SPEC, Store(), "auto", print)

    def captured(*names: str, **options: object) -> set[str]:
        plan, queue = planning.plan(request(*names, **options)), CaptureQueue(lambda *given: None)
        queue.request(plan)
        shown = {chunk.id: name for name, (_, chunk) in zip(names, plan.prompt.chunk_segments, strict=True)}
        return {shown[capture.chunk.id] for capture in queue.waiting}

    assert captured("z") == {"z"}, "nothing is known of the tenant"
    for number in range(4):
        for turns in range(1, 5):
            captured(*(f"{number} {turn}" for turn in range(turns)))
    assert captured("new") == captured("new", "newer") == set(), "the next turn finds its rows in the prefix cache"
    assert captured("new", strategy="blind") == {"new"}, "it is asked for"
    assert captured("x", "new") == set()
    assert captured("y", "new") == {"new"}, "the third prompt that has it elsewhere"
    plan, queue = planning.plan(request("last")), CaptureQueue(lambda *given: None)
    queue.request(plan, urgent=True)
    assert len(queue.urgent) == 1, "a request waits for it"
