"""Forming a patch over its chunk's prefill, and after how many reuses it has paid (Kamera, section C.6)."""

from collections.abc import Sequence
from functools import partial

from benchmarks.cost.placing import PlaceCase, PlaceRing
from benchmarks.cost.subject import BEFORE, QUESTION, CostPrompt, CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerRows
from emblema.session.patch_worker import PatchJob

STRATEGY = "patch-25%"
BAR_FORM, BAR_REUSES = 0.3, 1.0
COPY_PAYLOAD = 2**26


def form_job(subject: CostSubject, kept: CostPrompt, rank: int) -> PatchJob:
    """Return the forming of the last chunk's patch, from rows of the prompt's own full prefill.

    Rows alone and in context are both computed by the model: patches are of what is missing.
    """
    adapter, chunks = subject.adapter, {}
    for chunk in kept.chunks:
        rows = adapter.capture(chunk.encoded)
        chunks[chunk.id] = Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, rows)
    parts = tuple(chunks[part.id] if isinstance(part, Chunk) else part for part in kept.parts)
    prompt = subject.laid_out(parts)
    segment, chunk = prompt.chunk_segments[-1]
    first, last = segment.start, segment.stop
    prefill = subject.engine.prefill(parts, "full", template=False)
    return PatchJob(
        subject.engine.store,
        ArtifactKey(chunk.model, chunk.id, tuple(other.id for other in kept.chunks[:-1])),
        chunk,
        tuple(LayerRows(kv.keys[:, first:last].clone(), kv.values[:, first:last].clone()) for kv in prefill.kv),
        tuple(adapter.layouts),
        adapter.dtype,
        adapter.phases(chunk.encoded.positions),
        adapter.phases(prompt.positions[:, first:last]),
        rank,
    )


def form_table(subject: CostSubject, lengths: Sequence[int], pace: Pace) -> Table:
    """Return the cost of forming by length, and the reuses after which it has paid."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for tokens in lengths:
        with subject.prompt(2 * tokens + BEFORE + QUESTION, 2) as kept:
            rank = subject.rank(STRATEGY, tokens)
            job = form_job(subject, kept, rank)
            actions: dict[str, Action] = {
                "form": job.form,
                "alone": partial(subject.adapter.capture, job.chunk.encoded),
                "conditioned": partial(subject.link, kept, "full"),
                "encode": partial(subject.adapter.encode, subject.media(tokens)),
                "place": PlaceRing(subject, PlaceCase(tokens, 1, rank), COPY_PAYLOAD).place,
            }
            found = interleaved(actions, subject.device, pace)
        form, alone, conditioned, encode, place = map(found.median, actions)
        saved, whole = max(alone - place, 0.0), max(encode + alone - place, 0.0)
        costs = ((form + conditioned, saved), (form + conditioned, whole), (form, saved))
        after = [cost / gain if gain else None for cost, gain in costs]
        rows.append((tokens, 1e3 * form, found.ratio("form", "alone"), *after))
        name = f"{STRATEGY} of {tokens:,} rows"
        bars.append(Bar(f"forming {name} over their prefill", form / alone, BAR_FORM, False))
        bars.append(Bar(f"reuses until {name} has paid (C)", after[2], BAR_REUSES, False))
    return Table(
        "form",
        f"Forming {STRATEGY}, and the reuses until it has paid",
        "Reuses that pay A: the conditioned forward and the forming; B: that, the encoder saved too; C: the forming.",
        ("rows", "form ms", "over prefill", "A", "B", "C"),
        tuple(rows),
        bars=tuple(bars),
    )
