"""Forming a patch over its chunk's prefill, and after how many reuses it has paid (Kamera, section C.6)."""

from collections.abc import Sequence
from functools import partial

from benchmarks.cost.placing import PlaceCase, PlaceRing
from benchmarks.cost.subject import BEFORE, QUESTION, CostPrompt, CostSubject
from benchmarks.cost.timing import Pace, interleaved, untimed
from benchmarks.table import Bar, Cell, Table
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.session.patch_worker import PatchJob
from emblema.store.keys import ArtifactKey

STRATEGIES = ("patch-25%", "patch-32")
BAR_FORM, BAR_REUSES = 0.3, 1.0
COPY_PAYLOAD = 2**26


def form_job(subject: CostSubject, prompt: CostPrompt, rank: int) -> PatchJob:
    """Return the forming of the last chunk's patch, from rows of the prompt's own full prefill."""
    adapter, chunk = subject.adapter, prompt.chunks[-1]
    prefill = subject.engine.prefill(prompt.parts, "full", template=False)
    segment = next(segment for segment, other in prompt.prompt.chunk_segments if other.id == chunk.id)
    rows = tuple(
        LayerRows(
            layer.keys[:, segment.start : segment.stop].clone(), layer.values[:, segment.start : segment.stop].clone()
        )
        for layer in prefill.kv
    )
    return PatchJob(
        subject.engine.store,
        ArtifactKey(chunk.model, chunk.id, tuple(other.id for other in prompt.chunks[:-1])),
        chunk,
        rows,
        tuple(adapter.layouts),
        adapter.dtype,
        adapter.phases(chunk.encoded.positions),
        adapter.phases(prompt.prompt.positions[:, segment.start : segment.stop]),
        rank,
    )


def true_chunks(subject: CostSubject, prompt: CostPrompt) -> CostPrompt:
    """Return a prompt with its chunks' rows prefilled alone, in no store: patches are of what is missing."""
    chunks = {
        chunk.id: Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, subject.adapter.capture(chunk.encoded))
        for chunk in prompt.chunks
    }
    parts = tuple(chunks[part.id] if isinstance(part, Chunk) else part for part in prompt.parts)
    return CostPrompt(parts, tuple(chunks.values()), subject.laid_out(parts))


def form_table(subject: CostSubject, lengths: Sequence[int], pace: Pace) -> Table:
    """Return the cost of forming by length and rank, and the reuses after which it has paid."""
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for tokens in lengths:
        prepared, _ = subject.media(tokens)
        for strategy in STRATEGIES:
            with subject.prompt(2 * tokens + BEFORE + QUESTION, 2) as kept:
                prompt = true_chunks(subject, kept)
                rank = subject.rank(strategy, tokens)
                job = form_job(subject, prompt, rank)
                ring = PlaceRing(subject, PlaceCase(tokens, 1, rank), COPY_PAYLOAD)
                found = interleaved(
                    {
                        "form": untimed(job.form),
                        "alone": untimed(subject.adapter.capture, prompt.chunks[-1].encoded),
                        "conditioned": partial(subject.link, kept, "full"),
                        "encode": untimed(subject.adapter.encode, prepared),
                        "place": ring.place,
                    },
                    subject.device,
                    pace,
                )
            form, alone, conditioned, encode, place = (
                found.median(name) for name in ("form", "alone", "conditioned", "encode", "place")
            )
            saved, whole = max(alone - place, 0.0), max(encode + alone - place, 0.0)
            after = [cost / gain if gain else None for cost, gain in
                     ((form + conditioned, saved), (form + conditioned, whole), (form, saved))]  # fmt: skip
            rows.append(
                (tokens, strategy, rank, 1e3 * form, found.ratio("form", "alone"), 1e3 * alone, 1e3 * encode,
                 1e3 * place, *after, found.count)
            )  # fmt: skip
            if strategy == STRATEGIES[0]:
                bars += [
                    Bar(f"forming {strategy} of {tokens:,} rows over their prefill", form / alone, BAR_FORM, False),
                    Bar(f"reuses until {strategy} of {tokens:,} rows has paid (C)", after[2],
                        BAR_REUSES, False),
                ]  # fmt: skip
    return Table(
        "form",
        "Forming a patch, and the reuses until it has paid",
        "A chunk after another one of as many rows, its canonical and conditioned rows computed by the model. over "
        "prefill: over prefilling the chunk alone. Reuses until the forming has paid, a reuse saving a prefill of the "
        "chunk less its placing: A, the conditioned forward and the forming (Kamera C.6, against a prefill a reuse); "
        "B, the same where a reuse saves the encoder's run too (C.6, against full recompute); C, the forming alone, "
        "from the rows of a prefill that happened anyway, as `auto` does it. Empty where a reuse saves nothing.",
        (
            "rows",
            "patch",
            "rank",
            "form ms",
            "over prefill",
            "prefill ms",
            "encode ms",
            "place ms",
            "A",
            "B",
            "C",
            "rounds",
        ),
        tuple(rows),
        bars=tuple(bars),
    )
