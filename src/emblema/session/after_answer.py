"""What is noted after an answer: its margin, patches of what was computed, media that came again, and comparisons."""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.link.lanes import Lane, lanes_of, measured_lanes
from emblema.link.plan import LinkPlan, PrefixOrigin
from emblema.link.policy.decide import rank_of
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample, compare
from emblema.link.prompt import ChunkPart, Prompt, RowState
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.session.patch_worker import PatchJob
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import TenantStore


def note_answer(runtime: PolicyRuntime, model: str, plan: LinkPlan, logits: Tensor, full: Tensor | None) -> None:
    """Count an answer over linked rows.

    Args:
        runtime: the tenant's.
        model: the model's fingerprint.
        plan: how it was linked.
        logits: [vocab] of its first token.
        full: those of full prefill, where the answer did not stand; None where it did.
    """
    lanes = measured_lanes(plan.decisions)
    if not lanes:
        return
    runtime.log.note_accepted(model, lanes, full is None, runtime.policy)
    if full is not None:
        sample = compare(full.cpu().numpy(), logits.cpu().numpy())
        for kind, lane in sorted(lanes):
            runtime.log.record(model, kind, lane, sample, runtime.policy, accepted=False)


def note_not_finite(runtime: PolicyRuntime, model: str, plan: LinkPlan) -> None:
    """Count a plan whose logits were not finite, as an infinite divergence of every lane that it took."""
    lanes = lanes_of(plan.decisions)
    runtime.not_finite += 1
    if not lanes:
        return
    with runtime.logs.changing(runtime.store.owner):
        for kind, lane in sorted(lanes):
            runtime.log.record(model, kind, lane, Sample(math.inf, False), runtime.policy)


def learn(runtime: PolicyRuntime, request: LinkRequest, prefill: Prefill, knowledge: Knowledge) -> None:
    """Learn from a prompt that was just linked; its table is not kept.

    Args:
        runtime: the tenant's.
        request: what was linked, with the strategy that planned it.
        prefill: the result.
        knowledge: what it was planned with.
    """
    auto = request.strategy if isinstance(request.strategy, Auto) else Auto()
    plan, policy = prefill.plan, auto.policy or runtime.policy
    if not request.compared:
        for segment, chunk in request.prompt.chunk_segments:
            runtime.sightings.add((*request.prompt.antecedents(segment), chunk.id))
        if request.table is None:
            runtime.continuations.note(request.prompt)
    if policy.forming and auto.trial is None:
        _queue_patches(runtime, request, prefill, knowledge, policy)
    comparable = plan.decisions or plan.strategy in ("full", "prefix")
    if comparable and not request.compared and request.reused_rows == 0:
        runtime.comparisons.consider(prefill, knowledge.model, policy)


def do_idle_work(runtime: PolicyRuntime, link: Callable[[Prompt, Strategy], Prefill]) -> None:
    """Make chunks of media that came a second time, and compare the prompt that waits for it.

    Args:
        runtime: the tenant's.
        link: links a prompt again, to compare it.
    """
    make_media(runtime)
    if runtime.comparisons.waiting:
        with runtime.logs.changing(runtime.store.owner):
            runtime.comparisons.run(runtime.adapter.fingerprint, partial(_can_compare, runtime), link)


def make_media(runtime: PolicyRuntime) -> None:
    """Make chunks of media that came a second time."""
    if runtime.new_media.waiting:
        runtime.new_media.make(runtime.patch_worker.submit)


def _can_compare(runtime: PolicyRuntime, prompt: Prompt) -> bool:
    """Return whether no chunk of a prompt was deleted, and those taken as canonical are in the store.

    The pieces of a window are its own and never in the store.
    """
    store, parts = runtime.store, [part for part in prompt.chunk_parts if part.name]
    stored = [part.name for part in parts if part.state is RowState.CANONICAL]
    stored += [part.changed.base.id for part in parts if part.changed is not None]
    return not store.deleted(part.name for part in parts) and all(name in store for name in stored)


