"""Traffic: a seed decides it, questions can be answered from what is sent, and what was promised recurs or does not."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tasks.episodes import facts
from benchmarks.tasks.world import LANDS, Episode, Legend, Map
from benchmarks.traffic.requests import (
    AFTER,
    FIRST,
    GONE,
    SHOWN,
    EarlierAnswer,
    Picture,
    Traffic,
    TrafficRequest,
    TrafficShape,
    traffic_of,
)
from emblema.errors import PromptError


def shown(request: TrafficRequest) -> list[int]:
    """The pages of a request in order."""
    return [piece.page for turn in request.turns for piece in turn.pieces if isinstance(piece, Picture)]


def question(request: TrafficRequest) -> str:
    text = request.turns[-1].pieces[-1]
    assert isinstance(text, str)
    return text


def answers(traffic: Traffic, request: TrafficRequest) -> set[str]:
    """The answers that the pages of a request give, of whatever is named in its question."""
    known = facts(Episode(0, tuple(traffic.pages[page] for page in shown(request)), ()))
    words = set(question(request).split())
    return {answer for kind in known.values() for subject, (answer, _) in kind.items() if subject in words}


def legends(traffic: Traffic, request: TrafficRequest) -> set[str]:
    """All lands that the legends of a request name."""
    pages = [traffic.pages[page] for page in shown(request)]
    return {LANDS[land] for page in pages if isinstance(page, Legend) for land in page.lands.values()}


SHAPES = st.builds(
    TrafficShape,
    kind=st.sampled_from(["rag", "talks", "agent", "novelty"]),
    requests=st.integers(1, 30),
    side=st.sampled_from([4, 8]),
    pages=st.sampled_from([24, 30, 100]),
    shown=st.integers(4, 16),
    zipf=st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), SHAPES)
def test_what_is_asked_follows_from_what_is_sent(seed: int, shape: TrafficShape) -> None:
    traffic = traffic_of(shape, seed)
    assert traffic_of(shape, seed).requests == traffic.requests
    assert len(traffic.requests) == shape.requests
    assert traffic.inline == (shape.kind != "rag")
    for request in traffic.requests:
        pages = shown(request)
        assert len(pages) <= shape.shown and len(set(pages)) == len(pages)
        if request.where in (GONE, AFTER):
            assert shape.kind == "agent"
            assert (request.answer in legends(traffic, request)) or request.where == GONE
        else:
            assert request.answer in answers(traffic, request)


@pytest.mark.parametrize(("count", "least"), [(2, 20), (16, 60)])
def test_rag_shows_legends_and_maps_in_random_order(count: int, least: int) -> None:
    traffic = traffic_of(TrafficShape("rag", 60, pages=24, shown=count), 5)
    orders = {tuple(shown(request)) for request in traffic.requests}
    assert len(orders) >= least
    for order in orders:
        kinds = Counter(type(traffic.pages[page]) for page in order)
        assert 1 <= kinds[Legend] <= 2 and kinds[Map] == count - kinds[Legend]


def test_legends_slide_and_nothing_else_does() -> None:
    traffic = traffic_of(TrafficShape("rag", 5, slid=True), 3)
    for request in traffic.requests:
        pictures = [piece for piece in request.turns[0].pieces if isinstance(piece, Picture)]
        assert all(picture.slid == isinstance(traffic.pages[picture.page], Legend) for picture in pictures)


def test_popularity_is_zipf_s_and_an_exponent_of_0_makes_all_pages_alike() -> None:
    def most(zipf: float) -> float:
        traffic = traffic_of(TrafficShape("rag", 400, side=4, zipf=zipf), 7)
        maps = Counter(
            page for request in traffic.requests for page in shown(request) if isinstance(traffic.pages[page], Map)
        )
        return max(maps.values()) / (sum(maps.values()) / len(maps))

    assert most(0.0) < 1.5 < 2 < most(1.0)


def test_a_conversation_is_sent_whole_with_what_was_answered_in_it() -> None:
    traffic = traffic_of(TrafficShape("talks", 60, shown=10, users=3, turns=4), 3)
    talks: dict[int, list[tuple[int, TrafficRequest]]] = {}
    for index, request in enumerate(traffic.requests):
        talks.setdefault(request.group, []).append((index, request))
    assert len(talks) > 10
    for own in talks.values():
        assert len(own) <= 4 and own[0][1].where == FIRST
        for (before, earlier), (_, later) in zip(own, own[1:], strict=False):
            said = later.turns[: len(earlier.turns) + 1]
            assert said[:-1] == earlier.turns and said[-1].pieces == (EarlierAnswer(before),)


def test_an_agent_looks_back_begins_again_and_is_asked_about_dropped_legends() -> None:
    requests = traffic_of(TrafficShape("agent", 150, shown=6, resets=20), 11).requests
    wheres = Counter(request.where for request in requests)
    assert set(wheres) == {SHOWN, AFTER, GONE} and wheres[GONE] > 15
    pages = [shown(request) for request in requests]
    assert max(map(len, pages)) == 6
    again = sum(not set(now) & set(before) for before, now in zip(pages, pages[1:], strict=False))
    assert again >= 3
    sightings = [page for before, now in zip([[], *pages], pages, strict=False) for page in set(now) - set(before)]
    assert max(Counter(sightings).values()) > 1


def test_novelty_never_shows_a_page_again() -> None:
    pages = [page for request in traffic_of(TrafficShape("novelty", 9, shown=6), 2).requests for page in shown(request)]
    assert len(pages) == len(set(pages)) == 54


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "rush"}, "unknown traffic 'rush'"),
        ({"requests": 0}, "0 requests"),
        ({"shown": 29}, "29 of 30 pages"),
        ({"zipf": -1.0}, "exponent -1.0"),
    ],
)
def test_a_wrong_shape_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(PromptError, match=told):
        TrafficShape(**({"kind": "rag"} | changes))  # type: ignore[arg-type]
