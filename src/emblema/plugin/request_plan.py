"""From a request to a serving engine to a plan: its prompt as chunks and text, and the rows that its pages can take."""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk, Encoded
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowSource
from emblema.link.policy.choosing import Trial, rank_of
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.policy import COMPUTED, REPEATED, Lane, Policy, PolicyInputs
from emblema.link.prompt import ChunkPart, Part, Prompt, Rows, TextPart
from emblema.link.strategies.auto import Auto, second_pass_pays, shares_of
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.query import unread_rows
from emblema.link.strategies.registry import parse
from emblema.models.positions import Grid, chunk_positions
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.spans import CachedSpans, unsupported_reason
from emblema.plugin.stored import StoreMemory
from emblema.plugin.stored_artifacts import StoredArtifacts, chunks_after
from emblema.plugin.stored_pairs import StoredPairs
from emblema.store.identity import SHARED_SALT, chunk_id, request_salt
from emblema.store.keys import ArtifactKey
from emblema.store.store import TenantStore

PatchNeed = tuple[ArtifactKey, int, tuple[int, ...]]
"""A patch to be formed: its key, its rank and its layers."""


REMEMBERED_STUBS = 1024
NOT_READY = "this server was not made ready for it"
COSTS_MORE = "linking was expected to cost more than it saves"


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture or other media of a request, as the engine placed it.

    Attributes:
        index: its number among the request's media.
        kind: `image`, `video`, ….
        identifier: the engine's name of it: a digest of its content, or what the client gave as such.
        start: row of its first token.
        tokens: how many rows it takes.
        grid: frames, height and width in patches, where the model places media on a grid.
        digest: of what the model is shown, made here; empty where that is not there.
        seconds: from one step of a video's grid to the next, where the model is told so.
        runs: rows, counted from its first, that the encoder fills, where there are others between (time stamps).
    """

    index: int
    kind: str
    identifier: str
    start: int
    tokens: int
    grid: tuple[int, int, int] | None = None
    digest: str = ""
    seconds: float | None = None
    runs: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request to a serving engine.

    Attributes:
        token_ids: the prompt's, with a token for each row of media.
        items: its media in order.
        salt: what sets the tenant apart, as vLLM's `cache_salt`.
        options: the request's own, as vLLM's `kv_transfer_params["emblema"]`.
        refusal: why it has to be computed plainly, whatever is stored; None if it may be linked.
        source: the engine's own request.
        digests: makes the digests of the items, which takes a while; None where they have theirs.
    """

    token_ids: Sequence[int]
    items: tuple[MediaItem, ...]
    salt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    source: Any = None
    digests: Callable[[], Sequence[str]] | None = None

    def checked(self) -> "ServedRequest":
        """Return the request with the digests of its items."""
        if self.digests is None:
            return self
        named = zip(self.items, self.digests(), strict=True)
        return replace(self, items=tuple(replace(item, digest=digest) for item, digest in named), digests=None)

    def why_plain(self) -> str | None:
        """Return why it has to be computed plainly, whatever is stored; None if it may be linked."""
        if self.salt == SHARED_SALT.decode():
            return "its cache_salt is the shared library's"
        if not all(item.digest for item in self.items):
            return "a picture is not there to be checked against its name"
        return self.refusal

    @property
    def store_salt(self) -> bytes:
        """The salt of the tenant's store, derived from `cache_salt`."""
        return request_salt(self.salt) if self.salt else b""


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
        worth: what its rows would teach of pairs, from 0 to 1.
        remark: why the plan is not what was asked for; None if it is.
        linked: cached rows that were taken so far.
        weighed: whether it was decided if linking pays.
        trying: whether it is linked to learn what that costs, unless that cannot pay.
        awaits: whether it is to be planned again once what is missing was prefilled alone, as it is then read.
        failed: whether what it takes could not be read or written.
        margin: of an answer that was read, see `Recomputation`; None where none was.
        repeated: rows that were computed twice for it.
        ready: rows that the prefix cache had of it.
        complete: whether all its rows are ready.
    """

    request: ServedRequest
    prompt: Prompt
    plan: LinkPlan
    missing: tuple[Chunk, ...] = ()
    cached: CachedSpans = field(default_factory=CachedSpans)
    needs: tuple[PatchNeed, ...] = ()
    remark: str | None = None
    lacking: bool = False
    worth: float = 0.0
    linked: int = field(default=0, init=False)
    weighed: bool = field(default=False, init=False)
    trying: bool = field(default=False, init=False)
    awaits: bool = field(default=False, init=False)
    failed: bool = field(default=False, init=False)
    margin: float | None = field(default=None, init=False)
    repeated: int = field(default=0, init=False)
    ready: int = field(default=0, init=False)
    complete: bool = field(default=False, init=False)

    def reads(self, ready: int) -> bool:
        """Return whether rows are chosen by what the question attends, where `ready` rows are there already."""
        again = self.plan.recomputation
        return (
            again is not None
            and bool(self.cached.spans)
            and ready < again.question[0]
            and again.after(ready) is not None
        )

    def restart(self, ready: int) -> None:
        """Count from the start, as the engine schedules the request for the first time or after a preemption.

        Args:
            ready: rows that the prefix cache has.
        """
        self.linked, self.ready = 0, ready

    def encodings(self, ready: int) -> tuple[tuple[str, str], ...]:
        """Return the stored chunks of pictures with rows from `ready` on, by the engine's names of these pictures.

        The encoder outputs of pictures whose rows are taken are of use too, where a step ends within such rows.
        """
        missing = {chunk.id for chunk in self.missing}
        places = zip(self.request.items, self.prompt.chunk_segments, strict=True)
        return tuple(
            (item.identifier, chunk.id)
            for item, (segment, chunk) in places
            if segment.stop > ready and chunk.id not in missing
        )

    def decline(self, remark: str) -> None:
        """Have the whole request computed."""
        self.cached, self.remark = CachedSpans(), remark

    def fail(self) -> None:
        """Have the rest of the request computed, as its cached rows could not be loaded."""
        self.cached, self.linked, self.failed = CachedSpans(), 0, True
        self.remark = "stored rows could not be loaded; they were computed"


class ChunkStubs:
    """Chunks that have an id and a geometry, and no rows; those made last are remembered.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._made: OrderedDict[Hashable, Chunk] = OrderedDict()

    def make(self, item: MediaItem, token_ids: Sequence[int], lead: int, salt: bytes) -> Chunk:
        """Return the chunk of a picture or clip; `lead` tokens come before its own."""
        key = (item.kind, item.digest, item.tokens, item.grid, item.seconds, item.runs, tuple(token_ids), lead, salt)
        chunk = self._made.get(key)
        if chunk is None:
            chunk = self._made[key] = _chunk_stub(item, token_ids, lead, salt, self.spec)
            if len(self._made) > REMEMBERED_STUBS:
                self._made.popitem(last=False)
        else:
            self._made.move_to_end(key)
        return chunk


