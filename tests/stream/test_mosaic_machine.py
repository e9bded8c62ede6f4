"""Any sequence of pushes and questions: every frame lies in one place, bytes add up, representatives are means."""

from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from PIL import Image

from emblema.kv.rotation import PhaseBook
from emblema.stream.features import frame_vectors
from emblema.stream.mosaic.clusters import variance_of
from emblema.stream.mosaic.level import SemanticLevel
from emblema.stream.mosaic.memory import Mosaic
from tests.engine.engines import engine
from tests.families import picture, words

NAME = "qwen2_5_vl"
QUESTION = tuple(words(4, 7).tolist())
SIZE = (28, 28)


def view(place: int, side: int) -> Image.Image:
    """Return one of the views of one of a few places."""
    return Image.blend(picture(*SIZE, seed=place), picture(*SIZE, seed=50 + side), 0.3)


class StreamMachine(RuleBasedStateMachine):
    """A clustered stream beside one that keeps everything."""

    @initialize(
        splitting=st.sampled_from(["deferred", "eager"]),
        retrieving=st.booleans(),
        positions=st.sampled_from(["native", "packed"]),
        tau=st.sampled_from([0.3, 0.5, 0.7]),
        waiting=st.integers(0, 3),
        parts=st.integers(1, 3),
        scoring=st.sampled_from(["pooled", "attention"]),
    )
    def open(
        self, splitting: Any, retrieving: bool, positions: Any, tau: float, waiting: int, parts: int, scoring: Any
    ) -> None:
        options: dict[str, Any] = {
            "window": 2, "block": 3, "sinks": 1, "budget": 5, "first": 4, "largest": 4, "waiting": waiting,
            "splitting": splitting, "prefetch": True, "retrieve_while_encoding": retrieving, "positions": positions,
            "tau_small": tau, "tau_large": tau, "parts": parts, "scoring": scoring,
        }  # fmt: skip
        self.stream = engine(NAME).stream("mosaic", template=False, **options)
        self.written: dict[int, list[torch.Tensor]] = {}

    @rule(seen=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=2, max_size=16), whole=st.booleans())
    def push(self, seen: list[tuple[int, int]], whole: bool) -> None:
        frames = [view(place, side) for place, side in seen]
        if whole:
            self.stream.push(frames)
        else:
            for frame in frames:
                self.stream.push(frame)

    @rule(window=st.sampled_from([None, 1, 4]), share=st.floats(0, 1))
    def ask(self, window: int | None, share: float) -> None:
        if self.stream.frames == 0 and self.stream.waiting == 0:
            return
        self.stream.advance()
        at = self.stream.log.times[int(share * (self.stream.frames - 1))]
        clusters = self.shape()
        first = self.stream.prefill(QUESTION, at=at, window=window)
        assert torch.isfinite(first).all()
        # A question does not change the stream; but a cut that was put off may be made for it.
        if self.shape() == clusters:
            assert self.stream.prefill(QUESTION, at=at, window=window).equal(first)

    def shape(self) -> list[list[int]]:
        parts = self.parts()
        layers = [] if parts is None else parts[0].layers
        return [sorted(layer.clusters) for layer in layers]

    def parts(self) -> tuple[Mosaic, Any] | None:
        if not hasattr(self, "stream") or not self.stream.frames:
            return None
        assert isinstance(self.stream.memory, Mosaic)
        return self.stream.memory, self.stream.recent

    @invariant()
    def every_frame_lies_in_one_place(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, recent = parts
        near = {int(frame) for frame in recent.frames if frame >= 0} | set(range(recent.done, recent.count))
        for level in (memory.visual, *memory.layers):
            far = sorted(frame for cluster in level.clusters.values() for frame in cluster.frames)
            assert sorted([*far, *near]) == list(range(self.stream.frames))

    @invariant()
    def semantic_clusters_lie_in_visual_ones(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, _ = parts
        homes = {frame: cluster.id for cluster in memory.visual.clusters.values() for frame in cluster.frames}
        for layer in memory.layers:
            for cluster in layer.clusters.values():
                assert {homes[frame] for frame in cluster.frames} == {cluster.group}

    @invariant()
    def representatives_are_means(self) -> None:
        if (parts := self.parts()) is None:
            return
        for layer in parts[0].layers:
            for cluster in layer.clusters.values():
                vectors = layer.vectors.of(cluster.frames)
                torch.testing.assert_close(layer.index.mean(cluster.id), vectors.mean(0), rtol=1e-4, atol=1e-4)
                wide = variance_of(vectors[:, : layer.width])
                assert abs(cluster.variance - wide) <= 1e-3 * (1 + wide)

    @invariant()
    def members_lie_in_their_block_or_wait(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, _ = parts
        for layer, layout in zip(memory.layers, engine(NAME).adapter.layouts, strict=True):
            self.members(layer, layout, memory)

    def members(self, layer: SemanticLevel, layout: Any, memory: Mosaic) -> None:
        held = 0
        for cluster in layer.clusters.values():
            waits = cluster.frames[0] in layer.waiting
            assert waits != (cluster.id in layer.store)
            if waits:
                assert len(cluster.frames) == 1
                lines = layer.waiting[cluster.frames[0]][None]
            else:
                lines = layer.store.copy(cluster.id, torch.device("cpu"))
                held += lines.nbytes
            assert len(lines) == len(cluster.frames)
            # The rows are those of the frames: their vectors come out of them again.
            positions = memory.positions.written(torch.tensor(cluster.frames))
            book = PhaseBook(memory.adapter.tables, positions)
            vectors = frame_vectors(layer.store.rows(lines), layout, book, memory.positions.tokens, layer.parts)
            torch.testing.assert_close(vectors, layer.vectors.of(cluster.frames), rtol=1e-4, atol=1e-4)
        assert held <= layer.store.bytes
        if memory.constructed:
            assert len(layer.waiting) <= memory.settings.ablation.waiting

    @invariant()
    def clusters_that_wait_and_their_parents_know_each_other(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, _ = parts
        for level in (memory.visual, *memory.layers):
            for cluster in level.clusters.values():
                assert cluster.lazy == bool(cluster.waiting)
                assert all(level.clusters[id].parent == cluster.id for id in cluster.waiting)
                assert cluster.parent is None or cluster.id in level.clusters[cluster.parent].waiting

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.stream.close()


StreamMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
TestStream = StreamMachine.TestCase
