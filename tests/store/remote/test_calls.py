"""The breaker, the calls and the ranges by themselves, on a clock of their own."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emblema.errors import LoadError, StoreError
from emblema.store.remote.calls import Breaker, Caller, CallError, CallPolicy, RestingError
from emblema.store.remote.ranges import RangeReader


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def caller(clock: Clock, policy: CallPolicy) -> Caller:
    return Caller(
        "the server",
        policy,
        (OSError,),
        lambda error: not isinstance(error, PermissionError),
        lambda text: text.replace("secret", "***"),
        clock,
    )


class BreakerMachine(RuleBasedStateMachine):
    """A breaker beside the plainest description of one."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(3, 10.0, self.clock)
        self.in_a_row = 0
        self.rests_since = 0.0
        self.under_way = 0

    @rule(seconds=st.sampled_from([0.5, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.under_way == 0)
    @rule()
    def enter(self) -> None:
        open_ = self.in_a_row >= 3
        may = not open_ or self.clock.now - self.rests_since >= 10.0
        assert self.breaker.enter() == may
        self.under_way = int(may)
        if open_ and may:
            self.rests_since = self.clock.now
            assert not self.breaker.enter()

    @precondition(lambda self: self.under_way == 1)
    @rule(how=st.sampled_from(["succeeded", "failed"]))
    def leave(self, how: str) -> None:
        getattr(self.breaker, how)()
        self.under_way = 0
        self.in_a_row = 0 if how == "succeeded" else self.in_a_row + 1
        if how == "failed":
            self.rests_since = self.clock.now

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.closed == (self.in_a_row < 3)


TestBreaker = BreakerMachine.TestCase


def test_an_answer_of_no_is_no_outage() -> None:
    tries = caller(Clock(), CallPolicy(failures=1))
    for _ in range(5):
        with pytest.raises(CallError, match="refused"):
            tries.call(lambda: (_ for _ in ()).throw(PermissionError("no")))
    assert tries.breaker.closed


def test_a_fault_of_our_own_is_no_outage() -> None:
    tries = caller(Clock(), CallPolicy(failures=1))
    with pytest.raises(ZeroDivisionError):
        tries.call(lambda: 1 // 0)
    assert tries.breaker.closed
    assert tries.call(lambda: 5) == 5


def test_an_open_breaker_asks_nobody_and_one_try_closes_it() -> None:
    clock = Clock()
    tries = caller(clock, CallPolicy(failures=2, rest_seconds=5))
    asked = []

    def fail() -> None:
        asked.append(1)
        raise OSError("a secret place")

    for _ in range(2):
        with pytest.raises(CallError, match=r"a \*\*\* place"):
            tries.call(fail)
    for _ in range(10):
        with pytest.raises(RestingError):
            tries.call(fail)
    assert len(asked) == 2
    clock.now += 5
    with pytest.raises(CallError, match="does not answer"):
        tries.call(fail)
    with pytest.raises(RestingError):
        tries.call(fail)
    clock.now += 5
    assert tries.call(lambda: "here") == "here"
    assert tries.breaker.closed


def test_only_one_of_many_threads_tries_a_server_that_failed() -> None:
    clock = Clock()
    breaker = Breaker(1, 1.0, clock)
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
    "wrong", [{"reply_seconds": 0}, {"connect_seconds": -1}, {"retries": -1}, {"pause_seconds": -0.1}, {"failures": 0}]
)
def test_policies_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(StoreError):
        CallPolicy(**wrong)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 40), st.integers(0, 2**32))
def test_any_range_of_a_value_is_what_was_written(data: bytes, part_bytes: int, seed: int) -> None:
    fetched = []

    def fetch(start: int, stop: int) -> memoryview:
        fetched.append(stop - start)
        return memoryview(data)[start:stop]

    reader = RangeReader("id", len(data), fetch, memoryview(data)[:part_bytes], part_bytes)
    numbers = random.Random(seed)
    for _ in range(20):
        start = numbers.randrange(len(data) + 1)
        stop = numbers.randrange(start, len(data) + 1)
        target = bytearray(stop - start)
        reader.read_into(start, memoryview(target))
        assert target == data[start:stop]
    assert max(fetched, default=0) <= 4 * part_bytes


def test_reading_forward_fetches_every_byte_once() -> None:
    data, fetched = memoryview(bytes(range(250))), []

    def fetch(start: int, stop: int) -> memoryview:
        fetched.append((start, stop))
        return data[start:stop]

    reader = RangeReader("id", len(data), fetch, data[:10], 10)
    for start in range(0, 250, 7):
        reader.read_into(start, memoryview(bytearray(min(7, 250 - start))))
    assert fetched == [(10, 30), (30, 70), (70, 110), (110, 150), (150, 190), (190, 230), (230, 250)]


def test_a_range_out_of_its_order_is_fetched_alone() -> None:
    data, fetched = memoryview(bytes(range(250))), []

    def fetch(start: int, stop: int) -> memoryview:
        fetched.append((start, stop))
        return data[start:stop]

    reader = RangeReader("id", len(data), fetch, data[:10], 10)
    reader.read_into(100, memoryview(bytearray(5)))
    assert fetched == [(100, 105)]


@pytest.mark.parametrize("offset", [-1, 21, 25, 26])
def test_what_is_outside_a_value_is_not_asked_for(offset: int) -> None:
    reader = RangeReader("id", 25, lambda start, stop: pytest.fail("asked"), memoryview(b"x" * 10), 10)
    with pytest.raises(LoadError):
        reader.read_into(offset, memoryview(bytearray(5)))
