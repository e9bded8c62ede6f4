"""Parts whose rows a window wrote, and parts that have none yet, on every family."""

from dataclasses import replace

import pytest

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.executor import LinkedTable
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.session.requests import LinkRequest
from tests.engine.engines import engine, largest_error, two_pages
from tests.families import NAMES


def _changed(prompt: Prompt, changes: dict[int, ChunkPart]) -> Prompt:
    segments = tuple(replace(one, part=changes.get(index, one.part)) for index, one in enumerate(prompt.segments))
    return Prompt(segments, prompt.axes, prompt.next_position)


def _written(name: str, linked: LinkedTable, segment: Segment, chunk: Chunk) -> Chunk:
    rows = (linked.table.read(layer, *segment.rows) for layer in range(len(engine(name).adapter.layouts)))
    kept = tuple(LayerRows(one.keys.clone(), one.values.clone()) for one in rows)
    return Chunk(f"{segment.start:064x}", chunk.kind, chunk.model, chunk.encoded, kept, base=segment.position)


@pytest.mark.parametrize("name", NAMES)
def test_fresh_parts_are_computed_in_their_place(name: str) -> None:
    prompt = two_pages(name)
    full = engine(name).session.link(LinkRequest(prompt, "full")).linked
    fresh = {
        index: ChunkPart(replace(segment.part.chunk, rows=()), state=RowState.MISSING)
        for index, segment in enumerate(prompt.segments)
        if isinstance(segment.part, ChunkPart)
    }
    for strategy in ("blind", "patch-25%"):
        outcome = engine(name).session.link(LinkRequest(_changed(prompt, fresh), strategy))
        assert outcome.usage.forming_tokens == 0
        assert outcome.linked.trace.computed == prompt.tokens
        assert largest_error(outcome.linked.logits, full.logits) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_settled_parts_are_taken_as_they_were_written(name: str) -> None:
    # From a first position of its own: rows are as first written, wherever that was.
    prompt = two_pages(name, shift=3)
    full = engine(name).session.link(LinkRequest(prompt, "full")).linked
    settled = {
        index: ChunkPart(
            _written(name, full, segment, segment.part.chunk), state=RowState.WRITTEN, source=segment.part.name
        )
        for index, segment in enumerate(prompt.segments)
        if isinstance(segment.part, ChunkPart)
    }
    elsewhere = replace(two_pages(name), segments=_changed(two_pages(name), settled).segments)
    assert elsewhere.antecedents(elsewhere.segments[-1]) == prompt.antecedents(prompt.segments[-1])
    for strategy in ("blind", "patch-25%"):
        outcome = engine(name).session.link(LinkRequest(elsewhere, strategy))
        assert outcome.usage.forming_tokens == 0
        assert outcome.linked.trace.computed == sum(stop - start for start, stop in prompt.text_rows)
        # Both prompts are the same but for their first position, to which the model is blind.
        assert largest_error(outcome.linked.logits, full.logits) < 1e-4
    blind = engine(name).session.link(LinkRequest(two_pages(name), "blind")).linked
    assert largest_error(blind.logits, full.logits) > 1e-4
