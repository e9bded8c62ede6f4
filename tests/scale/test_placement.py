"""Policies of placement hold to their words in any order of events."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.scale.hash_ring import HashRing, hash_of
from emblema.scale.media_places import MediaPlaces
from emblema.scale.placement import POLICIES, RoutedRequest, SessionHash, SetAffinity, TwoChoices

DIGESTS = st.integers(0, 20)
REPLICAS = st.integers(0, 6)


def even(replica):
    return 0.0


@given(st.lists(st.tuples(st.lists(DIGESTS, max_size=6), REPLICAS), max_size=40), st.integers(1, 12), st.integers(1, 4))
def test_places_are_those_of_a_plain_model_and_bounded(events, most, copies):
    places, model = MediaPlaces(most, copies), OrderedDict()
    for digests, replica in events:
        places.note(digests, replica)
        for digest in digests:
            model[digest] = [*(other for other in model.pop(digest, []) if other != replica), replica][-copies:]
        while len(model) > most:
            model.popitem(last=False)
        assert len(places) == len(model) <= most
        assert all(list(places.find(digest)) == model.get(digest, []) for digest in range(21))


@pytest.mark.parametrize("given_", [(0, 1), (1, 0)])
def test_an_empty_table_is_refused(given_):
    with pytest.raises(ValueError, match="give 1 or more"):
        MediaPlaces(*given_)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("replicas"), st.sets(REPLICAS)),
        st.tuples(st.just("request"), st.lists(DIGESTS, max_size=6), st.sampled_from([None, "a", "b"])),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(events=EVENTS, loads=st.lists(st.floats(0, 50), min_size=7, max_size=7))
def test_only_replicas_that_are_here_are_named_and_one_is_always(policy, events, loads):
    placement, here = POLICIES[policy](), set()
    for event in events:
        if event[0] == "replicas":
            here = event[1]
            placement.set_replicas(sorted(here))
            continue
        request = RoutedRequest(tuple(event[1]), event[2])
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


@given(st.sets(st.text(max_size=5), min_size=2, max_size=8), st.integers(0, 2**64 - 1))
def test_keys_move_only_from_a_replica_that_is_lost(replicas, key):
    lost = sorted(replicas)[0]
    before = list(HashRing(replicas).after(key))
    after = list(HashRing(replicas - {lost}).after(key))
    assert sorted(before) == sorted(replicas)
    assert after == [replica for replica in before if replica != lost]


def test_the_ring_spreads_keys():
    ring, counts = HashRing(range(10)), [0] * 10
    for key in range(20_000):
        counts[next(ring.after(hash_of("key", key)))] += 1
    assert min(counts) > 1_000 and max(counts) < 3_500


def test_a_session_stays_and_requests_without_one_spread():
    placement = SessionHash(seed=5)
    placement.set_replicas(range(9))
    assert len({placement.rank(RoutedRequest(session="mine"), even)[0] for _ in range(50)}) == 1
    assert len({placement.rank(RoutedRequest(), even)[0] for _ in range(200)}) == 9


def test_two_choices_draw_two_different_replicas_and_all_of_them():
    placement = TwoChoices(seed=3)
    placement.set_replicas(range(5))
    drawn = [tuple(placement.draw()) for _ in range(2_000)]
    assert all(first != second for first, second in drawn)
    assert len(set(drawn)) == 20
    assert placement.rank(RoutedRequest(), lambda replica: -replica)[0] >= 1
