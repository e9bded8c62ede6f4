"""What `auto` decides: for every chunk of a prompt the cheapest way that keeps the policy's bounds. No model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.link.lanes import Decision, Lane, LaneVerdict, Trial, measured_lanes
from emblema.link.miss_reasons import MissReason
from emblema.link.plan import PatchUse
from emblema.link.policy.expectations import Costs
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Part, Prompt, Rows, RowState, Segment
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.link.strategies.patch import PatchStrategy
from emblema.link.strategies.query import recomputation, unread_rows

NO_GAIN = "a second pass would cost as much as computing its rows"
READ = (Lane.QUERY, Lane.CHANGED)
"""Lanes whose rows a second pass computes some of again."""
COSTS_MORE = "linking was expected to cost more than it saves"


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is done with a prompt.

    Attributes:
        chunks: the decision for each chunk, in the prompt's order; without slid ones that are not in the table.
        policy: the bounds that they keep.
        prefix: the exact prefix that is taken; None for none.
        exact: its rows.
        in_context: whether slid chunks are in the table, as rows after them are computed that have to absorb them.
        reread: rows that the second pass chooses from; none where there is none.
        least_margin: the margin that the answer has to have; None where its rows are exact, or are to be measured.
    """

    chunks: tuple[Decision, ...]
    policy: Policy
    prefix: PrefixMatch | None
    exact: int
    in_context: bool
    reread: tuple[Rows, ...]
    least_margin: float | None


def decide(
    prompt: Prompt, knowledge: Knowledge, costs: Costs, policy: Policy | None = None, trial: Trial | None = None
) -> Decisions:
    """Decide where the rows of a prompt's chunks come from (Kamera, table 2).

    Each chunk has the first lane that applies and is trusted (`_lane_of`). Then what is not expected to pay is computed
    in its place: a second pass as a whole, and patches as a whole.

    Args:
        prompt: the prompt.
        knowledge: what is stored, and what was measured.
        costs: what linking costs beside computed rows.
        policy: the request's bounds; None for the engine's.
        trial: the one lane that is taken, to measure it: whatever it costs, and without an exact prefix.
    """
    policy = policy or knowledge.policy
    prefix = None if trial else knowledge.find_prefix(prompt)
    exact = 0 if prefix is None else min(prefix.rows, prompt.tokens - 1, _first_inexact(prompt))
    chunks = tuple(_lane_of(segment, prompt, knowledge, policy, exact, trial) for segment, _ in prompt.chunk_segments)
    read = {own.start for own in chunks if own.lane in READ}
    reread = unread_rows(prompt, knowledge.anchor, among=read)
    if trial is None and read and not _second_pass_pays(prompt, chunks, reread, policy, costs, knowledge):
        chunks, read, reread = _computed(chunks, READ, NO_GAIN), set(), ()
    if trial is None and not read and not _patches_pay(prompt, chunks, costs):
        chunks = _computed(chunks, (Lane.PATCH,), COSTS_MORE)
    slid = {start for start, _ in prompt.slid_rows}
    absorbing = {own.start for own in chunks if own.lane in (Lane.FULL, Lane.FRESH, *READ)}
    in_context = bool(slid) and any(row > min(slid) for row in absorbing - slid)
    if not in_context:
        chunks = tuple(own for own in chunks if own.start not in slid)
    lanes, least = measured_lanes(chunks), policy.margin
    if not lanes or trial is not None:
        least = None
    elif least is None:
        least = knowledge.measured.least_margin(lanes, policy)
    return Decisions(chunks, policy, prefix, exact, in_context, reread, least)


