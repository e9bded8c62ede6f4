"""Places of the batch: never more than there are, and whoever waits for some gets them before those that came later."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emblema.vllm.batch_places import BatchPlaces

MOST = 6


class Batches(RuleBasedStateMachine):
    """Requests that come, are admitted in their order, run, add virtual requests, are preempted and end."""

    def __init__(self) -> None:
        super().__init__()
        self.places = BatchPlaces(MOST)
        self.count = 0
        self.waiting: dict[str, int] = {}
        self.running: dict[str, int] = {}

    @rule(virtual=st.integers(0, MOST - 1))
    def come(self, virtual: int) -> None:
        self.count += 1
        self.waiting[str(self.count)] = virtual

    @rule(scheduled=st.booleans())
    def step(self, scheduled: bool) -> None:
        """vLLM asks for every waiting request in order; what is admitted need not be scheduled at once."""
        admitted = [name for name, virtual in self.waiting.items() if self.places.admit(name, virtual)]
        if not self.running and self.waiting:
            assert admitted, "where nothing runs, the first one fits"
        for name in admitted if scheduled else ():
            self.running[name] = self.waiting.pop(name)
        self.places.follow(self.running, ())

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data: st.DataObject, again: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        virtual = self.running.pop(name)
        self.places.follow(self.running, [name])
        if again:
            self.waiting = {name: virtual, **self.waiting}

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[name]
        self.places.leave(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.running[name] = 0
        self.places.settle(name)

    @invariant()
    def the_batch_holds_them_all(self) -> None:
        assert sum(1 + virtual for virtual in self.running.values()) <= MOST
        assert 0 <= self.places.free <= MOST - len(self.running)


Batches.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestBatches = Batches.TestCase


def test_nobody_goes_before_the_one_that_waits() -> None:
    places = BatchPlaces(4)
    assert places.admit("small", 0)
    places.follow(["small"], ())
    assert not places.admit("large", 3) and not places.admit("later", 0)
    places.follow([], ["small"])
    assert places.admit("large", 3) and places.free == 0


@pytest.mark.parametrize("end", ["leave", "follow"])
def test_one_that_waits_and_leaves_holds_nobody_up(end: str) -> None:
    places = BatchPlaces(4)
    assert places.admit("small", 1) and not places.admit("large", 3) and not places.admit("later", 0)
    if end == "leave":
        places.leave("large")
    else:
        places.follow([], ["large"])
    assert places.admit("later", 0)
