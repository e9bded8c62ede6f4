"""Fidelity of every method on `reference-hybrid`, with what its chunks take, as figures for the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.cost.states import SHAPES, layers_of, sizes_table
from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityOptions, FidelityRecord, FidelityRun, TaskSource
from benchmarks.fidelity.summary import rows_of
from benchmarks.figures import write_figures
from benchmarks.hybrids.hypic import SEAM
from benchmarks.recordfile import RecordFile
from benchmarks.tasks.prompts import SETTINGS, forget, pieces
from emblema.engine.engine import Engine
from emblema.kv.compact_map import CompactMap
from emblema.kv.layout import LayerLayout, LayerRows, MappedRows
from emblema.models.linear_attention import find_state_mixer, linear_layout

MODEL = "reference-hybrid"
HYPIC = f"hypic-{SEAM}"
STRATEGIES = (FULL, BLIND, "mpic-3", HYPIC, "patch-1", "patch-2", "patch-4", "query-10%", "auto")
KIND = "land"
"""The kind of question that needs two pictures."""
HALF, WHOLE = 2, 4
"""Bytes of a number in bfloat16, and in float32."""


def measure(items: int, seed: int, load: Callable[[str], Engine], listing: Path, screen: Console) -> dict[str, Any]:
    """Measure all methods on fresh items of `maps` and write the figures' file.

    The model computes in float32, and its chunks are kept as those of a model that computes in 16 bits. Records lie
    beside the file, and a killed run goes on from these.
    """
    with (
        load(MODEL) as engine,
        RecordFile(listing.with_suffix(".records.jsonl"), FidelityRecord) as records,
    ):
        keep_compact(engine)
        source = TaskSource("maps", kinds=(KIND,))
        bench = FidelityRun(engine, MODEL, FidelityOptions(STRATEGIES, SETTINGS, items, seed), records)
        bench.run([source], screen)
        held = [records.held[key] for key in dict.fromkeys(bench.made) if key in records.held]
        rows = rows_of(held)
        bytes_taken = chunk_bytes(engine, source, seed)
    found = {"seed": seed, "items": items, "refused": bench.refused, "bytes": bytes_taken, "rows": rows}
    found["shapes"] = shapes()
    write_figures(found, listing)
    return found


def keep_compact(engine: Engine) -> None:
    """Have maps of an engine's chunks kept in eight bits a number."""
    adapter = engine.adapter
    adapter.layouts = tuple(
        linear_layout(find_state_mixer(layer), torch.bfloat16) if layout.kind == "linear" else layout
        for layer, layout in zip(adapter.layers, adapter.layouts, strict=True)
    )


def shapes(tokens: int = 1000) -> list[dict[str, Any]]:
    """Return what a chunk takes at the shapes of published models, by the code's own counts; `whole MB` is HYPIC's."""
    rows = []
    for record in sizes_table().records:
        if record["tokens"] == tokens:
            shape = SHAPES[str(record["model"])]
            whole = 3 * shape.layers // 4 * state_numbers(layers_of(shape)[0]) * WHOLE
            rows.append({**record, "whole MB": whole / 1e6})
    return rows


def chunk_bytes(engine: Engine, source: TaskSource, seed: int) -> dict[str, int]:
    """Return the bytes that a map's chunk takes by method, with numbers of 16 bits unless the method has others."""
    item = next(source.first(seed, 1))
    made = pieces(engine, item)
    chunk, layouts = made[-1][0], engine.adapter.layouts
    attention = sum(layout.features * chunk.tokens for layout in layouts if layout.kind != "linear")
    found = {
        "tokens": chunk.tokens,
        "attention": HALF * attention,
        "rows": HALF * chunk.tokens * sum(layout.features for layout in layouts),
        BLIND: sum(bytes_kept(rows) for rows in chunk.rows),
        HYPIC: HALF * attention + WHOLE * sum(state_numbers(layout) for layout in layouts),
    }
    for rank in (1, 2, 4):
        patched = [layout for layout in layouts if layout.kind != "linear"]
        slots = [heads * width for layout in patched for heads, width in (layout.keys, layout.values)]
        found[f"patch-{rank}"] = found[BLIND] + HALF * sum(rank * (chunk.tokens + width) for width in slots)
    forget(engine, made)
    return found


def bytes_kept(rows: LayerRows) -> int:
    """Return the bytes of a layer's rows where numbers take 16 bits; heads that forget keep no operator."""
    held = HALF * (rows.keys.numel() + rows.values.numel())
    for each in rows.maps if isinstance(rows, MappedRows) else ():
        if isinstance(each, CompactMap):
            held += HALF * each.diagonal.numel()
            held += sum(part.nbytes for part in (each.own, each.decay, each.own_scales, each.decay_scales))
    return held


def state_numbers(layout: LayerLayout) -> int:
    """Return how many numbers a layer's state and its operator take whole; none where the layer keeps no state."""
    if layout.state is None:
        return 0
    return layout.state.heads * layout.state.key_width * (layout.state.key_width + layout.state.value_width)
