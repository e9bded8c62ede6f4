"""Centroids that are seen in place of their members: weighted by their rows, and no row twice."""

from typing import Any

import pytest
import torch

from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook, rotate
from emblema.stream.context import MemoryContext
from emblema.stream.method import Centroids, Query, Selection, VisibleRange
from emblema.stream.mosaic.memory import Mosaic
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {
    "window": 2,
    "block": 4,
    "sinks": 1,
    "first": 6,
    "largest": 4,
    "budget": 4,
    "template": False,
    "representatives": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("high", [27, 12])
@pytest.mark.parametrize("low", [0, 5])
def test_no_frame_is_seen_twice_and_none_is_missing(low: int, high: int) -> None:
    with engine(NAME).stream(**SMALL) as stream:
        stream.push(shown(NAME, 27))
        stream.advance()
        recent, memory = stream.recent, stream.memory
        assert isinstance(memory, Mosaic)
        far = sorted(frame for cluster in memory.visual.clusters.values() for frame in cluster.frames)
        near = {int(frame) for frame in recent.frames if frame >= 0}
        for layer, level in enumerate(memory.layers):
            states = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(layer))
            visible = VisibleRange(low, high, max(low, high - 2))
            memory.prepare(visible)
            found = memory.read(layer, Query(states, torch.zeros(3).long(), 1, 2, "question"), visible)
            assert found.rows is not None and found.centroids is not None
            rows = found.rows.frames if found.shown is None else found.rows.frames[found.shown[0]]
            seen = rows.unique().tolist()
            assert len(rows) == len(seen) * recent.positions.tokens
            ids = level.index.ids
            for slot in found.centroids.shown[0].nonzero().squeeze(1).tolist():
                seen += level.clusters[ids[slot]].frames
            assert len(seen) == len(set(seen))
            assert all(low <= frame < high for frame in seen)
            # Where part of a cluster is out of sight, its centroid is too.
            if (low, high) == (0, 27):
                assert sorted(seen) == far
            assert not near & set(seen)
            assert set(range(max(low, high - 2), high)) <= set(seen) | near | set(range(recent.done, recent.count))


def test_a_centroid_of_equal_rows_counts_as_all_of_them() -> None:
    """Five members with the same key, value and place: one row with the log of their number is the same attention."""
    made = engine(NAME)
    layout, adapter = made.adapter.layouts[0], made.adapter
    with made.stream(**SMALL) as stream:
        stream.push(shown(NAME, 4))
        recent, memory = stream.recent, stream.memory
    places = recent.positions
    heads, width = layout.keys
    keys, values = torch.randn(2, heads, 1, width).unbind()
    count = 5 * places.tokens
    visible = torch.ones(1, 1, dtype=torch.bool)
    centroids = Centroids(keys, values, torch.tensor([3.0]), torch.tensor([count]).log(), visible)
    context = MemoryContext(memory, recent, VisibleRange(0, 4, 4), 99, question=True)
    part = context.place(layout, Selection(centroids=centroids))[0]
    others = LayerRows(torch.randn(heads, 7, width), torch.randn(heads, 7, width))
    query = torch.randn(heads, 2, width)

    def attended(rows: list[LayerRows], bias: torch.Tensor) -> torch.Tensor:
        every = [torch.cat([getattr(part, side) for part in rows], 1) for side in ("keys", "values")]
        return torch.nn.functional.scaled_dot_product_attention(query, every[0], every[1], attn_mask=bias)

    once = attended([part.rows, others], torch.cat((part.bias, torch.zeros(1, 7)), 1))
    several = attended([part.rows] * count + [others], torch.zeros(1, count + 7))
    torch.testing.assert_close(once, several, rtol=1e-4, atol=1e-5)
    # It is in the middle of frame 3.
    assert layout.rotary is not None
    middle = places.corner(3) + places.offsets.float().mean(1).floor().long()
    book = PhaseBook(adapter.tables, middle[:, None])
    torch.testing.assert_close(part.rows.keys, rotate(keys, layout.rotary, book(layout.rotary)))


@pytest.mark.slow
def test_each_part_can_be_left_out() -> None:
    """Representatives, their weight, retrieval while encoding and what scores clusters each change the answer."""
    answers = {}
    for name in ("none", "representatives", "weighted", "retrieve_while_encoding", "attention", "frames"):
        options: dict[str, Any] = {
            "representatives": name in ("representatives", "weighted"),
            "weighted": name == "weighted",
        }
        options["retrieve_while_encoding"] = name == "retrieve_while_encoding"
        if name != "frames":
            options |= {"retrieval": "clusters", "scoring": "attention" if name == "attention" else "pooled"}
        with engine(NAME).stream(**{**SMALL, **options}) as stream:
            stream.push(shown(NAME, 27))
            answers[name] = stream.prefill(QUESTION)
    for name in ("representatives", "retrieve_while_encoding", "attention", "frames"):
        assert largest_error(answers[name], answers["none"]) > 1e-3
    assert largest_error(answers["weighted"], answers["representatives"]) > 1e-3
