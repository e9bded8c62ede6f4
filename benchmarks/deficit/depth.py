"""Where in the layers the deficit lives, and from how deep it has to be repaired (Kamera, section 4, C.3 and C.4)."""

from dataclasses import replace

from benchmarks.deficit.rank import relative
from benchmarks.deficit.subject import Case, CaseAnswer, Subject, in_context
from emblema.kv.artifacts import ResidualStream
from emblema.kv.layout import LayerRows
from emblema.kv.patch import deficit
from emblema.link.forming import form_residual
from emblema.link.plan import ChunkOrigin, ResidualUse, RowRange, RowSource
from emblema.link.prompt import Rows
from emblema.link.taken_rows import Resources
from emblema.store.keys import ArtifactKey, ArtifactKind


def depth_figures(subject: Subject) -> dict[str, float]:
    """Return the deficit's relative norm by layer and of its parts: conditioning, position with the opening text."""
    blocked, _, _ = in_context(subject.adapter, subject.front, subject.antecedents)
    figures: dict[str, float] = {}
    for layer, rows in enumerate(subject.conditioned):
        parts = {
            "deficit": subject.deficits[layer],
            "conditioning": deficit(rows, blocked[layer]),
            "position": deficit(blocked[layer], subject.canonical[layer]),
        }
        for name, delta in parts.items():
            figures |= {f"{name}/{slot}/{layer}": size for slot, size in relative(delta, rows).items()}
    return figures


def depth_answers(case: Case) -> dict[str, CaseAnswer]:
    """Answer with the deficit in one layer, in the deepest or the shallowest ones; with layers run again in context."""
    deficits, layers = case.subject.deficits, case.subject.layers
    found = {}
    for layer in range(layers):
        found[f"only layer/{layer}"] = case.ask([delta if at == layer else None for at, delta in enumerate(deficits)])
    for count in range(1, layers):
        found[f"deepest/{count}"] = case.ask(_from(deficits, layers - count, layers))
        found[f"shallowest/{count}"] = case.ask(_from(deficits, 0, count))
    if case.subject.adapter.supports_layerwise:
        for count in range(1, layers + 1):
            found[f"reprefill/{count}"] = reprefill_from(case, layers - count)
            found[f"reprefill shallow/{count}"] = _refreshed(case, count)
    return found


def reprefill_from(case: Case, cut: int) -> CaseAnswer:
    """Return the chunk run again in context from layer `cut` on, from the residual stream that it has alone."""
    subject = case.subject
    if cut == 0:
        return case.conditioned()
    key = _residual_key(subject, cut)
    return _begun(case, cut, key, form_residual(subject.adapter, key, subject.chunk))


def injected(case: Case) -> dict[str, float]:
    """Return how much of the last layer's deficit one layer's conditioning explains.

    The chunk enters a layer with its conditioned residual stream and runs on, blind to its antecedents. Explained is
    1 - |difference|² / |deficit|² of the last layer's keys and values together.
    """
    subject = case.subject
    if not subject.adapter.supports_layerwise:
        return {}
    found = {}
    target = subject.deficits[-1]
    whole = float(target.keys.square().sum() + target.values.square().sum())
    for layer in range(1, subject.layers):
        key = _residual_key(subject, layer)
        piece = conditioned_stream(subject, layer)
        rows = _begun(case, layer, key, piece, subject.antecedents, read=True).rows
        if rows is None or whole == 0:
            continue
        off = deficit(rows[-1], subject.conditioned[-1])
        found[f"injected/{layer}"] = 1 - float(off.keys.square().sum() + off.values.square().sum()) / whole
    return found


def conditioned_stream(subject: Subject, layer: int) -> ResidualStream:
    """Return the residual stream that enters a layer of the conditioned chunk."""
    return ResidualStream(subject.seen.streams[layer], layer, subject.layers)


def _residual_key(subject: Subject, layer: int) -> ArtifactKey:
    return ArtifactKey("deficit", subject.chunk.id, kind=ArtifactKind.RESIDUAL, layer=layer)


def _begun(
    case: Case, cut: int, key: ArtifactKey, piece: ResidualStream, hidden: tuple[Rows, ...] = (), *, read: bool = False
) -> CaseAnswer:
    subject = case.subject
    shallow = RowRange(*subject.segment.rows, RowSource.TAKEN, (0, cut), ChunkOrigin(subject.chunk.id))
    use = ResidualUse(key, subject.adapter.hidden_size)
    deep = RowRange(*subject.segment.rows, RowSource.COMPUTED, (cut, subject.layers), hidden=hidden, residual=use)
    return case.run([shallow, deep], Resources({key: piece}), read=read)


def _refreshed(case: Case, count: int) -> CaseAnswer:
    subject = case.subject
    shallow = RowRange(*subject.segment.rows, RowSource.COMPUTED, (0, count))
    deep = replace(
        shallow, source=RowSource.TAKEN, layers=(count, subject.layers), origin=ChunkOrigin(subject.chunk.id)
    )
    return case.run([shallow] if count == subject.layers else [shallow, deep])


def _from(deficits: tuple[LayerRows, ...], first: int, last: int) -> list[LayerRows | None]:
    return [delta if first <= layer < last else None for layer, delta in enumerate(deficits)]