def _lane_of(
    segment: Segment, prompt: Prompt, knowledge: Knowledge, policy: Policy, exact: int, trial: Trial | None
) -> Decision:
    """Return the first lane that a chunk has rows for and that is trusted, and why."""
    part = segment.part
    assert isinstance(part, ChunkPart)
    chunk, distrusted = part.chunk, () if part.distrusted is None else (Lane.SURVIVOR,)

    def decided(lane: Lane, reason: str, key: ArtifactKey | None = None, rank: int = 0) -> Decision:
        return Decision(chunk.id, chunk.kind, segment.start, segment.stop, lane, reason, key, rank)

    def missed(lane: Lane, reason: str, miss: MissReason, closed: tuple[Lane, ...] = distrusted) -> Decision:
        return replace(decided(lane, reason), miss=miss, closed=closed)

    if segment.stop <= exact:
        return decided(Lane.PREFIX, "an earlier prompt began with the same")
    if part.state is RowState.WRITTEN and part.kept_after_slide:
        return decided(Lane.SURVIVOR, "its rows were written in this window, after chunks that have changed since")
    if part.state is RowState.WRITTEN:
        return decided(Lane.SETTLED, "its rows were written in this window")
    if part.state is RowState.MISSING:
        unlike = _why_not_changed(part, prompt, knowledge, policy, trial)
        if unlike is None:
            return decided(Lane.CHANGED, "most of it is the same as in a stored picture")
        closed_lanes = (*distrusted, *((Lane.CHANGED,) if unlike else ()))
        why_fresh = MissReason.DISTRUSTED if closed_lanes else MissReason.NEW
        return missed(Lane.FRESH, unlike or "it has no rows that are trusted", why_fresh, closed_lanes)
    if prompt.leads(segment, knowledge.anchor):
        return decided(Lane.LEADING, "it was captured after just what is before it")
    if chunk.id in knowledge.lacking:
        return missed(Lane.FULL, "its rows are not stored yet", MissReason.NOT_STORED, ())
    rank, key = rank_of(chunk, knowledge, policy), ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment))
    closed = {}
    if rank > 0 and knowledge.holds(PatchUse(key, rank), chunk.tokens):
        verdict = _verdict(chunk.kind, Lane.PATCH, knowledge, policy, trial)
        if verdict.open:
            return decided(Lane.PATCH, f"these antecedents are known; {verdict.reason}", key, rank)
        closed[Lane.PATCH] = verdict.reason
    if _may_read(prompt, knowledge, policy, trial):
        verdict = _verdict(chunk.kind, Lane.QUERY, knowledge, policy, trial)
        if verdict.open:
            why = "these antecedents are not known, and what the question attends is computed"
            return decided(Lane.QUERY, f"{why}; {verdict.reason}")
        closed[Lane.QUERY] = verdict.reason
    why = "its antecedents are not known" if rank > 0 else "it is too short for a patch"
    reasons = (f"{lane} not taken: {reason}" for lane, reason in closed.items())
    miss = MissReason.DISTRUSTED if closed else MissReason.NEW_ORDER if rank > 0 else MissReason.SHORT
    return missed(Lane.FULL, "; ".join([why, *reasons]), miss, (*closed, *distrusted))


def _why_not_changed(
    part: ChunkPart, prompt: Prompt, knowledge: Knowledge, policy: Policy, trial: Trial | None = None
) -> str | None:
    """Return why a stored picture's rows are not taken where a new one is the same, or None where they are.

    Empty where there is no such picture, or more differs than the policy allows.
    """
    if part.changed is None or part.changed.share > policy.changed or not _may_read(prompt, knowledge, policy, trial):
        return ""
    verdict = _verdict(part.chunk.kind, Lane.CHANGED, knowledge, policy, trial)
    return None if verdict.open else f"{Lane.CHANGED} not taken: {verdict.reason}"


def worth_capturing(
    prompt: Prompt, knowledge: Knowledge, costs: Costs, policy: Policy, exact: int = 0
) -> dict[str, Chunk]:
    """Return chunks without stored rows, by id, to be prefilled alone before the prompt is linked.

    A second pass is expected to pay then, over them and the others, which is not possible before.

    Args:
        prompt: the prompt.
        knowledge: what is stored, and what was measured.
        costs: what linking costs, and that they are prefilled.
        policy: the bounds.
        exact: rows at the front that an exact prefix holds.
    """
    parts = [segment.part for segment in prompt.segments if segment.start >= exact]
    new = {
        part.chunk.id: part.chunk
        for part in parts
        if isinstance(part, ChunkPart)
        and part.name
        and (part.state is RowState.MISSING or part.chunk.id in knowledge.lacking)
        and _why_not_changed(part, prompt, knowledge, policy) is not None
    }
    if not new or not _may_read(prompt, knowledge, policy):
        return {}
    if not all(knowledge.measured.verdict(chunk.kind, Lane.QUERY, policy).open for chunk in new.values()):
        return {}
    rows = sum(stop - start for start, stop in unread_rows(prompt, knowledge.anchor, new) if start >= exact)
    chunks = [part for part in parts if isinstance(part, ChunkPart) and not part.slid and part.chunk.id not in new]
    known = sum(part.tokens for part in chunks if part.state is RowState.CANONICAL or part.changed is not None)
    return new if costs.capturing_pays(prompt, rows, policy.query_share, new.values(), known) else {}


