"""How `auto` chooses a chunk's lane: from what the store has for it, what was measured, and the bounds. No model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch
from emblema.link.orderings import orbit_key
from emblema.link.policy.decisions import Decision, Lane
from emblema.link.policy.drift import Change, Drift, nearest
from emblema.link.policy.judgement import Verdict
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.patch import PatchStrategy
from emblema.store.keys import PatchKey

EXCESS = 1
"""New antecedents beyond the stored ones that a refresh absorbs; with more the paper rebuilds (appendix D)."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One lane to be taken for one kind of content whatever its standing, and no other: to measure it."""

    kind: str
    lane: Lane


class Chooser:
    """Decisions about the chunks of one prompt.

    Args:
        prompt: the prompt.
        knowledge: what the store has and what was measured.
        policy: the bounds.
        exact: rows at the front that an exact prefix holds.
        trial: a lane to be measured.
    """

    def __init__(
        self, prompt: Prompt, knowledge: Knowledge, policy: Policy, exact: int, trial: Trial | None = None
    ) -> None:
        self.prompt, self.knowledge, self.policy, self.exact, self.trial = prompt, knowledge, policy, exact, trial
        self.judgement = knowledge.judgement

    def decide(self, segment: Segment, chunk: Chunk) -> Decision:
        """The lane of a chunk and why."""

        def decided(lane: Lane, reason: str, key: PatchKey | None = None, rank: int = 0) -> Decision:
            return Decision(chunk.id, chunk.kind, segment.start, segment.stop, lane, reason, key, rank)

        part = segment.part if isinstance(segment.part, ChunkPart) else ChunkPart(chunk)
        distrusted = () if part.distrusted is None else (Lane.SURVIVOR,)
        if segment.stop <= self.exact:
            return decided(Lane.PREFIX, "an earlier prompt began with the same")
        if part.state is RowState.WRITTEN and part.survivor:
            return decided(Lane.SURVIVOR, "its rows were written in this window, behind what has changed since")
        if part.state is RowState.WRITTEN:
            return decided(Lane.SETTLED, "its rows were written in this window")
        if part.state is RowState.MISSING:
            return replace(decided(Lane.FRESH, "it has no rows that are trusted"), closed=distrusted)
        if segment.start == 0:
            return decided(Lane.LEADING, "nothing stands before it")
        closed: dict[Lane, str] = {}
        for lane, why, key, rank in self._candidates(segment, chunk):
            verdict = self._verdict(chunk, lane, key, rank)
            if verdict.open:
                return decided(lane, f"{why}; {verdict.reason}", key, rank)
            closed[lane] = f"{lane} not taken: {verdict.reason}"
        lane, why, key = self._computed(segment, chunk)
        return replace(decided(lane, "; ".join([why, *closed.values()]), key), closed=(*closed, *distrusted))

    def rank(self, chunk: Chunk) -> int:
        """The rank of the chunk's patches: the policy's, the model's plateau, or what the share of its bytes holds."""
        return rank_of(chunk, self.knowledge, self.policy)

    def _candidates(self, segment: Segment, chunk: Chunk) -> Iterator[tuple[Lane, str, PatchKey | None, int]]:
        """What could be taken, the most faithful first; stored patches that are stale are not among it."""
        model, before = self.knowledge.model, self.prompt.antecedents(segment)
        rank = self.rank(chunk)
        if rank > 0:
            key = PatchKey(model, chunk.id, before)
            if self._serves(key, rank):
                yield Lane.PATCH, "these antecedents are known", key, rank
            elif len(before) > 1 and len(set(before)) == len(before):
                key = orbit_key(model, chunk.id, before)
                if self._serves(key, rank):
                    yield Lane.ORBIT, "this set of antecedents is known", key, rank
            for key, drift in self._stored(chunk, before):
                if drift.change is not Change.SAME and drift.small(self.policy.drift) and self._serves(key, rank):
                    yield Lane.DRIFT, str(drift), key, rank
                    break
        yield Lane.BARE, f"{chunk.kind} shows no gap on this model", None, 0

    def _computed(self, segment: Segment, chunk: Chunk) -> tuple[Lane, str, PatchKey | None]:
        if self.rank(chunk) == 0:
            return Lane.FULL, "it is too short for a patch", None
        before = self.prompt.antecedents(segment)
        for key, drift in self._stored(chunk, before):
            related = 2 * drift.kept >= len(key.antecedents) and drift.kept > 0 and drift.new - drift.gone <= EXCESS
            if drift.change is not Change.SAME and related and self._found(key) is not None:
                return Lane.REFRESH, f"its antecedents changed ({drift})", key
        return Lane.FULL, "its antecedents are not known", None

    def _stored(self, chunk: Chunk, before: tuple[str, ...]) -> list[tuple[PatchKey, Drift]]:
        """The chunk's plain patches of this model, the nearest antecedents first."""
        keys = [key for key in self.knowledge.patch_keys(chunk.id) if key.model == self.knowledge.model]
        return nearest(keys, before)

    def _serves(self, key: PatchKey, rank: int) -> bool:
        patch = self._found(key)
        return patch is not None and patch.rank >= rank and patch.covers(range(self.knowledge.layers))

    def _found(self, key: PatchKey) -> Patch | None:
        return self.knowledge.find_patch(key)

    def _verdict(self, chunk: Chunk, lane: Lane, key: PatchKey | None, rank: int) -> Verdict:
        """Whether the lane keeps the bounds, and computing the rows instead would not be quicker as well."""
        if self.trial is not None:
            return Verdict(self.trial == Trial(chunk.kind, lane), "this lane is to be measured")
        verdict = self.judgement.verdict(chunk.kind, lane, self.policy)
        if not verdict.open:
            return verdict
        patch = None if key is None else self._found(key)
        gain = self.judgement.gain(chunk.tokens, 0 if patch is None else patch.bytes)
        if gain is not None and gain < 0:
            return Verdict(False, f"computing its rows was measured to be {-gain * 1e3:.1f} ms quicker")
        return verdict


def rank_of(chunk: Chunk, knowledge: Knowledge, policy: Policy) -> int:
    """See `Chooser.rank`; 0 where not even rank 1 fits the share."""
    rank = policy.rank or knowledge.judgement.plateau
    return (PatchStrategy(share=policy.share) if rank is None else PatchStrategy(rank=rank)).rank_for(
        chunk.tokens, knowledge
    )