def plan_request(
    request: ServedRequest,
    stubs: ChunkStubs,
    store: TenantStore,
    memory: StoreMemory,
    default: str,
    log_once: Callable[[str], None],
    met: FrequencySketch,
    pays: Callable[[CachedSpans, int], bool] = lambda spans, rows: True,
    second_pass: str | None = NOT_READY,
    inputs: PolicyInputs | None = None,
    pairs: StoredPairs | None = None,
    sightings_of_pictures: float | None = None,
    usual: PolicyInputs | None = None,
) -> RequestPlan:
    """Plan a request, as far as the store and the pages allow. It reads the store, so no step should wait for it.

    Args:
        stubs: of the model, make the request's chunks.
        store: the tenant's.
        memory: of that store, up to date.
        default: the strategy, where the request names none.
        log_once: is told of strategies that pages do not support.
        met: the tenant's chunks by their antecedents, as they were met lately; the request's are counted here.
        pays: returns whether taking some spans of a prompt of so many rows is expected to pay; `auto` asks it.
        second_pass: why no plan with a second pass can be carried out; None where it can.
        inputs: what `auto` decides by; the defaults where None.
        pairs: reads what is known of pairs; None where nothing is.
        sightings_of_pictures: how many prompts show a picture, on average: what it costs to prefill one alone is
            shared by them. None where that is not done for a prompt that waits.
        usual: what `auto` decides by otherwise, where this prompt is linked to learn what that costs. Then others may
            not follow, and it bears all of what its missing pictures cost. None for any other prompt.
    """
    spec = stubs.spec
    prompt = build_prompt(request, stubs)
    plain = LinkPlan("plain", prompt.tokens, len(spec.layouts), ())
    held = memory.held(store, [chunk.id for _, chunk in prompt.chunk_segments])
    missing = {chunk.id: chunk for _, chunk in prompt.chunk_segments if chunk.id not in held}
    name = request.options.get("strategy", default)
    if name == "full":
        # Whatever is stored, nothing is taken.
        _count_sightings(prompt, met)
        return RequestPlan(request, prompt, replace(plain, strategy=name), tuple(missing.values()))
    artifacts = StoredArtifacts(prompt, spec, store, memory, held, pairs)
    inputs = replace(inputs or PolicyInputs(), knows_pairs=artifacts.knows_pairs)
    may_read = name == "auto" and second_pass is None and (not missing or sightings_of_pictures is not None)
    # Of each picture so many prompts share what it costs alone, whichever of them finds it missing.
    shown = sum(chunk.tokens for _, chunk in prompt.chunk_segments) if missing else 0
    alone = math.ceil(shown / (sightings_of_pictures or 1.0))
    shares = artifacts.read_shares(inputs.policy) if may_read else {}
    own = alone if usual is None else max(alone, sum(chunk.tokens for chunk in missing.values()))
    reads = may_read and reading_pays(prompt, 0, inputs, shares, own)
    if may_read and not reads and usual is not None:
        reads = reading_pays(prompt, 0, usual, shares, alone)
    if reads and missing:
        waiting = RequestPlan(request, prompt, plain, tuple(missing.values()))
        waiting.awaits = True
        return waiting
    knowledge = Knowledge(
        spec.fingerprint,
        spec.layouts,
        artifacts.find,
        lambda prompt: None,
        policy_inputs=inputs,
        second_pass=reads,
    )
    if name == "auto" and not reads and all(segment.start for segment, _ in prompt.chunk_segments):
        # Without a patch of its own `auto` computes a picture in its place, unless its kind is taken bare.
        known = [
            segment.rows
            for segment, chunk in prompt.chunk_segments
            if artifacts.serve(chunk.id, segment.start)
            or (chunk.id not in missing and inputs.verdict(chunk.kind, Lane.BARE, inputs.policy).open)
        ]
        if not known or not pays(CachedSpans(tuple(known)), prompt.tokens):
            sightings = _count_sightings(prompt, met)
            every = CachedSpans(tuple(segment.rows for segment, _ in prompt.chunk_segments))
            forms = pays(every, prompt.tokens)
            return _all_computed(request, prompt, plain, missing, knowledge, artifacts, sightings, forms)
    try:
        if not isinstance(name, str):
            raise EmblemaError(f"strategy is {name!r}: give a name")
        plan = parse(name).plan(prompt, knowledge)
    except EmblemaError as error:
        return RequestPlan(request, prompt, plain, remark=str(error))
    sightings = _count_sightings(prompt, met)
    linked = plain
    needs: tuple[PatchNeed, ...] = ()
    lacking: tuple[PatchNeed, ...] = ()
    remark: str | None = None
    if plan.recomputation is not None and missing:
        second_pass = "some of its pictures are not stored yet"
    reason = unsupported_reason(plan, second_pass)
    if reason is None and not plan.decisions and any(key.orbit for key in plan.forming):
        reason = "an orbit patch is not stored, and in a serving engine none is formed, as that takes other orderings"
    if reason is None and plan.recomputation is not None:
        plan, reason = _bounded(plan, request.options.get("margin"))
    if reason is not None:
        log_once(f"{plan.strategy} is computed plainly here: {reason}")
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
    worth = (
        artifacts.worth if linked.recomputation is not None and request.options.get("capture", True) is True else 0.0
    )
    return RequestPlan(
        request, prompt, linked, tuple(missing.values()), CachedSpans.of(linked), needs, remark, bool(lacking or needs),
        worth,
    )  # fmt: skip


