"""`auto`: for every chunk the cheapest way that keeps the policy's bounds; with nothing known, exact."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, PatchUse, PrefixOrigin, RowRange, RowSource
from emblema.link.policy.choosing import Chooser, Trial
from emblema.link.policy.policy import COMPUTED, REPEATED, Decision, Lane, Policy, PolicyInputs, name_of
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.base import Knowledge, Strategy, computed, lay_out, strategy_name, taken
from emblema.link.strategies.patch import patched
from emblema.link.strategies.query import question_rows, recomputation, unread_rows

NO_GAIN = "a second pass would cost as much as computing its rows"


@dataclass(frozen=True, slots=True)
class Auto:
    """The menu of operating points (Kamera, table 2), chunk by chunk.

    What an earlier prompt began with is taken exactly; then a patch for the chunk's antecedents, an orbit patch for
    their set, a stored patch whose antecedents changed little, or the bare chunk where that was measured to show no
    gap. All else is computed in its place, exact for what is before it, and leaves a patch for the next time. A stored
    patch whose antecedents changed materially is stale and never taken. The plan's `decisions` say why.

    Attributes:
        policy: the bounds; None for the engine's.
        trial: a lane that the canary measures; no exact prefix is taken then.
    """

    policy: Policy | None = None
    trial: Trial | None = None

    @property
    def name(self) -> str:
        return "auto"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        policy = self.policy or knowledge.policy_inputs.policy
        match = None if self.trial else knowledge.find_prefix(prompt)
        exact = 0 if match is None else min(match.rows, prompt.tokens - 1, _first_inexact(prompt))
        chooser = Chooser(prompt, knowledge, policy, exact, self.trial)
        decisions = tuple(chooser.decide(segment, chunk) for segment, chunk in prompt.chunk_segments)
        if self.trial is None and not _query_pays(prompt, decisions, policy, knowledge.policy_inputs):
            decisions = tuple(
                replace(decision, lane=Lane.FULL, key=None, rank=0, reason=NO_GAIN)
                if decision.lane in REPEATED
                else decision
                for decision in decisions
            )
        by_row = {decision.start: decision for decision in decisions}

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            own = by_row[segment.start]
            if own.lane in COMPUTED or own.lane is Lane.PREFIX:
                return computed(prompt, layers, *segment.rows)
            if own.key is None:
                return taken(segment, chunk, layers)
            return patched(segment, chunk, layers, PatchUse(own.key, own.rank))

        slid = {start for start, _ in prompt.slid_rows}
        computed_rows = {decision.start for decision in decisions if decision.lane in (*COMPUTED, Lane.FRESH)}
        read = {decision.start: shares_of(policy)[decision.lane] for decision in decisions if decision.lane in REPEATED}
        # Slid chunks are in the table only while rows of a chunk after them are computed that have to absorb them.
        in_context = bool(slid) and any(row > min(slid) for row in computed_rows.union(read) - slid)
        ranges = lay_out(prompt, layers, chunk_ranges, in_context=in_context)
        if match is not None and exact > 0:
            front = RowRange(0, exact, RowSource.TAKEN, (0, layers), PrefixOrigin(match.entry))
            ranges = (front, *(part.after(exact) for part in ranges if part.stop > exact))
        if not in_context:
            decisions = tuple(decision for decision in decisions if decision.start not in slid)
        name = "auto:prefix" if exact and not decisions else name_of(decisions)
        leaving = prompt.slid_rows if in_context else ()
        candidates = {rows: read[rows[0]] for rows in unread_rows(prompt) if rows[0] in read}
        margin = policy.query_margin
        if margin is None:
            margin = knowledge.policy_inputs.least_margin({own.kind for own in decisions if own.lane in REPEATED})
        again = recomputation(prompt, candidates, margin)
        return LinkPlan(name, prompt.tokens, layers, ranges, leaving=leaving, recomputation=again, decisions=decisions)


def shares_of(policy: Policy) -> dict[Lane, float]:
    """Return the share of a chunk's rows that each lane with a second pass computes again."""
    return {Lane.PAIR: policy.pair_share, Lane.QUERY: policy.query_share}


def _query_pays(prompt: Prompt, decisions: Sequence[Decision], policy: Policy, inputs: PolicyInputs) -> bool:
    """Return whether a second pass pays; not where other chunks are computed first, over rows taken blind."""
    if any(decision.lane is Lane.FRESH for decision in decisions):
        return False
    shares = {decision.start: shares_of(policy)[decision.lane] for decision in decisions if decision.lane in REPEATED}
    rows = [(stop - start, shares[start]) for start, stop in unread_rows(prompt) if start in shares]
    return second_pass_pays(prompt, rows, inputs)


def second_pass_pays(
    prompt: Prompt, rows: Sequence[tuple[int, float]], inputs: PolicyInputs, captured: int = 0
) -> bool:
    """Return whether a second pass is expected to cost a tenth less than computing the rows that it is for.

    Rows that are computed leave an exact prefix. Where prompts are gone on from, a second pass now has them computed
    the next time all the same.

    Args:
        prompt: the prompt.
        rows: for each chunk that it is for, how many rows may be chosen, and the share of them that is.
        inputs: what was measured.
        captured: rows of chunks that have to be prefilled alone before.
    """
    costs, (first, last) = inputs.row_costs(), question_rows(prompt)
    count = sum(number for number, _ in rows)
    again = sum(number * share for number, share in rows) + last - first + costs.forward + costs.taken * count
    alone = captured + costs.forward if captured else 0.0
    later = inputs.unsure() * (prompt.tokens + costs.forward) + inputs.continued(prompt) * count
    return alone + again + later < 0.9 * count


def _first_inexact(prompt: Prompt) -> int:
    """Return the row of the first part that no exact prefix can hold: one that a window wrote, or that has slid."""
    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, ChunkPart) and (part.slid or part.state is RowState.WRITTEN):
            return segment.start
    return prompt.tokens


def bounded(strategy: str | Strategy, policy: Policy | None, keep_under: Policy | None = None) -> str | Strategy:
    """Return a strategy under a request's own policy.

    Args:
        strategy: a strategy, or its name.
        policy: the request's; None for none.
        keep_under: the engine's, for a request whose chunks will come again in this combination: what is unknown is
            computed in full and kept (`Policy.keeping`). None for any other request.

    Raises:
        StrategyError: it is another strategy than `auto`, which alone has a policy.
    """
    if keep_under is not None:
        own = strategy.policy if isinstance(strategy, Auto) else None
        policy = (policy or own or keep_under).keeping()
    if policy is None:
        return strategy
    if isinstance(strategy, Auto):
        return replace(strategy, policy=policy)
    if strategy == "auto":
        return Auto(policy)
    given = "a policy" if keep_under is None else "keep"
    raise StrategyError(f"{given} was given with {strategy_name(strategy)!r}: only auto has bounds to keep")
