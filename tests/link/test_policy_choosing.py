"""How antecedents changed, from their ids alone; and the lane of a chunk that a second pass could serve."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.policy.choosing import Change, Chooser, Trial, drift_of, nearest
from emblema.link.policy.policy import Decision, Lane, Policy, PolicyInputs
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import Knowledge
from emblema.store.keys import ArtifactKey, ArtifactKind
from tests.link.pieces import LAYOUTS, chunk, zero_patch

NAMES = st.lists(st.sampled_from("abcdef"), max_size=6)


@pytest.mark.parametrize(
    ("stored", "now", "change", "gone", "new", "ordered"),
    [
        ("abc", "abc", "same", 0, 0, True),
        ("", "", "same", 0, 0, True),
        ("abc", "cab", "reordered", 0, 0, False),
        ("abc", "bc", "dropped", 1, 0, True),
        ("abc", "cb", "dropped", 1, 0, False),
        ("abc", "", "dropped", 3, 0, True),
        ("aab", "ab", "dropped", 1, 0, True),
        ("abc", "aabc", "duplicated", 0, 1, True),
        ("abc", "abb", "dropped", 1, 1, True),
        ("abc", "abcd", "extended", 0, 1, True),
        ("abc", "dabc", "extended", 0, 1, True),
        ("", "a", "extended", 0, 1, True),
        ("abc", "abd", "replaced", 1, 1, True),
        ("abc", "def", "replaced", 3, 3, True),
    ],
)
def test_changes_by_name(stored: str, now: str, change: str, gone: int, new: int, ordered: bool) -> None:
    found = drift_of(tuple(stored), tuple(now))
    assert (found.change, found.gone, found.new, found.ordered) == (change, gone, new, ordered)


@given(NAMES, NAMES)
def test_a_drift_counts_every_place(stored: list[str], now: list[str]) -> None:
    drift, back = drift_of(stored, now), drift_of(now, stored)
    assert drift.kept + drift.gone == len(stored) and drift.kept + drift.new == len(now)
    assert (back.gone, back.new, back.kept, back.ordered) == (drift.new, drift.gone, drift.kept, drift.ordered)
    assert (drift.change is Change.SAME) == (stored == now)
    assert (drift.change is Change.REORDERED) == (stored != now and Counter(stored) == Counter(now))
    assert (drift.change in (Change.EXTENDED, Change.REPLACED)) == bool(set(now) - set(stored))


@given(NAMES, NAMES, st.floats(0, 1))
def test_a_small_drift_brings_nothing_strange_and_leaves_something(
    stored: list[str], now: list[str], share: float
) -> None:
    drift = drift_of(stored, now)
    if drift.small(share) and stored != now:
        assert set(now) <= set(stored) and now and drift.ordered
        assert max(drift.gone, drift.new) <= share * len(stored)
    assert drift_of(stored, stored).small(0)


def test_the_nearest_patch_comes_first_and_other_pieces_never() -> None:
    keys = [ArtifactKey("m", "x", tuple(names)) for names in ("d", "abcd", "ab", "abc")]
    others = [
        ArtifactKey("m", "x", ("a", "b", "c"), ArtifactKind.ORBIT),
        ArtifactKey("m", "x", kind=ArtifactKind.RESIDUAL, layer=2),
    ]
    found = nearest([*keys, *others], ("a", "b", "c"))
    assert ["".join(key.antecedents) for key, _ in found] == ["abc", "ab", "abcd", "d"]


POLICY = Policy(rank=3)
PAGES = [chunk(index, 6) for index in range(5)]
PROMPT = Prompt.of([TextPart((1, 2)), *map(ChunkPart, PAGES[:4]), TextPart((3,))], 1)
"""Text, four pages and text; what is decided about is page 2."""


def key(page: int, before: Iterable[int], kind: ArtifactKind = ArtifactKind.PATCH) -> ArtifactKey:
    return ArtifactKey("model", PAGES[page].id, tuple(PAGES[index].id for index in before), kind)


def decision(
    *held: ArtifactKey,
    policy: Policy = POLICY,
    trial: Trial | None = None,
    second_pass: bool = True,
    recurs: Callable[[Sequence[str]], bool] = lambda names: False,
    knows_pairs: Callable[[ArtifactKey], bool] = lambda key: True,
    gain: Callable[[int, int], float | None] = lambda rows, patch_bytes: None,
) -> Decision:
    """Return what is decided about page 2, where the store has patches of rank 3 with these keys."""
    stored = {one: zero_patch(6, 3) for one in held}
    inputs = PolicyInputs(policy, recurs=recurs, knows_pairs=knows_pairs, gain=gain)
    known = Knowledge(
        "model",
        LAYOUTS,
        stored.get,
        lambda prompt: None,
        artifact_keys=lambda name: [one for one in stored if one.chunk == name],
        policy_inputs=inputs,
        second_pass=second_pass,
    )
    segment, page = PROMPT.chunk_segments[2]
    return Chooser(PROMPT, known, policy, 0, trial).decide(segment, page)


PAIRS = key(2, [0, 1], ArtifactKind.PAIRS)


def recurring(*pages: int) -> Callable[[Sequence[str]], bool]:
    """What recurs: these pages one after another, and nothing else."""
    return lambda names: list(names) == [PAGES[page].id for page in pages]


def test_a_second_pass_serves_what_is_unknown_wherever_one_can_be_carried_out() -> None:
    assert decision().lane is Lane.QUERY
    assert decision(second_pass=False).lane is Lane.FULL
    assert decision(policy=Policy(rank=3, query_share=0)).lane is Lane.FULL
    assert decision(key(2, [0, 1])).lane is Lane.PATCH, "a patch that is there is more faithful"


def test_pages_that_all_come_again_are_computed_and_read_a_second_time_otherwise() -> None:
    whole, own = recurring(0, 1, 2, 3), recurring(0, 1, 2)
    assert decision(recurs=whole).lane is Lane.FULL
    assert decision(recurs=own).lane is Lane.QUERY, "page 3 is new"
    # Under a policy that keeps patches of what recurs, what is before the page is what counts.
    keeping = Policy(rank=3, recurring=True)
    assert decision(recurs=own, policy=keeping).lane is Lane.FULL
    assert decision(recurs=whole, policy=keeping).lane is Lane.QUERY
    assert decision(recurs=whole, trial=Trial("image", Lane.QUERY)).lane is Lane.QUERY, "it is to be measured"


def test_pairs_serve_a_page_that_was_met_with_each_of_its_antecedents() -> None:
    served = decision(PAIRS)
    assert (served.lane, served.key, served.rank) == (Lane.PAIR, PAIRS, 3)
    assert decision(PAIRS, knows_pairs=lambda key: False).lane is Lane.QUERY
    assert decision().lane is Lane.QUERY, "nothing is stored of them"
    assert decision(PAIRS, policy=Policy(rank=3, pair_share=0)).lane is Lane.QUERY
    assert decision(PAIRS, second_pass=False).lane is Lane.FULL
    asked: list[ArtifactKey] = []
    decision(PAIRS, knows_pairs=lambda key: bool(asked.append(key)))
    assert asked == [PAIRS]


@pytest.mark.parametrize("keeping", [False, True])
def test_pairs_do_not_serve_where_all_pages_come_again(keeping: bool) -> None:
    policy = Policy(rank=3, query_share=0, recurring=keeping)
    assert decision(PAIRS, recurs=recurring(0, 1, 2, 3), policy=policy).lane is Lane.FULL
    assert decision(PAIRS, recurs=recurring(0, 1, 2), policy=policy).lane is Lane.PAIR
    assert decision(PAIRS, recurs=lambda names: True, trial=Trial("image", Lane.PAIR)).lane is Lane.PAIR


def test_a_lane_is_given_up_for_a_measured_loss_and_for_nothing_less() -> None:
    asked: list[tuple[int, int]] = []

    def gain(seconds: float | None) -> Callable[[int, int], float | None]:
        def measured(rows: int, patch_bytes: int) -> float | None:
            asked.append((rows, patch_bytes))
            return seconds

        return measured

    held = key(2, [0, 1])
    assert all(decision(held, gain=gain(seconds)).lane is Lane.PATCH for seconds in (None, 0.0, 0.001))
    assert set(asked) == {(6, zero_patch(6, 3).bytes)}
    lost = decision(held, gain=gain(-0.0025))
    assert lost.lane is Lane.FULL and "2.5 ms quicker" in lost.reason and Lane.PATCH in lost.closed
    assert asked[-1] == (6, 0), "a lane without a patch reads none"


@pytest.mark.parametrize(
    ("before", "lane"),
    [
        ((0, 3), Lane.REFRESH),  # half of the stored antecedents are there still, and one is new
        ((0, 3, 4), Lane.FULL),  # a third
        ((1,), Lane.REFRESH),  # one more than was stored
        ((), Lane.FULL),  # nothing in common
        ((3, 4), Lane.FULL),
        ((1, 0), Lane.REFRESH),
    ],
)
def test_a_related_patch_is_updated_and_another_is_not(before: tuple[int, ...], lane: Lane) -> None:
    found = decision(key(2, before), second_pass=False)
    assert found.lane is lane and found.key == (key(2, before) if lane is Lane.REFRESH else None)