def plan_trial(
    request: ServedRequest,
    stubs: ChunkStubs,
    store: TenantStore,
    memory: StoreMemory,
    trial: Trial,
    inputs: PolicyInputs,
) -> RequestPlan | None:
    """Plan a prompt with one lane alone, to measure it; None where pages do not support that. It reads the store."""
    spec = stubs.spec
    prompt = build_prompt(request, stubs)
    chunks = [chunk.id for _, chunk in prompt.chunk_segments]
    held = memory.held(store, chunks)
    artifacts = StoredArtifacts(prompt, spec, store, memory, held)
    knowledge = Knowledge(spec.fingerprint, spec.layouts, artifacts.find, lambda prompt: None, policy_inputs=inputs)
    plan = Auto(inputs.policy, trial).plan(prompt, knowledge)
    if not held.keys() >= set(chunks) or unsupported_reason(plan) is not None:
        return None
    return RequestPlan(request, prompt, plan, cached=CachedSpans.of(plan))


def reading_pays(
    prompt: Prompt, ready: int, inputs: PolicyInputs, shares: Mapping[int, float], captured: int = 0
) -> bool:
    """Return whether reading a prompt is expected to pay, where the first `ready` rows are there already.

    Args:
        shares: the share of the rows of each chunk that is read, by where it starts.
        captured: rows of chunks that have to be prefilled alone before.
    """
    unread = [(start, stop) for start, stop in unread_rows(prompt) if stop > ready and start in shares]
    rows = [(stop - max(start, ready), shares[start]) for start, stop in unread]
    return bool(rows) and second_pass_pays(prompt, rows, inputs, captured)


def shares_read(plan: LinkPlan, policy: Policy) -> dict[int, float]:
    """Return the share of the rows of each chunk that a plan of `auto` reads, by where it starts."""
    shares = shares_of(policy)
    return {decision.start: shares[decision.lane] for decision in plan.decisions if decision.lane in REPEATED}


