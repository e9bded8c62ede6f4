"""`auto`: for every chunk the cheapest way that keeps the policy's bounds; with nothing known, exact."""

from dataclasses import dataclass, replace

from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.link.lanes import Lane, Trial, name_of
from emblema.link.plan import LinkPlan, PatchUse, PrefixOrigin, Recomputation, RowRange, RowSource
from emblema.link.policy.decide import Decisions, decide
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, Segment
from emblema.link.strategies.base import Knowledge, Strategy, computed, lay_out, strategy_name, taken
from emblema.link.strategies.patch import patched
from emblema.link.strategies.query import left_rows, recomputation


@dataclass(frozen=True, slots=True)
class Auto:
    """The menu of operating points (Kamera, table 2), chunk by chunk, as `link/policy/decide.py` chooses from it.

    What is computed in its place is exact for what is before it, and leaves a patch for the next time. The plan's
    `decisions` say why.

    Attributes:
        policy: the bounds; None for the engine's.
        trial: a lane to be measured; no exact prefix is taken then.
        kept: whether rows before which something has left are computed again in part, as for a conversation that asks
            for its rows; how many, `Policy.survivor_share` says.
    """

    policy: Policy | None = None
    trial: Trial | None = None
    kept: bool = False

    @property
    def name(self) -> str:
        return "auto"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        decided = decide(prompt, knowledge, knowledge.costs, self.policy, self.trial)
        chunks, exact = decided.chunks, decided.exact
        by_row = {own.start: own for own in chunks}

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            own = by_row[segment.start]
            if own.lane in (Lane.FULL, Lane.PREFIX):
                return computed(prompt, layers, *segment.rows)
            if own.key is None:
                return taken(segment, chunk, layers)
            return patched(segment, chunk, layers, PatchUse(own.key, own.rank))

        def as_decided(segment: Segment, part: ChunkPart) -> ChunkPart:
            own = by_row.get(segment.start)
            return part if own is not None and own.lane is Lane.CHANGED else replace(part, changed=None)

        laid = prompt.map_chunks(as_decided)
        ranges = lay_out(laid, knowledge, chunk_ranges, in_context=decided.in_context)
        if decided.prefix is not None and exact > 0:
            front = RowRange(0, exact, RowSource.TAKEN, (0, layers), PrefixOrigin(decided.prefix.entry))
            ranges = (front, *(part.after(exact) for part in ranges if part.stop > exact))
        return LinkPlan(
            "auto:prefix" if exact and not chunks else name_of(chunks),
            prompt.tokens,
            layers,
            ranges,
            leaving=prompt.slid_rows if decided.in_context else (),
            recomputation=self._second_pass(laid, decided, knowledge),
            least_margin=decided.least_margin,
            decisions=chunks,
        )

    def _second_pass(self, prompt: Prompt, decided: Decisions, knowledge: Knowledge) -> Recomputation | None:
        """Return the second pass over unread rows, and over those before which something has left."""
        policy, layouts = decided.policy, knowledge.layouts
        unread = recomputation(prompt, decided.reread, policy.query_share, layouts)
        if not self.kept or policy.survivor_share == 0:
            return unread
        kept = recomputation(prompt, left_rows(prompt), policy.survivor_share, layouts)
        return unread.joined(kept) if unread is not None and kept is not None else unread or kept


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
