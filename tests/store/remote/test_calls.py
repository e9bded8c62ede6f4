"""The breaker, the tries and the parts by themselves, on a clock of their own."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emblema.errors import LoadError, StoreError
from emblema.store.remote.calls import Breaker, Caller, CallPolicy, RestingError, UnansweredError
from emblema.store.remote.options import FAR, Expiry
from emblema.store.remote.parts import PartedSource, split


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def caller(clock: Clock, policy: CallPolicy) -> Caller:
    return Caller(
        "the server",
        policy,
        (OSError,),
        lambda error: not isinstance(error, PermissionError),
        lambda text: text.replace("secret", "***"),
        clock=clock,
        sleep=clock.sleep,
    )


class BreakerMachine(RuleBasedStateMachine):
    """A breaker beside the plainest description of one."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(3, 10.0, clock=self.clock)
        self.in_a_row = 0
        self.opened_at: float | None = None
        self.under_way = 0

    @property
    def expected(self) -> str:
        if self.opened_at is None:
            return "closed"
        return "half-open" if self.clock.now - self.opened_at >= 10.0 else "open"

    @rule(seconds=st.sampled_from([0.5, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.under_way == 0)
    @rule()
    def enter(self) -> None:
        assert self.breaker.enter() == (self.expected != "open")
        self.under_way = int(self.expected != "open")
        if self.expected == "half-open":
            assert not self.breaker.enter()

    @precondition(lambda self: self.under_way == 1)
    @rule(how=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def leave(self, how: str) -> None:
        before = self.expected
        getattr(self.breaker, how)()
        self.under_way = 0
        if how == "succeeded":
            self.in_a_row, self.opened_at = 0, None
        if how == "failed":
            self.in_a_row += 1
            if before == "half-open" or (before == "closed" and self.in_a_row >= 3):
                self.opened_at = self.clock.now

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.state == self.expected


TestBreaker = BreakerMachine.TestCase


def test_tries_pause_longer_and_never_together() -> None:
    policy = CallPolicy(retries=6, pause_seconds=0.1, longest_pause_seconds=1.0, total_seconds=60, failures=100)
    longest = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    drawn = []
    for _ in range(20):
        clock = Clock()
        tries = caller(clock, policy)
        with pytest.raises(UnansweredError, match="7 tries"):
            tries.call(lambda: (_ for _ in ()).throw(OSError("gone")))
        assert all(0 <= pause <= most for pause, most in zip(clock.pauses, longest, strict=True))
        assert tries.statistics.retries == 6
        assert tries.statistics.failures == 1
        drawn.append(tuple(clock.pauses))
    assert len(set(drawn)) == 20


def test_no_try_begins_after_the_total() -> None:
    clock = Clock()
    tries = caller(clock, CallPolicy(retries=100, total_seconds=6, failures=1000))

    def slow() -> None:
        clock.now += 5
        raise TimeoutError("slow")

    with pytest.raises(UnansweredError):
        tries.call(slow)
    assert clock.now < 12


def test_an_answer_of_no_is_not_tried_again() -> None:
    tries = caller(Clock(), CallPolicy(failures=1))
    for _ in range(5):
        with pytest.raises(PermissionError):
            tries.call(lambda: (_ for _ in ()).throw(PermissionError("no")))
    assert tries.breaker.state == "closed"
    assert tries.statistics.failures == tries.statistics.retries == 0


def test_a_fault_of_our_own_is_no_outage() -> None:
    tries = caller(Clock(), CallPolicy(failures=1))
    with pytest.raises(ZeroDivisionError):
        tries.call(lambda: 1 // 0)
    assert tries.breaker.state == "closed"
    assert tries.call(lambda: 5) == 5


def test_an_open_breaker_asks_nobody_and_one_try_closes_it() -> None:
    clock = Clock()
    tries = caller(clock, CallPolicy(retries=0, failures=2, rest_seconds=5))
    asked = []

    def fail() -> None:
        asked.append(1)
        raise OSError("a secret place")

    for _ in range(2):
        with pytest.raises(UnansweredError, match=r"a \*\*\* place"):
            tries.call(fail)
    for _ in range(10):
        with pytest.raises(RestingError):
            tries.call(fail)
    assert len(asked) == 2
    clock.now += 5
    with pytest.raises(UnansweredError):
        tries.call(fail)
    with pytest.raises(RestingError):
        tries.call(fail)
    clock.now += 5
    assert tries.call(lambda: "here") == "here"
    assert tries.statistics.opened == 2
    assert tries.statistics.breaker == "closed"


def test_only_one_of_many_threads_tries_a_server_that_failed() -> None:
    clock = Clock()
    breaker = Breaker(1, 1.0, clock=clock)
    assert breaker.enter()
    breaker.failed()
    clock.now = 1.0
    let_in, barrier = [], threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        let_in.append(breaker.enter())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(let_in) == 1


@pytest.mark.parametrize(
    "wrong", [{"reply_seconds": 0}, {"connect_seconds": -1}, {"retries": -1}, {"pause_seconds": -0.1}]
)
def test_policies_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(StoreError):
        CallPolicy(**wrong)
    with pytest.raises(StoreError):
        Breaker(0)


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 50))
def test_parts_are_the_same_bytes(buffers: list[bytes], part_bytes: int) -> None:
    parts = [bytes(part) for part in split(buffers, part_bytes)]
    assert b"".join(parts) == b"".join(buffers)
    assert all(len(part) == part_bytes for part in parts[:-1])
    assert all(0 < len(part) <= part_bytes for part in parts[-1:])


@given(st.binary(min_size=1, max_size=300), st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32))
def test_any_range_of_a_source_is_what_was_written(data: bytes, part_bytes: int, group: int, seed: int) -> None:
    parts = list(split([data], part_bytes))
    source = PartedSource("id", len(data), part_bytes, lambda at, count: parts[at : at + count], parts[0], group)
    numbers = random.Random(seed)
    for _ in range(20):
        start = numbers.randrange(len(data) + 1)
        stop = numbers.randrange(start, len(data) + 1)
        target = bytearray(stop - start)
        source.read_into(start, memoryview(target))
        assert target == data[start:stop]


def test_reading_forward_fetches_every_part_once() -> None:
    data, fetched = bytes(range(250)), []
    parts = list(split([data], 10))

    def fetch(at: int, count: int) -> list[object]:
        fetched.extend(range(at, at + count))
        return parts[at : at + count]

    source = PartedSource("id", len(data), 10, fetch, parts[0], 4)
    for start in range(0, 250, 7):
        source.read_into(start, memoryview(bytearray(min(7, 250 - start))))
    assert fetched == list(range(1, 25))


@pytest.mark.parametrize("answer", [[], [b"x" * 9], [b"x" * 11], [b""], [b"x" * 10] * 3])
def test_parts_of_another_length_or_number_are_refused(answer: list[bytes]) -> None:
    source = PartedSource("id", 25, 10, lambda at, count: answer, b"x" * 10, 1)
    with pytest.raises(LoadError):
        source.read_into(10, memoryview(bytearray(10)))
    with pytest.raises(LoadError):
        source.read_into(20, memoryview(bytearray(10)))


@given(st.none() | st.floats(0, 1e12), st.none() | st.floats(0, 1e12), st.floats(0, 1e10), st.floats(0, 1e10))
def test_a_record_ends_with_the_earlier_of_its_terms(
    expires: float | None, idle: float | None, used: float, now: float
) -> None:
    expiry = Expiry(expires, idle)
    until = expiry.until(used)
    ends = [end for end in (expires, None if idle is None else used + idle) if end is not None and end < FAR]
    assert until == (min(ends) if ends else None)
    assert expiry.expired(now) == (expires is not None and expires <= now)
