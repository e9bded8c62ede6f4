"""From a request that vLLM serves to a plan: its prompt as chunks and text, and the rows that its pages can take."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk, Encoded
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowSource
from emblema.link.policy.choosing import rank_of
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.policy import COMPUTED
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.models.positions import Grid, chunk_positions
from emblema.store.identity import chunk_id
from emblema.store.keys import ArtifactKey
from emblema.store.store import TenantStore
from emblema.vllm.model_spec import ModelSpec
from emblema.vllm.spans import CachedSpans, Claim, unsupported_reason
from emblema.vllm.step_metadata import PatchNeed


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture or other media of a request, as vLLM placed it.

    Attributes:
        index: its number among the request's media.
        kind: `image`, `video`, ….
        identifier: vLLM's digest of its content and of the processor's options.
        start: row of its first token.
        tokens: how many rows it takes.
        grid: frames, height and width in patches, where the model places media on a grid.
    """

    index: int
    kind: str
    identifier: str
    start: int
    tokens: int
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request to vLLM.

    Attributes:
        token_ids: the prompt's, with a token for each row of media.
        items: its media in order.
        salt: the tenant's `cache_salt`.
        options: `kv_transfer_params["emblema"]`.
        refusal: why it has to be computed plainly, whatever is stored; None if it may be linked.
        source: vLLM's own request, for `internals` alone.
    """

    token_ids: Sequence[int]
    items: tuple[MediaItem, ...]
    salt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    source: Any = None

    @property
    def store_salt(self) -> bytes:
        """The salt of the tenant's store."""
        return b"" if self.salt is None else self.salt.encode()


@dataclass(slots=True)
class RequestPlan:
    """The plan of a request, and how far it has been carried out.

    Attributes:
        request: the request.
        prompt: its text and its chunks, these without rows.
        plan: what is carried out; without ranges where nothing is linked.
        missing: chunks that the store lacks.
        cached: its cached spans.
        needs: patches to form from this request's rows, once they are computed.
        lacking: whether patches are lacking, those that are not worth forming yet included.
        remark: why the plan is not what was asked for; None if it is.
        linked: cached rows that were taken so far.
    """

    request: ServedRequest
    prompt: Prompt
    plan: LinkPlan
    missing: tuple[Chunk, ...] = ()
    cached: CachedSpans = field(default_factory=CachedSpans)
    needs: tuple[PatchNeed, ...] = ()
    remark: str | None = None
    lacking: bool = False
    linked: int = field(default=0, init=False)

    def restart(self) -> None:
        """Count from the start, as vLLM schedules the request for the first time or after a preemption."""
        self.linked = 0

    def take(self, claim: Claim) -> int:
        """Count the cached rows of a claim that is carried out, and return their number."""
        self.linked += claim.cached_rows
        return claim.cached_rows

    def fail(self) -> None:
        """Have the rest of the request computed, as its cached rows could not be loaded."""
        self.cached, self.linked = CachedSpans(), 0
        self.remark = "stored rows could not be loaded; they were computed"


def plan_request(
    request: ServedRequest,
    spec: ModelSpec,
    store: TenantStore,
    default: str,
    log_once: Callable[[str], None],
    met: FrequencySketch,
) -> RequestPlan:
    """Plan a request, as far as the store and the pages allow.

    Args:
        default: the strategy, where the request names none.
        log_once: is told of strategies that pages do not support.
        met: the tenant's chunks by their antecedents, as they were met lately; the request's are counted here.
    """
    prompt = build_prompt(request, spec)
    plain = LinkPlan("plain", prompt.tokens, len(spec.layouts), ())
    name = request.options.get("strategy", default)
    try:
        if not isinstance(name, str):
            raise EmblemaError(f"strategy is {name!r}: give a name")
        # Nothing is measured of a lane here, so `auto` decides by the default policy.
        knowledge = Knowledge(
            spec.fingerprint, spec.layouts, store.find_artifact, lambda prompt: None, artifact_keys=store.artifact_keys
        )
        plan = parse(name).plan(prompt, knowledge)
    except EmblemaError as error:
        return RequestPlan(request, prompt, plain, remark=str(error))
    sightings = _count_sightings(prompt, met)
    missing = {chunk.id: chunk for _, chunk in prompt.chunk_segments if chunk.id not in store}
    linked = plain
    needs: tuple[PatchNeed, ...] = ()
    lacking: tuple[PatchNeed, ...] = ()
    remark: str | None = None
    reason = unsupported_reason(plan)
    if reason is None and not plan.decisions and any(key.orbit for key in plan.forming):
        reason = "an orbit patch is not stored, and under vLLM none is formed, as that takes other orderings"
    if reason is not None:
        log_once(f"{plan.strategy} is computed plainly under vLLM: {reason}")
        remark = f"{plan.strategy}: {reason}"
    elif plan.decisions:
        linked, lacking = compute_chunks(plan, missing), _needs_of_decisions(plan, prompt, knowledge)
        least = knowledge.policy_inputs.policy.sightings
        needs = tuple(need for need in lacking if sightings[need[0].chunk, need[0].antecedents] >= least)
    elif any(key.chunk not in missing for key in plan.forming):
        needs, remark = _forming_needs(plan), "patches are formed of this prompt's own rows"
    else:
        linked, remark = compute_chunks(plan, missing), plan.remark
        needs = () if CachedSpans.of(linked).spans else _forming_needs(plan)
    return RequestPlan(
        request, prompt, linked, tuple(missing.values()), CachedSpans.of(linked), needs, remark, bool(lacking or needs)
    )


