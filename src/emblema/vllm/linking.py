"""From a request to a plan: what is stored, what the strategy says of it, and what the pages can carry out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, Source
from emblema.link.policy.choosing import rank_of
from emblema.link.policy.policy import COMPUTED
from emblema.link.prompt import Prompt, Rows
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.strategies.registry import parse
from emblema.store.keys import PatchKey
from emblema.store.tenant import TenantStore
from emblema.vllm.holes import beyond, holes_of
from emblema.vllm.media import Asked, prompt_of
from emblema.vllm.shape import Shape

Need = tuple[PatchKey, int, tuple[int, ...]]
"""A patch to be formed: its key, its rank and its layers."""


@dataclass(slots=True)
class Link:
    """A request under way.

    Attributes:
        asked: the request.
        prompt: as rows.
        plan: what is carried out; every row computed where nothing is linked.
        holes: runs of taken rows.
        wanted: chunks that the store has not.
        needs: patches that rows of this request give, once they are computed.
        remark: why the plan is not what was asked for; None if it is.
        most: how many holes a step may jump over; grows smaller where the encoder's budget is too small.
        claimed: taken rows so far.
        off: nothing more is linked.
    """

    asked: Asked
    prompt: Prompt
    plan: LinkPlan
    holes: tuple[Rows, ...]
    wanted: tuple[Chunk, ...] = ()
    needs: tuple[Need, ...] = ()
    remark: str | None = None
    most: int | None = None
    claimed: int = 0
    off: bool = False

    def private_from(self, computed: int) -> int | None:
        """The first row that is not what plain prefill would give, of those behind `computed` exact ones; None if all
        are.

        A chunk at row 0 has absorbed nothing, so it is exact, and so is what follows it up to the next hole.
        """
        return next((max(start, computed) for start, stop in self.holes if start > 0 and stop > computed), None)

    def fewer(self) -> None:
        """Jump over fewer holes at once; none at all where one is too many."""
        if self.most == 1:
            self.off = True
        else:
            self.most = max(1, (len(self.holes) if self.most is None else self.most) // 2)


def link_of(asked: Asked, shape: Shape, view: TenantStore, default: str, say_once: Callable[[str], None]) -> Link:
    """The plan of a request, as far as the store and the pages allow."""
    prompt = prompt_of(asked, shape)
    layers = len(shape.layouts)
    name = asked.wishes.get("strategy", default)
    plain = LinkPlan("plain", prompt.tokens, layers, ())
    try:
        strategy = _strategy(name)
        knowledge = _knowledge(shape, view)
        plan = strategy.plan(prompt, knowledge)
    except EmblemaError as error:
        return Link(asked, prompt, plain, (), remark=str(error))
    unknown = {chunk.id: chunk for _, chunk in prompt.chunk_segments if chunk.id not in view}
    reason = beyond(plan)
    if reason is not None:
        say_once(f"{plan.strategy} is computed plainly under vLLM: {reason}")
        return Link(asked, prompt, plain, (), tuple(unknown.values()), remark=f"{plan.strategy}: {reason}")
    wanted = tuple(unknown.values())
    if plan.decisions:
        taken = without(plan, frozenset(unknown))
        return Link(asked, prompt, taken, holes_of(taken), wanted, _of_decisions(plan, prompt, knowledge))
    if any(key.orbit for key in plan.forming):
        reason = "an orbit patch is not stored, and under vLLM none is formed, as that takes other orderings"
        say_once(f"{plan.strategy} is computed plainly under vLLM: {reason}")
        return Link(asked, prompt, plain, (), wanted, remark=f"{plan.strategy}: {reason}")
    needs = tuple((key, rank, tuple(sorted(kept))) for key, (rank, kept) in _needs(plan).items())
    if any(key.chunk not in unknown for key in plan.forming):
        return Link(asked, prompt, plain, (), wanted, needs, remark="patches are formed of this prompt's own rows")
    taken = without(plan, frozenset(unknown))
    needs = needs if not holes_of(taken) else ()
    return Link(asked, prompt, taken, holes_of(taken), wanted, needs, remark=plan.remark)


def without(plan: LinkPlan, chunks: frozenset[str]) -> LinkPlan:
    """The plan with the rows of some chunks computed; all layers of a row are of one source."""
    ranges = [
        replace(part, source=Source.COMPUTED, origin=None, patch=None, layers=(0, plan.layers))
        if isinstance(part.origin, ChunkOrigin) and part.origin.chunk in chunks
        else part
        for part in plan.ranges
    ]
    return replace(plan, ranges=tuple(dict.fromkeys(ranges)), forming=())


def _needs(plan: LinkPlan) -> dict[PatchKey, tuple[int, frozenset[int]]]:
    return {key: plan.patch_need(key) for key in plan.forming}


def _of_decisions(plan: LinkPlan, prompt: Prompt, knowledge: Knowledge) -> tuple[Need, ...]:
    """Patches of the chunks that `auto` computes in their place, where none is stored that serves."""
    chunks = {segment.start: (segment, chunk) for segment, chunk in prompt.chunk_segments}
    layers = tuple(range(plan.layers))
    needs: dict[PatchKey, Need] = {}
    for decision in plan.decisions:
        segment, chunk = chunks[decision.start]
        rank = rank_of(chunk, knowledge, knowledge.policy_inputs.policy)
        if decision.lane not in COMPUTED or rank == 0:
            continue
        key = PatchKey(knowledge.model, chunk.id, prompt.antecedents(segment))
        patch = knowledge.find_patch(key)
        if patch is None or patch.rank < rank or not patch.covers(layers):
            needs[key] = (key, rank, layers)
    return tuple(needs.values())


def _strategy(name: object) -> Strategy:
    if not isinstance(name, str):
        raise EmblemaError(f"strategy is {name!r}: give a name")
    return parse(name)


def _knowledge(shape: Shape, view: TenantStore) -> Knowledge:
    """What is stored; nothing is measured of a lane here, so `auto` decides by the policy as it is set by default."""
    return Knowledge(
        shape.fingerprint, shape.layouts, view.find_artifact, lambda prompt: None, patch_keys=view.patch_keys
    )
