"""What a plan asks for and the store lacks: made by as few forwards as it takes, handed on, and kept."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from emblema.errors import PlanError
from emblema.kv.artifacts import Artifact, KeyFactors, ResidualStream
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch, deficit, factor, form_patch
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.assemble import ModelGeometry, Resources
from emblema.link.directions import on_directions, pooled_directions
from emblema.link.executor import Executor
from emblema.link.findings import LinkContext
from emblema.link.orderings import averaged, mean_deficits, orderings
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import computed
from emblema.models.adapter import Adapter
from emblema.models.table import KVTable
from emblema.store.keys import ArtifactKind, PatchKey

Need = tuple[int, Collection[int]]
Deficits = list[LayerRows | None]


class RowSource(Protocol):
    """Where conditioned rows are read: a table, or rows that another engine's pages gave."""

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows: ...


def form_missing(
    executor: Executor,
    prompt: Prompt,
    plan: LinkPlan,
    findings: LinkContext,
    keep: Callable[[PatchKey, Artifact], object],
) -> int:
    """Form what the plan lists, add it to the findings and have it kept.

    Args:
        keep: called with each artifact.

    Returns:
        The rows that were run.
    """
    conditioned: dict[PatchKey, Need] = {}
    made: dict[PatchKey, Artifact] = {}
    rows = 0
    for key in plan.forming:
        ran = 0
        if key.kind is ArtifactKind.RESIDUAL:
            chunk = _chunk(prompt, key)
            made[key], ran = form_residual(executor.adapter, key, chunk), chunk.tokens
        elif key.kind is ArtifactKind.KEYS:
            chunk = _chunk(prompt, key)
            rank = _need(plan, key, findings.artifact(key))[0]
            made[key] = form_key_factors(executor.adapter, chunk, findings.resources.chunk_rows(chunk), rank)
        elif key.orbit:
            need = _need(plan, key, findings.artifact(key))
            made[key], ran = _form_orbit(executor, prompt, key, need, findings.resources)
        else:
            conditioned[key] = _need(plan, key, findings.artifact(key))
        rows += ran
    if conditioned:
        formed, ran = form_patches(executor, prompt, conditioned, findings.resources, findings)
        made |= formed
        rows += ran
    findings.add(made)
    for key, artifact in made.items():
        keep(key, artifact)
    return rows


def form_residual(adapter: Adapter, key: PatchKey, chunk: Chunk) -> ResidualStream:
    """Return the residual stream that enters the layer of a RESIDUAL key, from one run of the layers below it.

    Like the canonical KV it belongs to the chunk whatever is before it.

    Raises:
        PlanError: the key names no layer.
    """
    if key.layer is None:
        raise PlanError(f"the {key} names no layer")
    return ResidualStream(adapter.residual(chunk.encoded, key.layer), key.layer, len(adapter.layouts))


def form_key_factors(adapter: Adapter, chunk: Chunk, rows: KVRows, rank: int) -> KeyFactors:
    """Return factors of the position-free keys (MLA: the latent) of every layer. No forward runs."""
    source = PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))
    layers = []
    for index, layout in enumerate(adapter.layouts):
        keys = unplace(rows[index].to(adapter.device), layout, source).keys
        layers.append(factor(keys, rank, adapter.dtype))
    return KeyFactors(tuple(layers))


