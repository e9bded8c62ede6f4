"""Policies of placement hold to their words in any order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.serve.ray.placement import MediaPlaces, RoutedRequest, SetAffinity

DIGESTS = st.integers(0, 20)
REPLICAS = st.integers(0, 6)


def even(replica):
    return 0.0


class PlainPlaces:
    """The same as `MediaPlaces` by lists: what each replica holds, and which digests were used last."""

    def __init__(self, most, copies, each):
        self.most, self.copies, self.each, self.order, self.held = most, copies, each, [], {}

    def note(self, digests, replica):
        self.held.setdefault(replica, [])
        for digest in digests:
            others = [other for other in self.find(digest) if other != replica]
            where = [*others, replica][-self.copies :]
            self.order = [pair for pair in self.order if pair[0] != digest] + [(digest, where)]
            for other in list(self.held):
                if other not in self.find(digest):
                    self.held[other] = [held for held in self.held[other] if held != digest]
            self.held[replica] = [held for held in self.held[replica] if held != digest] + [digest]
        while self.each is not None and len(self.held[replica]) > self.each:
            self.leave(self.held[replica].pop(0), replica)
        while len(self.order) > self.most:
            gone, _ = self.order.pop(0)
            self.held = {name: [held for held in kept if held != gone] for name, kept in self.held.items()}

    def leave(self, digest, replica):
        pairs = [(name, [other for other in where if (name, other) != (digest, replica)]) for name, where in self.order]
        self.order = [(name, where) for name, where in pairs if where]

    def forget(self, replica):
        for digest in self.held.pop(replica, []):
            self.leave(digest, replica)

    def find(self, digest):
        return next((where for name, where in self.order if name == digest), [])


@given(
    st.lists(st.tuples(st.lists(DIGESTS, max_size=6), REPLICAS, st.booleans()), max_size=40),
    st.integers(1, 12), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 5)),
)  # fmt: skip
def test_places_are_those_of_a_plain_model_and_bounded(events, most, copies, each):
    places, model = MediaPlaces(most, copies, each), PlainPlaces(most, copies, each)
    for digests, replica, gone in events:
        if gone:
            places.forget(replica)
            model.forget(replica)
            continue
        places.note(digests, replica)
        model.note(digests, replica)
        assert len(places) == len(model.order) <= most
        assert all(list(places.find(digest)) == model.find(digest) for digest in range(21))
        counts = [sum(name in places.find(digest) for digest in range(21)) for name in range(7)]
        assert each is None or max(counts) <= each


def test_a_replica_that_is_asked_most_is_not_believed_to_have_all():
    """Two replicas of twelve pictures share twenty-four, without any load."""
    placement, counts = SetAffinity(each=12, seed=1), {"a": 0, "b": 0}
    placement.set_replicas(["a", "b"])
    for turn in range(400):
        request = RoutedRequest(tuple(3 * (turn * 7 % 8) + number for number in range(3)))
        first = placement.rank(request, even)[0]
        placement.note(request, first)
        counts[first] += 1
    assert min(counts.values()) > 100


@pytest.mark.parametrize("given_", [(0, 1), (1, 0), (1, 1, 0)])
def test_an_empty_table_is_refused(given_):
    with pytest.raises(ValueError, match="give 1 or more"):
        MediaPlaces(*given_)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("replicas"), st.sets(REPLICAS)),
        st.tuples(st.just("request"), st.lists(DIGESTS, max_size=6)),
    ),
    max_size=40,
)


@given(events=EVENTS, loads=st.lists(st.floats(0, 50), min_size=7, max_size=7))
def test_only_replicas_that_are_here_are_named_and_one_is_always(events, loads):
    placement, here = SetAffinity(), set()
    for event in events:
        if event[0] == "replicas":
            here = event[1]
            placement.set_replicas(sorted(here))
            continue
        request = RoutedRequest(tuple(event[1]))
        ranked = placement.rank(request, lambda replica: loads[replica])
        assert set(ranked) <= here
        assert len(set(ranked)) == len(ranked)
        assert bool(ranked) == bool(here)
        if ranked:
            placement.note(request, ranked[0])


@given(st.sets(DIGESTS, min_size=1, max_size=8), st.integers(0, 6), st.randoms())
def test_pictures_go_where_they_went_in_any_order(digests, where, shuffling):
    placement = SetAffinity()
    placement.set_replicas(range(7))
    placement.note(RoutedRequest(tuple(digests)), where)
    order = list(digests)
    shuffling.shuffle(order)
    assert placement.rank(RoutedRequest(tuple(order)), even)[0] == where
    # Half of them beside as many new ones are still a reason.
    assert placement.rank(RoutedRequest((*order, *range(100, 100 + len(order)))), even)[0] == where


@given(st.floats(0.05, 1.0), st.integers(0, 30))
def test_load_outweighs_pictures_exactly_where_the_weight_says(weight, waiting):
    placement = SetAffinity(load_weight=weight)
    placement.set_replicas(["has it", "is idle"])
    request = RoutedRequest((1, 2))
    placement.note(request, "has it")
    first = placement.rank(request, lambda replica: waiting if replica == "has it" else 0)[0]
    if weight * waiting < 1:
        assert first == "has it"
    if weight * waiting > 1:
        assert first == "is idle"


def test_a_replica_that_is_gone_is_not_named_and_its_pictures_move():
    placement = SetAffinity()
    placement.set_replicas(["a", "b"])
    request = RoutedRequest((1, 2, 3))
    placement.note(request, "a")
    placement.set_replicas(["b", "c"])
    assert "a" not in placement.rank(request, even)
    placement.note(request, "c")
    assert placement.rank(request, even)[0] == "c"


def test_a_request_without_media_goes_to_the_less_busy_of_two_that_are_drawn():
    placement = SetAffinity(seed=3)
    placement.set_replicas(range(5))
    ranked = [tuple(placement.rank(RoutedRequest(), even)) for _ in range(2_000)]
    assert all(len(set(pair)) == 2 for pair in ranked) and len(set(ranked)) == 20
    assert placement.rank(RoutedRequest(), lambda replica: -replica)[0] >= 1
