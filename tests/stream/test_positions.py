"""Packed positions: what is seen is next to one another, and the stream stays in the model's range."""

from typing import Any

import pytest
import torch

from benchmarks.stream.methods.full import FullAttention
from emblema.errors import CapacityError, StreamError
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook, relocate
from emblema.models.batch import RowBatch
from emblema.stream.method import Method
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import shown

QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 4, "block": 4, "sinks": 1, "template": False}


def logits(name: str, method: type[Method], count: int, **changes: Any) -> torch.Tensor:
    with engine(name).stream(method, **{**SMALL, **changes}) as stream:
        stream.push(shown(name, count))
        return stream.prefill(QUESTION)


def test_a_stream_that_fits_is_as_it_came() -> None:
    """As long as everything can be seen at once, packing moves nothing."""
    packed = logits("qwen2_5_vl", Method, 8, positions="packed")
    assert packed.equal(logits("qwen2_5_vl", Method, 8, positions="native"))


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "kimi_k25_yarn"])
def test_a_window_far_out_comes_right_after_the_sinks(name: str) -> None:
    """Rows as first written, turned by hand to where packing sets them, and the stock forward of the question."""
    made, budget = engine(name), 3
    with made.stream(Method, **{**SMALL, "positions": "packed", "budget": budget}) as stream:
        stream.push(shown(name, 26))
        found = stream.prefill(QUESTION)
        recent, turn = stream.recent, stream.turn
        adapter, opening = made.adapter, len(turn.opening)
        places = recent.positions
        tokens, span = places.tokens, places.span
        closing = turn.question(QUESTION).token_ids
        # The sink, four frames of the window and two of the block under way; the question after 1 + 3 + 4 + 2 places.
        end = opening + (1 + budget + 4 + 2) * span
        frames = [0, *range(20, 26)]
        corners = [opening, *(end - (6 - index) * span for index in range(6))]
        table = adapter.table(1)
        total = opening + len(frames) * tokens
        table.allocate(torch.arange(total))
        written = recent.rows(0).positions
        target = torch.cat([written[:, :opening], *(places.offsets + corner for corner in corners)], dim=1)
        for layer, layout in enumerate(adapter.layouts):
            rows = recent.kv(layer)
            moved = relocate(rows, layout, PhaseBook(adapter.tables, written), PhaseBook(adapter.tables, target))
            table.write(layer, slice(0, total), LayerRows(moved.keys, moved.values))
        text = adapter.encode_text(torch.tensor(closing))
        slots = torch.arange(total, total + text.tokens)
        table.allocate(slots)
        hidden = adapter.forward(RowBatch(text.embeds, text.positions + end, slots, text.visual), table)
        assert largest_error(found, adapter.logits(hidden)[-1]) < 1e-4


def test_a_long_stream_stays_in_range() -> None:
    """The native stream runs out of the model's context; the packed one does not notice its length."""
    made = engine("llava")
    options = {**SMALL, "window": 2, "budget": 2}
    length, frames = made.adapter.context_length, shown("llava", 2)
    with made.stream(Method, **{**options, "positions": "packed"}) as stream:
        stream.push(frames)
        stream.advance()
        places = stream.recent.positions
    far = 100 * length
    assert places.corner(far) <= places.corner(1 + 2 + 2 + 4)
    with made.stream(Method, **options) as stream:
        stream.push(frames)
        stream.advance()
        span = stream.recent.positions.span
        with pytest.raises(CapacityError, match="positions='packed'"):
            stream.push(frames * (length // span))
        # None of them was taken, and what was seen can be asked about.
        assert stream.frames == 2 and stream.waiting == 0
        assert torch.isfinite(stream.prefill(QUESTION)).all()


def test_rows_of_more_frames_than_there_is_room_for_share_places() -> None:
    with engine("llava").stream(Method, **{**SMALL, "positions": "packed", "budget": 3}) as stream:
        stream.push(shown("llava", 4))
        places = stream.recent.positions
    end = places.corner(1000)
    room = (end - places.opening) // places.span - places.sinks
    for count in (room, 2 * room + 1):
        frames = torch.arange(50, 50 + count)
        corners = places.pack(places.corners(frames)[None], frames, end)[0]
        assert corners[-1] == end - places.span and corners[0] == end - room * places.span
        assert (corners.diff() >= 0).all() and (corners.diff() <= places.span).all()


def test_packing_needs_an_end() -> None:
    with pytest.raises(StreamError, match="'full' sees everything"):
        engine("llava").stream(FullAttention, positions="packed")
    with pytest.raises(StreamError, match="need a budget"):
        engine("llava").stream(Method, positions="packed", budget=None)
