"""Misses: whatever `auto` decides, media of which no row is taken have one reason each, and no others have one."""

from emblema.link.lanes import Lane
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.misses import find_misses
from emblema.link.plan import RowSource
from emblema.link.strategies.auto import Auto
from tests.link.random_prompts import cases
from tests.link.test_decisions import knowledge_of


def test_each_chunk_that_is_computed_has_a_reason_and_no_other_has_one() -> None:
    reasons: set[MissReason] = set()
    for case in cases(7, 600):
        plan = Auto(case.own, case.trial).plan(case.prompt, knowledge_of(case))
        taken = {row for part in plan.ranges if part.source is RowSource.TAKEN for row in range(part.start, part.stop)}
        shown = [segment for segment, _ in case.prompt.chunk_segments]
        slid = {start for start, _ in case.prompt.slid_rows}
        wanted = [
            (number, each.stop - each.start)
            for number, each in enumerate(shown)
            if each.start not in slid and not taken & {*range(each.start, each.stop)}
        ]
        found = find_misses(case.prompt, plan)
        assert [(miss.part, miss.rows) for miss in found] == wanted
        computed = {Lane.FULL, Lane.FRESH}
        assert all((own.miss is not None) == (own.lane in computed) for own in plan.decisions)
        reasons.update(miss.reason for miss in found)
    assert reasons >= {MissReason.NEW, MissReason.NEW_ORDER, MissReason.COSTS, MissReason.DISTRUSTED}


def test_a_reason_of_the_whole_comes_before_those_of_chunks() -> None:
    case = next(case for case in cases(7, 600) if case.prompt.chunk_segments and not case.prompt.slid_rows)
    plan = Auto(case.own, case.trial).plan(case.prompt, knowledge_of(case))
    first = case.prompt.chunk_segments[0][1].id
    nothing = type(plan)("full", plan.rows, plan.layers, ())
    known = find_misses(case.prompt, nothing, known={first: Cause(MissReason.NOT_STORED)})
    assert known[0].reason is MissReason.NOT_STORED
    whole = find_misses(case.prompt, nothing, Cause(MissReason.UNSURE), {first: Cause(MissReason.NOT_STORED)})
    assert {miss.reason for miss in whole} == {MissReason.UNSURE} and len(whole) == len(case.prompt.chunk_segments)