def form_patches(
    executor: Executor,
    prompt: Prompt,
    wanted: Mapping[PatchKey, Need],
    resources: Resources,
    findings: LinkContext | None = None,
) -> tuple[dict[PatchKey, Patch], int]:
    """Form the patches of a prompt's chunks from one forward over it, up to the last chunk wanted (Kamera, appendix A).

    Args:
        wanted: for each key, the rank and the layers to patch. One of the kind BASIS is cut to directions pooled
            over other items, and the item's own patch is formed beside it, as its share in later pools.
        resources: where the chunks' canonical rows are.
        findings: knows the other items' patches; only asked for keys of the kind BASIS.

    Returns:
        The patches by key, and the rows that were run.
    """
    adapter = executor.adapter
    places: dict[PatchKey, tuple[Segment, Chunk]] = {}
    for segment, chunk in prompt.chunk_segments:
        for key in wanted:
            if (key.chunk, key.antecedents) == (chunk.id, prompt.antecedents(segment)):
                places.setdefault(key, (segment, chunk))
    part = prompt.until(max(segment.stop for segment, _ in places.values()))
    table = conditioned_table(executor, part)
    patches: dict[PatchKey, Patch] = {}
    for key, (segment, chunk) in places.items():
        rank, layers = wanted[key]
        deficits = deficits_of(adapter, table, part, segment, (chunk, resources.chunk_rows(chunk)), set(layers))
        own = PatchKey(key.model, key.chunk, key.antecedents)
        if own == key:
            patches[key] = form_patch(deficits, rank, adapter.dtype)
            continue
        if findings is None:
            raise PlanError(f"the {key} needs the patches of other items")
        patches[key] = on_directions(deficits, pooled_directions(findings.others(key), rank), adapter.dtype)
        if own not in wanted and findings.artifact(own) is None:
            patches[own] = form_patch(deficits, rank, adapter.dtype)
    return patches, part.tokens


def conditioned_table(executor: Executor, prompt: Prompt) -> KVTable:
    """The table of a prompt with every row computed, slid chunks still in it."""
    layers = len(executor.adapter.layouts)
    plan = LinkPlan("forming", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    return executor.run(plan, prompt, Resources({}, {})).table


def deficits_of(
    adapter: ModelGeometry,
    table: RowSource,
    prompt: Prompt,
    segment: Segment,
    canonical: tuple[Chunk, KVRows],
    layers: Collection[int],
) -> Deficits:
    """A chunk's deficits (Kamera, equation 2), position-free, from a table of the prompt; None beside `layers`."""
    chunk, rows = canonical
    source = PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))
    target = PhaseBook(adapter.tables, prompt.positions[:, segment.start : segment.stop].to(adapter.device))
    deficits: Deficits = []
    for index, layout in enumerate(adapter.layouts):
        if index not in layers:
            deficits.append(None)
            continue
        conditioned = unplace(table.read(index, segment.start, segment.stop), layout, target)
        deficits.append(deficit(conditioned, unplace(rows[index].to(adapter.device), layout, source)))
    return deficits


def _form_orbit(
    executor: Executor, prompt: Prompt, key: PatchKey, need: Need, resources: Resources
) -> tuple[Patch, int]:
    """One patch of the mean deficit over the orderings of the antecedents, the prompt's own held out."""
    adapter = executor.adapter
    segment, chunk = next(
        (segment, chunk)
        for segment, chunk in prompt.chunk_segments
        if chunk.id == key.chunk and averaged(key, prompt.antecedents(segment))
    )
    rank, layers = need
    rows = 0
    every: list[Deficits] = []
    for one in orderings(prompt, segment):
        table = conditioned_table(executor, one)
        canonical = (chunk, resources.chunk_rows(chunk))
        every.append(deficits_of(adapter, table, one, one.segments[-1], canonical, set(layers)))
        rows += one.tokens
    return form_patch(mean_deficits(every), rank, adapter.dtype), rows


def _need(plan: LinkPlan, key: PatchKey, held: Artifact | None) -> Need:
    """The rank and layers to form: what the plan asks for, and no less than what is held already."""
    rank, layers = plan.patch_need(key)
    if isinstance(held, KeyFactors):
        rank = max(rank, held.rank)
    elif isinstance(held, Patch):
        rank = max(rank, held.rank)
        layers |= {index for index, layer in enumerate(held.layers) if layer is not None}
    return rank, layers


def _chunk(prompt: Prompt, key: PatchKey) -> Chunk:
    found = next((chunk for _, chunk in prompt.chunk_segments if chunk.id == key.chunk), None)
    if found is None:
        raise PlanError(f"the plan asks for the {key}, a chunk that the prompt does not hold")
    return found