def _queue_patches(
    runtime: PolicyRuntime, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy
) -> None:
    """Queue patches of what was computed in context; those of media still to be made into chunks come after."""
    media, worker = runtime.new_media, runtime.patch_worker
    due = media.due(request.prompt, policy) if request.inline_media else {}
    later: list[PatchJob] = []
    for job in _patch_jobs(runtime, request, prefill, knowledge, policy, due):
        if due.keys().isdisjoint(job.key.chunks):
            worker.submit(job, policy)
        else:
            later.append(job)
    if request.inline_media:
        media.keep(due, later, prefill.trace.computed, policy)


def _patch_jobs(
    runtime: PolicyRuntime,
    request: LinkRequest,
    prefill: Prefill,
    knowledge: Knowledge,
    policy: Policy,
    due: Collection[str],
) -> Iterator[PatchJob]:
    """Yield a job for each chunk whose patch is worth forming; its rows are copied when the job is yielded.

    Such a chunk was computed in every layer, now or for an exact prefix, with all that precedes it in the table,
    and no patch of it is known.

    Args:
        due: ids of chunks that are not in the store, and will be by the time the patch is formed.
    """
    prompt, plan, linked = prefill.prompt, prefill.plan, prefill.linked
    adapter, store, worker = runtime.adapter, runtime.store, runtime.patch_worker
    if not (plan.strategy in ("full", "prefix") or plan.strategy.startswith("auto:")):
        return
    written = _written_in_context(plan)
    decisions = {decision.start: decision for decision in plan.decisions}
    held = linked.table.rows[: linked.rows].cpu()
    for (segment, chunk), part in zip(prompt.chunk_segments, prompt.chunk_parts, strict=True):
        leads = prompt.leads(segment, adapter.anchor)
        if leads or segment.start < request.reused_rows or not written[:, segment.start : segment.stop].all():
            continue
        canonical = chunk if chunk.id in due else _canonical(store, part)
        if canonical is None or runtime.sightings.count((*prompt.antecedents(segment), chunk.id)) < policy.sightings:
            continue
        key = ArtifactKey(chunk.model, canonical.id, prompt.antecedents(segment))
        if not all(name in due or name in store for name in key.antecedents):
            # The store keeps no patch of chunks that it does not have: media seen once, a window's own pieces.
            continue
        decision, rank = decisions.get(segment.start), rank_of(canonical, knowledge, policy)
        # `auto` found no patch that is large enough, though there may be one of lower rank.
        lacking = decision is not None and decision.lane is Lane.FULL
        slots = ((held >= segment.start) & (held < segment.stop)).nonzero().squeeze(1)
        if rank == 0 or len(slots) != chunk.tokens or not (lacking or not store.has_artifact(key)):
            continue
        size = chunk.tokens * adapter.dtype.itemsize * sum(layout.features for layout in adapter.layouts)
        # A rank that somebody chose or measured is not second-guessed.
        least_kept = 0.0 if policy.rank or knowledge.measured.plateau else policy.kept
        useless = worker.found_useless(store.owner, key, rank, least_kept)
        if useless or not worker.wants(store.owner, key, size, policy):
            continue
        yield PatchJob(
            store,
            key,
            canonical,
            linked.table.gather(slots),
            tuple(adapter.layouts),
            adapter.dtype,
            adapter.phases(canonical.encoded.positions),
            adapter.phases(prompt.positions[:, segment.start : segment.stop]),
            rank,
            least_kept,
        )


def _canonical(store: TenantStore, part: ChunkPart) -> Chunk | None:
    """Return the chunk with canonical rows of a part, if the store has it."""
    if not part.name or part.name not in store:
        return None
    return part.chunk if part.state is RowState.CANONICAL else store.find(part.name)


def _written_in_context(plan: LinkPlan) -> numpy.ndarray:
    """Return which rows are as the prompt's own forward makes them, [layers, rows]: computed, or of an exact prefix."""
    written = plan.sources() == 0
    for part in plan.ranges:
        if isinstance(part.origin, PrefixOrigin):
            written[slice(*part.layers), part.start : part.stop] = True
    return written