def rank_of(chunk: Chunk, knowledge: Knowledge, policy: Policy) -> int:
    """Return the rank of a chunk's patches: the policy's, the model's plateau, or what the share of its bytes holds.

    0 where not even rank 1 fits the share.
    """
    rank = policy.rank or knowledge.measured.plateau
    strategy = PatchStrategy(share=policy.share) if rank is None else PatchStrategy(rank=rank)
    return strategy.rank_for(chunk.tokens, knowledge)


def _may_read(prompt: Prompt, knowledge: Knowledge, policy: Policy, trial: Trial | None = None) -> bool:
    """Return whether chunks may be served by a second pass.

    Where all of the prompt's chunks come again in their order, they are computed, and leave an exact prefix.
    """
    if policy.query_share == 0 or not knowledge.second_pass:
        return False
    return trial is not None or not knowledge.recurs([part.name for part in prompt.chunk_parts])


def _verdict(kind: str, lane: Lane, knowledge: Knowledge, policy: Policy, trial: Trial | None) -> LaneVerdict:
    """Return whether a lane keeps the bounds, or is the one to be measured."""
    if trial is not None:
        return LaneVerdict(trial == Trial(kind, lane), "this lane is to be measured")
    return knowledge.measured.verdict(kind, lane, policy)


def _second_pass_pays(
    prompt: Prompt,
    chunks: Sequence[Decision],
    reread: Sequence[Rows],
    policy: Policy,
    costs: Costs,
    knowledge: Knowledge,
) -> bool:
    """Return whether a second pass pays; not where other chunks are computed first, over rows taken blind."""
    if knowledge.lacking or any(own.lane is Lane.FRESH for own in chunks):
        return False
    again = recomputation(prompt, tuple(reread), policy.query_share, knowledge.layouts)
    rows, share = sum(stop - start for start, stop in reread), policy.query_share
    changed = {own.start for own in chunks if own.lane is Lane.CHANGED}
    if changed:
        parts = (segment.part for segment in prompt.segments if segment.start in changed)
        same = sum(_same_rows(part) for part in parts)
        read = unread_rows(prompt, knowledge.anchor, among=changed)
        rows += same - sum(stop - start for start, stop in read)
    if changed or (again is not None and again.whole):
        # Chunks that are computed whole may be more than the share, and of others less may be chosen.
        share = 0.0 if again is None else again.budget / rows
    return costs.second_pass_pays(prompt, rows, share)


def _same_rows(part: Part) -> int:
    """Return how many rows of a part are the same as in a stored picture."""
    changed = part.changed if isinstance(part, ChunkPart) else None
    return 0 if changed is None else sum(stop - start for start, stop in changed.same_rows)


def _patches_pay(prompt: Prompt, chunks: Sequence[Decision], costs: Costs) -> bool:
    """Return whether patched rows pay; with a chunk that leads, it is taken in any case."""
    if any(own.lane is Lane.LEADING for own in chunks):
        return True
    patched = [(own.start, own.stop) for own in chunks if own.lane is Lane.PATCH]
    return not patched or costs.taking_pays(prompt, patched)


def _computed(chunks: Sequence[Decision], lanes: Collection[Lane], reason: str) -> tuple[Decision, ...]:
    """Return the decisions with the chunks of some lanes computed in their place."""

    def computed(own: Decision) -> Decision:
        if own.lane is Lane.CHANGED:
            # It has no rows of its own: it is as any new picture.
            return replace(own, lane=Lane.FRESH, reason=reason, miss=MissReason.NEW)
        return Decision(own.chunk, own.kind, own.start, own.stop, Lane.FULL, reason, miss=MissReason.COSTS)

    return tuple(computed(own) if own.lane in lanes else own for own in chunks)


def _first_inexact(prompt: Prompt) -> int:
    """Return the row of the first part that no exact prefix can hold: one that a window wrote, or that has slid."""
    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, ChunkPart) and (part.slid or part.state is RowState.WRITTEN):
            return segment.start
    return prompt.tokens
