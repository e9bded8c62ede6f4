"""How `auto` chooses a chunk's lane: from what the store has for it, what was measured, and the bounds. No model.

How far a patch's antecedents are from the present ones is known exactly, from ids (Kamera, appendix D). Nothing here
looks at embeddings: as a gate the paper found their distance to reuse falsely in 24 to 47 % of the cases.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from emblema.kv.chunk import Chunk
from emblema.link.plan import PatchUse
from emblema.link.policy.policy import Decision, Lane, LaneVerdict, Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.patch import PatchStrategy
from emblema.store.keys import ArtifactKey, ArtifactKind, orbit_key

EXCESS = 1
"""New antecedents beyond the stored ones that a refresh absorbs; with more the paper rebuilds (appendix D)."""


class Change(StrEnum):
    """What happened to the antecedents since a patch was formed.

    `dropped` and `duplicated` bring nothing new: some are gone, or occur more often; both at once are `dropped`.
    `extended` kept all and added new ones; `replaced` lost some and added new ones.
    """

    SAME = "same"
    REORDERED = "reordered"
    DROPPED = "dropped"
    DUPLICATED = "duplicated"
    EXTENDED = "extended"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Drift:
    """How antecedents changed since a patch was formed.

    Attributes:
        change: in a word.
        gone: how many of the stored antecedents are not there now, duplicates counted.
        new: how many of the present ones were not there, duplicates counted.
        kept: how many are in both.
        ordered: whether those in both are in the same order.
    """

    change: Change
    gone: int
    new: int
    kept: int
    ordered: bool

    def small(self, share: float) -> bool:
        """Return whether a stored patch can be used: same order, no new chunk, at most a share of them changed."""
        if self.change is Change.SAME:
            return True
        if self.change not in (Change.DROPPED, Change.DUPLICATED) or not self.ordered or self.kept == 0:
            return False
        return max(self.gone, self.new) <= share * (self.kept + self.gone)

    def __str__(self) -> str:
        counts = [f"{self.gone} gone"] if self.gone else []
        counts += [f"{self.new} new"] if self.new else []
        return f"{self.change}: {', '.join(counts)}" if counts else str(self.change)


def drift_of(stored: Sequence[str], now: Sequence[str]) -> Drift:
    """Return the drift from the antecedents that a patch was formed after to those that are there now."""
    before, after = Counter(stored), Counter(now)
    both = before & after
    gone, new, kept = (before - after).total(), (after - before).total(), both.total()
    ordered = _cut(stored, both) == _cut(now, both)
    lost, strange = before.keys() - after.keys(), after.keys() - before.keys()
    if tuple(stored) == tuple(now):
        change = Change.SAME
    elif strange:
        change = Change.REPLACED if gone else Change.EXTENDED
    elif lost or gone:
        change = Change.DROPPED
    elif new:
        change = Change.DUPLICATED
    else:
        change = Change.REORDERED
    return Drift(change, gone, new, kept, ordered)


def nearest(keys: Iterable[ArtifactKey], now: Sequence[str]) -> list[tuple[ArtifactKey, Drift]]:
    """Return the plain patches of one chunk with their drift, the nearest antecedents first."""
    drifts = [(key, drift_of(key.antecedents, now)) for key in keys if key.kind is ArtifactKind.PATCH]
    return sorted(drifts, key=lambda pair: (pair[1].gone + pair[1].new, not pair[1].ordered, pair[0].antecedents))


def _cut(names: Sequence[str], both: Counter[str]) -> list[str]:
    """Return the names that are in both, in their order; of a name that occurs more often here the first ones."""
    left = Counter(both)
    kept = []
    for name in names:
        if left[name] > 0:
            left[name] -= 1
            kept.append(name)
    return kept


@dataclass(frozen=True, slots=True)
class Trial:
    """A lane to measure for one kind of content: it is taken, open or closed, and no other lane is."""

    kind: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Chooser:
    """Decides about the chunks of one prompt.

    Attributes:
        prompt: the prompt.
        knowledge: what the store has and what was measured.
        policy: the bounds.
        exact: rows at the front that an exact prefix holds.
        trial: a lane to be measured.
    """

    prompt: Prompt
    knowledge: Knowledge
    policy: Policy
    exact: int
    trial: Trial | None = None

    def decide(self, segment: Segment, chunk: Chunk) -> Decision:
        """Return the lane of a chunk and why."""

        def decided(lane: Lane, reason: str, key: ArtifactKey | None = None, rank: int = 0) -> Decision:
            return Decision(chunk.id, chunk.kind, segment.start, segment.stop, lane, reason, key, rank)

        part = segment.part if isinstance(segment.part, ChunkPart) else ChunkPart(chunk)
        distrusted = () if part.distrusted is None else (Lane.SURVIVOR,)
        if segment.stop <= self.exact:
            return decided(Lane.PREFIX, "an earlier prompt began with the same")
        if part.state is RowState.WRITTEN and part.survivor:
            return decided(Lane.SURVIVOR, "its rows were written in this window, after chunks that have changed since")
        if part.state is RowState.WRITTEN:
            return decided(Lane.SETTLED, "its rows were written in this window")
        if part.state is RowState.MISSING:
            return replace(decided(Lane.FRESH, "it has no rows that are trusted"), closed=distrusted)
        if segment.start == 0:
            return decided(Lane.LEADING, "nothing is before it")
        closed: dict[Lane, str] = {}
        for lane, why, key, rank in self._candidates(segment, chunk):
            verdict = self._verdict(chunk, lane, key)
            if verdict.open:
                return decided(lane, f"{why}; {verdict.reason}", key, rank)
            closed[lane] = f"{lane} not taken: {verdict.reason}"
        lane, why, key = self._computed(segment, chunk)
        return replace(decided(lane, "; ".join([why, *closed.values()]), key), closed=(*closed, *distrusted))

    def _candidates(self, segment: Segment, chunk: Chunk) -> Iterator[tuple[Lane, str, ArtifactKey | None, int]]:
        """Yield what could be taken, the most faithful first; stale patches are left out."""
        model, before = self.knowledge.model, self.prompt.antecedents(segment)
        rank = rank_of(chunk, self.knowledge, self.policy)
        if rank > 0:
            key = ArtifactKey(model, chunk.id, before)
            if self.knowledge.holds(PatchUse(key, rank)):
                yield Lane.PATCH, "these antecedents are known", key, rank
            elif len(before) > 1 and len(set(before)) == len(before):
                key = orbit_key(model, chunk.id, before)
                if self.knowledge.holds(PatchUse(key, rank)):
                    yield Lane.ORBIT, "this set of antecedents is known", key, rank
            for key, drift in self._stored(chunk, before, self.policy.drift):
                changed_little = drift.change is not Change.SAME and drift.small(self.policy.drift)
                if changed_little and self.knowledge.holds(PatchUse(key, rank)):
                    yield Lane.DRIFT, str(drift), key, rank
                    break
        yield Lane.BARE, f"{chunk.kind} shows no gap on this model", None, 0
        pairs = ArtifactKey(model, chunk.id, before, ArtifactKind.PAIRS)
        if self._may_pair(pairs):
            patch = self.knowledge.find_patch(pairs)
            if patch is not None:
                yield Lane.PAIR, "it was met with each of its antecedents", pairs, patch.rank
        if self._may_query(chunk, before):
            yield Lane.QUERY, "these antecedents are not known, and what the question attends is computed", None, 0

    def _may_pair(self, pairs: ArtifactKey) -> bool:
        """Whether a chunk may be served by what it is known to take from single chunks, and a second pass.

        Where all of the prompt's chunks come again in their order, they are computed, and leave an exact prefix.
        """
        if self.policy.pair_share == 0 or not self.knowledge.second_pass:
            return False
        inputs = self.knowledge.policy_inputs
        names = [part.name for part in self.prompt.chunk_parts]
        return inputs.knows_pairs(pairs) and (self.trial is not None or not inputs.recurs(names))

    def _may_query(self, chunk: Chunk, before: tuple[str, ...]) -> bool:
        """Whether a chunk may be served by a second pass.

        One that comes again after the same antecedents is computed, so that it leaves a prefix and a patch; under a
        policy that keeps no patches of these, only where all of the prompt's chunks come again.
        """
        if self.policy.query_share == 0 or not self.knowledge.second_pass:
            return False
        every = [part.name for part in self.prompt.chunk_parts]
        again = (*before, chunk.id) if self.policy.recurring else every
        return self.trial is not None or not self.knowledge.policy_inputs.recurs(again)

    def _computed(self, segment: Segment, chunk: Chunk) -> tuple[Lane, str, ArtifactKey | None]:
        if rank_of(chunk, self.knowledge, self.policy) == 0:
            return Lane.FULL, "it is too short for a patch", None
        before = self.prompt.antecedents(segment)
        for key, drift in self._stored(chunk, before):
            related = 2 * drift.kept >= len(key.antecedents) and drift.kept > 0 and drift.new - drift.gone <= EXCESS
            if drift.change is not Change.SAME and related and self.knowledge.find_patch(key) is not None:
                return Lane.REFRESH, f"its antecedents changed ({drift})", key
        return Lane.FULL, "its antecedents are not known", None

    def _stored(
        self, chunk: Chunk, before: tuple[str, ...], share: float | None = None
    ) -> list[tuple[ArtifactKey, Drift]]:
        """Return the chunk's plain patches of this model, the nearest antecedents first.

        With a share, those are left out whose drift cannot be small by it, as they have too many or too few.
        """
        keys = [key for key in self.knowledge.artifact_keys(chunk.id) if key.model == self.knowledge.model]
        if share is not None:
            counts = [(key, len(key.antecedents)) for key in keys]
            keys = [key for key, count in counts if abs(count - len(before)) <= share * count]
        return nearest(keys, before)

    def _verdict(self, chunk: Chunk, lane: Lane, key: ArtifactKey | None) -> LaneVerdict:
        """Return whether the lane keeps the bounds, and computing the rows instead would not be quicker as well."""
        if self.trial is not None:
            return LaneVerdict(self.trial == Trial(chunk.kind, lane), "this lane is to be measured")
        inputs = self.knowledge.policy_inputs
        verdict = inputs.verdict(chunk.kind, lane, self.policy)
        if not verdict.open:
            return verdict
        patch = None if key is None else self.knowledge.find_patch(key)
        gain = inputs.gain(chunk.tokens, 0 if patch is None else patch.bytes)
        if gain is not None and gain < 0:
            return LaneVerdict(False, f"computing its rows was measured to be {-gain * 1e3:.1f} ms quicker")
        return verdict


def rank_of(chunk: Chunk, knowledge: Knowledge, policy: Policy) -> int:
    """Return the rank of a chunk's patches: the policy's, the model's plateau, or what the share of its bytes holds.

    0 where not even rank 1 fits the share.
    """
    rank = policy.rank or knowledge.policy_inputs.plateau
    strategy = PatchStrategy(share=policy.share) if rank is None else PatchStrategy(rank=rank)
    return strategy.rank_for(chunk.tokens, knowledge)
