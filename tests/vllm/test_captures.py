"""What is captured, when, and on whose pages: each chunk once, under its tenant, and every page comes back."""

import math
from collections.abc import Iterable

import pytest

from emblema.link.plan import LinkPlan
from emblema.plugin.quiet import CAPTURE_SHARE, CAPTURES_AT_ONCE, DENSE_SECONDS, PRESSED_SECONDS, QuietMoments
from emblema.plugin.request_plan import ChunkStubs, MediaItem, RequestPlan, ServedRequest, build_prompt
from emblema.store.identity import request_salt
from emblema.vllm import captures as captures_module
from emblema.vllm.captures import REMEMBERED_CAPTURES, WAITING_CAPTURES, CaptureQueue
from tests.link.pieces import LAYERS
from tests.vllm.page_pool import PagePool
from tests.vllm.requests import SPEC, TOKENS, request

PAGE = 32
PAGES = -(-TOKENS // PAGE)


@pytest.fixture
def pool() -> PagePool:
    return PagePool()


@pytest.fixture
def queue(pool: PagePool) -> CaptureQueue:
    queue = CaptureQueue(2, PAGE, lambda wanted: f"feature of {wanted.item.identifier}")
    queue.bind_pool(pool)
    return queue


def plan(shown: ServedRequest, stored: str = "") -> RequestPlan:
    """The plan of a request whose pictures are missing, but for those named."""
    prompt = build_prompt(shown, ChunkStubs(SPEC))
    chunks = zip(shown.items, (chunk for _, chunk in prompt.chunk_segments), strict=True)
    missing = {chunk.id: chunk for item, chunk in chunks if item.identifier not in stored}
    return RequestPlan(shown, prompt, LinkPlan("plain", prompt.tokens, LAYERS, ()), tuple(missing.values()))


def shown_of(names: Iterable[str], salt: str | None = None) -> ServedRequest:
    return request(*names, salt=salt)


def drain(queue: CaptureQueue) -> list[str]:
    """Have everything captured, and return the names in their order."""
    names = []
    while begun := queue.begin(idle=True):
        names += [capture.feature.removeprefix("feature of ") for capture in begun]
        queue.finish({capture.chunk.id: 2 for capture in begun})
    return names


def test_missing_pictures_are_captured_once_and_known_ones_never(
    queue: CaptureQueue, pool: PagePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.request(plan(shown_of("abcb"), stored="a"))
    queue.request(plan(shown_of("cd")))
    begun = queue.begin(idle=True)
    assert [capture.identifier for capture in begun] == [f"emblema-shown {name}" for name in "bcd"]
    assert queue.running and not queue.waiting and queue.begin(idle=True) == ()
    pages = [block for capture in begun for block in capture.blocks]
    assert len(pages) == len(set(pages)) == 3 * PAGES == 100 - len(pool.free)
    # Both workers have to be done with the pages.
    queue.finish({begun[0].chunk.id: 1})
    assert len(pool.free) == 100 - 3 * PAGES
    queue.finish({begun[0].chunk.id: 1, begun[1].chunk.id: 2})
    assert len(pool.free) == 100 - PAGES and queue.running
    queue.finish({begun[2].chunk.id: 2})
    assert sorted(pool.free) == list(range(100)) and not queue.running
    queue.request(plan(shown_of("b")))
    assert drain(queue) == [], "it may not be stored yet"
    monkeypatch.setattr(captures_module, "RECAPTURE_SECONDS", 0.0)
    queue.request(plan(shown_of("b")))
    assert drain(queue) == ["b"]


def test_what_requests_wait_for_comes_first_and_awaits_no_quiet_moment(queue: CaptureQueue) -> None:
    queue.request(plan(shown_of("abc")))
    queue.quiet.pressed, queue.quiet._from = True, math.inf
    assert not queue.begin(idle=False) and not queue.urgent
    queue.request(plan(shown_of("cd")), urgent=True)
    begun = queue.begin(idle=False)
    assert [capture.identifier for capture in begun] == ["emblema-shown c", "emblema-shown d"], "c was waiting already"
    assert queue.urgent and queue.waiting and queue.running_rows == 2 * PAGES * PAGE
    queue.finish({capture.chunk.id: 2 for capture in begun})
    assert not queue.urgent and not queue.begin(idle=False)
    queue.quiet.pressed = False
    assert drain(queue) == ["a", "b"]


def test_a_picture_that_found_no_room_is_requested_again(queue: CaptureQueue) -> None:
    names = [f"p{number}" for number in range(WAITING_CAPTURES + 1)]
    small = [ServedRequest([1, 2, 9, 3], (MediaItem(0, "image", name, 2, 1, digest=name),)) for name in names]
    for shown in (*small, small[0]):
        queue.request(plan(shown))
    assert "p0" in drain(queue)


def test_captures_are_of_the_tenant(queue: CaptureQueue) -> None:
    for salt in ("alice", "bob"):
        queue.request(plan(shown_of("a", salt)))
    begun = queue.begin(idle=True)
    assert [capture.salt for capture in begun] == [request_salt("alice"), request_salt("bob")]
    assert len({capture.chunk.id for capture in begun}) == 2


def test_nothing_begins_without_pages(queue: CaptureQueue, pool: PagePool) -> None:
    del pool.free[PAGES + 1 :]
    queue.request(plan(shown_of("ab")))
    (first,) = queue.begin(idle=True)
    assert len(first.blocks) == PAGES and queue.waiting
    queue.finish({first.chunk.id: 2})
    assert drain(queue) == ["b"]
    pool.free = pool.free[1:PAGES]
    queue.request(plan(shown_of("c")))
    assert not queue.begin(idle=True) and queue.waiting and not queue.running


def test_waiting_and_remembered_captures_are_bounded(queue: CaptureQueue) -> None:
    shown = [f"picture {number}" for number in range(REMEMBERED_CAPTURES + 2)]
    small = [ServedRequest([1, 2, 9, 3], (MediaItem(0, "image", name, 2, 1, digest=name),)) for name in shown]
    for each in small:
        queue.request(plan(each))
    assert drain(queue) == shown[-WAITING_CAPTURES:] and WAITING_CAPTURES == 64
    # The first two are forgotten and may be requested again; the last is remembered.
    for number in (0, 1, -1):
        queue.request(plan(small[number]))
    assert drain(queue) == shown[:2]


def test_a_server_without_requests_is_quiet() -> None:
    quiet = QuietMoments()
    assert quiet.captures(5.0, idle=True) == CAPTURES_AT_ONCE
    quiet.begin(5.0)
    quiet.end(6.0)
    assert quiet.captures(6.0, idle=True) == CAPTURES_AT_ONCE, "nobody waited"
    rest = 1 / CAPTURE_SHARE - 1
    assert [quiet.captures(6.0 + seconds, idle=False) for seconds in (0.0, rest - 0.1, rest + 0.1)] == [0, 0, 1]


def test_a_burst_is_left_alone() -> None:
    quiet = QuietMoments()
    for number in range(4):
        quiet.arrive(0.1 * number)
    quiet.look(0.4)
    assert quiet.pressed and quiet.captures(0.4, idle=True) == quiet.captures(0.4, idle=False) == 0
    # Where it lasts, something is captured beside it all the same.
    for number in range(4, 30):
        quiet.arrive(0.1 * number)
        quiet.look(0.1 * number)
    assert quiet.pressed and quiet.captures(0.4 + PRESSED_SECONDS + 0.1, idle=False) == 1
    quiet.look(2.9 + DENSE_SECONDS)
    assert not quiet.pressed and quiet.captures(2.9 + DENSE_SECONDS, idle=True) == CAPTURES_AT_ONCE
    for number in range(3):
        quiet.arrive(10 + number)
        quiet.look(10.0 + number)
        assert not quiet.pressed, "one after another"