def _count_sightings(prompt: Prompt, met: FrequencySketch) -> dict[tuple[str, tuple[str, ...]], int]:
    """Count each chunk with its antecedents once; return how often they were met lately, this time included."""
    places = {(chunk.id, prompt.antecedents(segment)) for segment, chunk in prompt.chunk_segments}
    return {(name, before): met.add((*before, name)) for name, before in sorted(places)}


def _forming_needs(plan: LinkPlan) -> tuple[PatchNeed, ...]:
    needs = {key: plan.patch_need(key) for key in plan.forming}
    return tuple((key, rank, tuple(sorted(layers))) for key, (rank, layers) in needs.items())


def compute_chunks(plan: LinkPlan, chunks: Collection[str]) -> LinkPlan:
    """Return the plan with the rows of some chunks computed; all layers of a row have the same source."""
    ranges = [
        replace(part, source=RowSource.COMPUTED, origin=None, patch=None, layers=(0, plan.layers))
        if isinstance(part.origin, ChunkOrigin) and part.origin.chunk in chunks
        else part
        for part in plan.ranges
    ]
    return replace(plan, ranges=tuple(dict.fromkeys(ranges)), forming=())


def _needs_of_decisions(plan: LinkPlan, prompt: Prompt, knowledge: Knowledge) -> tuple[PatchNeed, ...]:
    """Return patches of the chunks that `auto` computes in their place, where the store has none that serves."""
    chunks = {segment.start: (segment, chunk) for segment, chunk in prompt.chunk_segments}
    layers = tuple(range(plan.layers))
    needs: dict[ArtifactKey, PatchNeed] = {}
    for decision in plan.decisions:
        segment, chunk = chunks[decision.start]
        rank = rank_of(chunk, knowledge, knowledge.policy_inputs.policy)
        if decision.lane not in COMPUTED or rank == 0:
            continue
        key = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment))
        if not knowledge.holds(PatchUse(key, rank)):
            needs[key] = (key, rank, layers)
    return tuple(needs.values())


def build_prompt(request: ServedRequest, spec: ModelSpec) -> Prompt:
    """Return the request's prompt, with a chunk for each picture that has an id, tokens and positions, and no rows.

    A chunk has the family's markers around its picture too, where the prompt has them.
    """
    tokens, (before, after) = request.token_ids, spec.markers
    parts: list[Part] = []
    row = 0
    for item in request.items:
        start, stop = item.start - len(before), item.start + item.tokens + len(after)
        if start < 0 or (*tokens[start : item.start], *tokens[item.start + item.tokens : stop]) != (*before, *after):
            start, stop = item.start, item.start + item.tokens
        parts.append(TextPart(tuple(tokens[row:start])))
        parts.append(ChunkPart(chunk_stub(item, tokens[start:stop], item.start - start, request.store_salt, spec)))
        row = stop
    return Prompt.of([*parts, TextPart(tuple(tokens[row:]))], spec.axes)


def chunk_stub(item: MediaItem, token_ids: Sequence[int], lead: int, salt: bytes, spec: ModelSpec) -> Chunk:
    """Return a chunk that has an id and a geometry, and no rows; `lead` tokens come before its media tokens."""
    tokens = len(token_ids)
    grids: tuple[Grid, ...] = ()
    if item.grid is not None and spec.axes > 1:
        frames, height, width = item.grid
        grids = (Grid(lead, frames, height // spec.merge, width // spec.merge),)
    positions, span = chunk_positions(tokens, spec.axes, grids)
    visual = torch.zeros(tokens, dtype=torch.bool)
    visual[lead : lead + item.tokens] = True
    encoded = Encoded(
        torch.tensor(list(token_ids), dtype=torch.int64),
        torch.empty(tokens, 0, dtype=spec.dtype),
        positions,
        span,
        visual,
        (),
        torch.full((tokens,), -1, dtype=torch.int64),
    )
    name = chunk_id(
        (item.kind.encode(), item.identifier.encode(), numpy.asarray(token_ids, dtype="<i8").tobytes()),
        options={},
        model_fingerprint=spec.fingerprint,
        dtype=spec.dtype,
        adapter_version=spec.version,
        geometry=item.grid or (),
        salt=salt,
    )
    return Chunk(name, "image", spec.fingerprint, encoded, ())