def _all_computed(
    request: ServedRequest,
    prompt: Prompt,
    plain: LinkPlan,
    missing: Mapping[str, Chunk],
    knowledge: Knowledge,
    artifacts: StoredArtifacts,
    sightings: Mapping[tuple[str, tuple[str, ...]], int],
    forms: bool,
) -> RequestPlan:
    """Return the plan of `auto` where no patch is stored, or too few to pay.

    What came often enough leaves a patch, if `forms`: where all patches together would pay.
    """
    policy = knowledge.policy_inputs.policy
    needs: dict[ArtifactKey, PatchNeed] = {}
    lacking, served = False, False
    # By how many tokens a chunk has, which alone decides.
    ranks: dict[int, int] = {}
    for segment, chunk, before in chunks_after(prompt):
        rank = ranks.get(chunk.tokens)
        if rank is None:
            rank = ranks[chunk.tokens] = rank_of(chunk, knowledge, policy)
        if artifacts.serve(chunk.id, segment.start):
            served = True
            continue
        lacking = lacking or rank > 0
        if forms and rank > 0 and sightings[chunk.id, before] >= policy.sightings:
            key = ArtifactKey(knowledge.model, chunk.id, before)
            needs[key] = (key, rank, tuple(range(knowledge.layers)))
    kept = tuple(missing.values())
    remark = COSTS_MORE if served else None
    return RequestPlan(request, prompt, plain, kept, needs=tuple(needs.values()), remark=remark, lacking=lacking)


def _bounded(plan: LinkPlan, margin: Any) -> tuple[LinkPlan, str | None]:
    """Return a plan whose second pass has the margin that a request asks for; or what is wrong."""
    if plan.recomputation is None or margin is None:
        return plan, None
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin <= 1:
        return plan, f"margin is {margin!r}: give a number from 0 to 1"
    return replace(plan, recomputation=replace(plan.recomputation, least_margin=float(margin))), None


def _count_sightings(prompt: Prompt, met: FrequencySketch) -> dict[tuple[str, tuple[str, ...]], int]:
    """Count each chunk with its antecedents once; return how often they were met lately, this time included."""
    places = {(chunk.id, before) for _, chunk, before in chunks_after(prompt)}
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


def build_prompt(request: ServedRequest, stubs: ChunkStubs) -> Prompt:
    """Return the request's prompt, with a chunk for each picture that has an id, tokens and positions, and no rows.

    A chunk has the family's markers around its picture too, where the prompt has them.
    """
    tokens, (before, after), salt = request.token_ids, stubs.spec.markers, request.store_salt
    parts: list[Part] = []
    row = 0
    for item in request.items:
        start, stop = item.start - len(before), item.start + item.tokens + len(after)
        if start < 0 or (*tokens[start : item.start], *tokens[item.start + item.tokens : stop]) != (*before, *after):
            start, stop = item.start, item.start + item.tokens
        parts.append(TextPart(tuple(tokens[row:start])))
        parts.append(ChunkPart(stubs.make(item, tokens[start:stop], item.start - start, salt)))
        row = stop
    return Prompt.of([*parts, TextPart(tuple(tokens[row:]))], stubs.spec.axes)


def _chunk_stub(item: MediaItem, token_ids: Sequence[int], lead: int, salt: bytes, spec: ModelSpec) -> Chunk:
    tokens = len(token_ids)
    positions, span = chunk_positions(tokens, spec.axes, _grids(item, lead, spec))
    visual = torch.zeros(tokens, dtype=torch.bool)
    for start, stop in item.runs or ((0, item.tokens),):
        visual[lead + start : lead + stop] = True
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
        (item.kind.encode(), item.digest.encode(), numpy.asarray(token_ids, dtype="<i8").tobytes()),
        options={} if item.seconds is None else {"seconds": item.seconds},
        model_fingerprint=spec.fingerprint,
        dtype=spec.dtype,
        adapter_version=spec.version,
        geometry=item.grid or (),
        salt=salt,
    )
    return Chunk(name, "video" if item.kind == "video" else "image", spec.fingerprint, encoded, ())


def _grids(item: MediaItem, lead: int, spec: ModelSpec) -> tuple[Grid, ...]:
    """Return where the engine places an item's media tokens on grids: a clip with time stamps on one for each step."""
    if item.grid is None or spec.axes == 1:
        return ()
    frames, height, width = item.grid[0], item.grid[1] // spec.merge, item.grid[2] // spec.merge
    if item.runs:
        return tuple(Grid(lead + start, 1, height, width) for start, _ in item.runs)
    interval = 1.0 if item.kind != "video" else (1.0 if item.seconds is None else item.seconds) * spec.tokens_per_second
    # As vLLM, which rounds down without slack.
    return (Grid(lead, frames, height, width, interval, 0.0),)
