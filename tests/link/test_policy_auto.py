"""Plans of `auto`, without a model: each row of the menu, and what is never chosen."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import EmblemaError, StrategyError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.link.lanes import Decision, Lane, LaneVerdict, Trial
from emblema.link.plan import LinkPlan
from emblema.link.policy.decide import decide
from emblema.link.policy.expectations import RowCosts
from emblema.link.policy.fidelity import MeasuredLanes
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, TextPart
from emblema.link.strategies.auto import Auto, bounded
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.link.strategies.full import Full
from tests.link.pieces import LAYERS, LAYOUTS, chunk, knowledges, prompts, zero_patch

PAGES = [chunk(index, 6) for index in range(6)]
POLICY = Policy(rank=3)


def prompt_of(indices: Iterable[int], *, slid: int = 0) -> Prompt:
    """Text, then pages, then text; the first `slid` pages have slid."""
    pages = [ChunkPart(PAGES[index], slid=place < slid) for place, index in enumerate(indices)]
    return Prompt.of([TextPart((1, 2)), *pages, TextPart((3, 4))], 1)


def key(page: int, before: Iterable[int]) -> ArtifactKey:
    return ArtifactKey("model", PAGES[page].id, tuple(PAGES[index].id for index in before))


def known(
    keys: Iterable[ArtifactKey], *, rank: int = 3, prefix: int = 0, measured: MeasuredLanes | None = None
) -> Knowledge:
    """A store that has patches with these keys."""
    held = {one: zero_patch(6, rank) for one in keys}
    return Knowledge(
        "model",
        LAYOUTS,
        held.get,
        lambda prompt: PrefixMatch("kept", prefix) if prefix else None,
        policy=POLICY,
        measured=measured or MeasuredLanes(),
    )


def lanes(plan: LinkPlan) -> list[str]:
    plan.validate()
    return [one.lane for one in plan.decisions]


def last(plan: LinkPlan) -> Decision:
    plan.validate()
    return plan.decisions[-1]


def test_with_nothing_known_every_row_is_computed() -> None:
    plan = Auto().plan(prompt_of([0, 1, 2]), known([]))
    assert lanes(plan) == ["full"] * 3 and plan.strategy == "auto:full"
    assert plan.exact and not plan.forming and (plan.sources() == 0).all()


def test_known_antecedents_take_their_patch_and_a_thinner_patch_is_none() -> None:
    keys = [key(0, []), key(1, [0]), key(2, [0, 1])]
    plan = Auto().plan(prompt_of([0, 1, 2]), known(keys))
    assert lanes(plan) == ["patch"] * 3 and plan.strategy == "auto:patch" and not plan.forming
    assert [part.patch.key for part in plan.ranges if part.patch is not None] == keys
    assert lanes(Auto().plan(prompt_of([0, 1, 2]), known(keys, rank=2))) == ["full"] * 3


def test_each_chunk_is_chosen_for_alone() -> None:
    plan = Auto().plan(prompt_of([0, 1, 2]), known([key(0, []), key(2, [0, 1])]))
    assert lanes(plan) == ["patch", "full", "patch"] and plan.strategy == "auto:patch+full"
    codes = plan.sources()
    assert (codes[:, 2:8] == 2).all() and (codes[:, 8:14] == 0).all() and (codes[:, 14:20] == 2).all()


def test_an_exact_prefix_comes_before_all_and_the_rest_is_chosen_for() -> None:
    keys = [key(0, []), key(1, [0]), key(2, [0, 1])]
    plan = Auto().plan(prompt_of([0, 1, 2]), known(keys, prefix=14))
    assert lanes(plan) == ["prefix", "prefix", "patch"] and plan.strategy == "auto:prefix+patch"
    assert plan.ranges[0].stop == 14 and (plan.sources()[:, 14:20] == 2).all()
    whole = Auto().plan(prompt_of([0, 1, 2]), known([], prefix=22))
    assert lanes(whole) == ["prefix"] * 3 and whole.exact and (whole.sources() == 0).sum() == LAYERS


def test_a_closed_lane_is_not_taken_and_the_reason_says_so() -> None:
    shut = MeasuredLanes(lambda kind, lane, policy: LaneVerdict(False, "measured 0.3 nats"))
    plan = Auto().plan(prompt_of([0, 1]), known([key(0, []), key(1, [0])], measured=shut))
    assert lanes(plan) == ["full"] * 2 and "patch not taken: measured 0.3 nats" in str(plan.decisions[0])


@pytest.mark.parametrize("policy", [Policy(max_kl=0, rank=3), Policy(alpha=0, rank=3)])
def test_a_bound_of_nothing_takes_exact_rows_only(policy: Policy) -> None:
    keys = [key(0, []), key(1, [0])]
    assert lanes(Auto(policy).plan(prompt_of([0, 1]), known(keys))) == ["full"] * 2
    assert lanes(Auto(policy).plan(prompt_of([0, 1]), known(keys, prefix=8))) == ["prefix", "full"]


def test_a_requests_policy_is_its_own() -> None:
    assert bounded("auto", POLICY) == Auto(POLICY) and bounded(Auto(), POLICY) == Auto(POLICY)
    assert bounded("blind", None) == "blind"
    for strategy in ("blind", Full()):
        with pytest.raises(StrategyError, match="only auto"):
            bounded(strategy, POLICY)
    for wrong in ({"max_kl": -1}, {"alpha": 1.5}, {"delta": 0}, {"canary": 2}, {"rank": 0}, {"rank": 1.5}, {"share": 0},
                  {"max_kl": float("nan")}, {"canary": None}, {"margin": True}, {"forming_seconds": "9"}):  # fmt: skip
        with pytest.raises(EmblemaError, match="policy"):
            Policy(**wrong)


def test_slid_chunks_are_there_only_while_something_absorbs_them() -> None:
    patched = Auto().plan(prompt_of([0, 1], slid=1), known([key(1, [0])]))
    assert lanes(patched) == ["patch"] and not patched.leaving and (patched.sources()[:, 2:8] == 3).all()
    unknown = Auto().plan(prompt_of([0, 1], slid=1), known([key(0, [])]))
    assert lanes(unknown) == ["patch", "full"] and unknown.leaving == ((2, 8),)
    assert (unknown.sources()[:, 2:8] == 2).all() and (unknown.sources()[:, 8:14] == 0).all()
    assert all(part.hidden == ((2, 8),) for part in unknown.ranges if part.start >= 14)


def test_rows_of_a_window_are_as_they_are() -> None:
    states = (RowState.WRITTEN, RowState.MISSING, RowState.CANONICAL)
    chunks = [ChunkPart(page, state=state) for page, state in zip(PAGES, states, strict=False)]
    parts: list[Part] = [TextPart((1,)), *chunks, TextPart((2,))]
    plan = Auto().plan(Prompt.of(parts, 1), known([key(2, [0, 1])], prefix=13))
    assert lanes(plan) == ["settled", "fresh", "patch"], "an exact prefix holds other rows than a window's"
    assert plan.ranges[0].stop == 1 and plan.strategy == "auto:settled+patch"


def test_a_trial_takes_one_lane_of_one_kind_and_no_other() -> None:
    keys = [key(0, []), key(1, [0])]
    shut = MeasuredLanes(lambda kind, lane, policy: LaneVerdict(False, "measured 0.3 nats"))
    tried = Auto(trial=Trial("image", Lane.PATCH)).plan(prompt_of([0, 1]), known(keys, prefix=14, measured=shut))
    assert lanes(tried) == ["patch"] * 2 and tried.least_margin is None, "an answer of any margin is compared"
    assert lanes(Auto(trial=Trial("text", Lane.PATCH)).plan(prompt_of([0, 1]), known(keys))) == ["full"] * 2


def test_an_answer_over_taken_rows_has_to_be_sure() -> None:
    keys, asked = [key(0, []), key(1, [0])], []

    def least(lanes: Collection[tuple[str, Lane]], policy: Policy) -> float:
        asked.append(set(lanes))
        return 0.35

    stored = known(keys, measured=MeasuredLanes(least_margin=least))
    assert Auto().plan(prompt_of([0, 1]), stored).least_margin == 0.35 and asked == [{("image", Lane.PATCH)}]
    assert Auto(Policy(rank=3, margin=0.9)).plan(prompt_of([0, 1]), stored).least_margin == 0.9
    assert Auto().plan(prompt_of([2, 3]), stored).least_margin is None, "all of it is computed"


@given(
    stored=st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=6),
    now=st.lists(st.integers(0, 4), max_size=4),
)
def test_a_stale_patch_is_never_chosen(stored: list[list[int]], now: list[int]) -> None:
    keys = [key(5, before) for before in stored]
    plan = Auto(POLICY).plan(prompt_of([*now, 5]), known(keys))
    plan.validate()
    names = tuple(PAGES[index].id for index in now)
    for one in plan.decisions:
        if one.chunk != PAGES[5].id:
            continue
        if one.lane is Lane.PATCH:
            assert one.key is not None and one.key.antecedents == names
        else:
            assert one.lane is Lane.FULL and key(5, now) not in keys
    used = {part.patch.key for part in plan.ranges if part.patch is not None}
    assert used == {one.key for one in plan.decisions if one.key is not None}


@given(prompt=prompts(), store=knowledges())
def test_every_chunk_has_a_reason(prompt: Prompt, store: Knowledge) -> None:
    plan = Auto().plan(prompt, store)
    plan.validate()
    starts = [segment.start for segment, _ in prompt.chunk_segments]
    assert [one.start for one in plan.decisions if one.start in starts] == [one.start for one in plan.decisions]
    assert all(one.reason for one in plan.decisions)
    assert plan.after(plan.rows - 1).decisions == tuple(one for one in plan.decisions if one.start >= plan.rows - 1)


def test_a_chunk_too_short_for_a_patch_is_computed() -> None:
    tiny: Chunk = chunk(9, 1)
    prompt = Prompt.of([TextPart((1,)), ChunkPart(tiny), TextPart((2,))], 1)
    decision = last(Auto(Policy(share=0.01)).plan(prompt, known([])))
    assert decision.lane is Lane.FULL and "too short" in decision.reason


def test_a_second_pass_pays_if_it_saves_a_tenth() -> None:
    """1,000 rows are to be computed, or taken and a tenth of them read again with 20 rows of the question."""
    prompt = Prompt.of([TextPart((1,) * 10), ChunkPart(chunk(1, 1000)), TextPart((2,) * 20)], 1)

    def pays(unsure: float, alone: int = 0) -> bool:
        return RowCosts(30, 0.1, unsure=lambda prompt: unsure).second_pass_pays(prompt, 1000, 0.1, alone)

    # 100 rows, the question, a forward and 1,000 taken rows are 250; all 1,030 rows and a forward follow if unsure.
    assert pays(649 / 1060) and not pays(650.5 / 1060)
    # What has to be prefilled alone before takes a forward too.
    assert pays(0.5, alone=89) and not pays(0.5, alone=90)
    assert pays(619.5 / 1060, alone=0) and not pays(619.5 / 1060, alone=1)


def test_a_second_pass_pays_less_where_prompts_are_gone_on_from() -> None:
    """Of 1,000 rows 250 are computed now, and all of them the next time if there is one: a prefix would be left."""
    prompt = Prompt.of([TextPart((1,) * 10), ChunkPart(chunk(1, 1000)), TextPart((2,) * 20)], 1)

    def pays(continued: float) -> bool:
        return RowCosts(30, 0.1, lambda prompt: 0.0, lambda prompt: continued).second_pass_pays(prompt, 1000, 0.1)

    assert pays(0) and pays(0.649) and not pays(0.651)


FREE = RowCosts(-1000.0, 0.0, lambda prompt: 0.0)
"""A second pass pays even over few rows."""


def lane_of_page_2(
    *held: ArtifactKey,
    policy: Policy = POLICY,
    trial: Trial | None = None,
    second_pass: bool = True,
    recurs: Callable[[Sequence[str]], bool] = lambda names: False,
) -> Lane:
    """What is decided about page 2 of four, where the store has patches with these keys."""
    stored = replace(known(held), policy=policy, recurs=recurs, second_pass=second_pass)
    return decide(prompt_of([0, 1, 2, 3]), stored, FREE, trial=trial).chunks[2].lane


def test_a_second_pass_serves_what_is_unknown_wherever_one_can_be_carried_out() -> None:
    assert lane_of_page_2() is Lane.QUERY
    assert lane_of_page_2(second_pass=False) is Lane.FULL
    assert lane_of_page_2(policy=Policy(rank=3, query_share=0)) is Lane.FULL
    assert lane_of_page_2(key(2, [0, 1])) is Lane.PATCH, "a patch that is there is more faithful"


def test_pages_that_all_come_again_are_computed_and_read_a_second_time_otherwise() -> None:
    def recurring(*pages: int) -> Callable[[Sequence[str]], bool]:
        return lambda names: list(names) == [PAGES[page].id for page in pages]

    whole = recurring(0, 1, 2, 3)
    assert lane_of_page_2(recurs=whole) is Lane.FULL
    assert lane_of_page_2(recurs=recurring(0, 1, 2)) is Lane.QUERY, "page 3 is new"
    assert lane_of_page_2(recurs=whole, trial=Trial("image", Lane.QUERY)) is Lane.QUERY, "it is to be measured"
