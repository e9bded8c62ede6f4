"""Any sequence of pushes and questions: every frame lies in one place, bytes add up, statistics hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from PIL import Image

from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook
from emblema.stream.features import mean_keys
from emblema.stream.method import EvictedFrames
from emblema.stream.mosaic.clusters import variance_of
from emblema.stream.mosaic.level import ClusterLevel
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
        retrieval=st.sampled_from(["frames", "clusters"]),
        geometry=st.sampled_from(["euclidean", "cosine"]),
        representatives=st.booleans(),
        parts=st.integers(1, 3),
        scoring=st.sampled_from(["pooled", "attention"]),
        clusters=st.sampled_from([None, 2, 5, 9]),
    )
    def open(
        self, splitting: Any, retrieving: bool, positions: Any, tau: float, parts: int, scoring: Any, retrieval: Any,
        geometry: Any, representatives: bool, clusters: int | None,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {
            "window": 2, "block": 3, "sinks": 1, "budget": 5, "first": 4, "largest": 4, "pool": 1.5,
            "splitting": splitting, "prefetch": True, "retrieve_while_encoding": retrieving, "positions": positions,
            "tau_small": tau, "tau_large": tau, "parts": parts, "scoring": scoring if retrieval == "clusters" else None,
            "retrieval": retrieval, "geometry": geometry, "representatives": representatives,
            "clusters": clusters,
        }  # fmt: skip
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Mosaic, "admit", self.record(Mosaic.admit))
        self.stream = engine(NAME).stream("mosaic", template=False, **options)

    def levels(self, memory: Mosaic) -> list[ClusterLevel]:
        return [memory.visual, *memory.layers]

    def record(self, admit: Callable[[Mosaic, EvictedFrames], None]) -> Callable[[Mosaic, EvictedFrames], None]:
        """Return `admit` with a copy of each layer's rows kept in `admitted`; no level has too many clusters then."""
        self.admitted: list[tuple[LayerRows, ...]] = []

        def recorded(memory: Mosaic, evicted: EvictedFrames) -> None:
            self.admitted.append(tuple(LayerRows(own.keys.clone(), own.values.clone()) for own in evicted.layers))
            admit(memory, evicted)
            most = memory.settings.ablation.clusters
            if most is not None and memory.constructed:
                assert all(len(level.clusters) <= most for level in self.levels(memory))

        return recorded

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
        levels = [] if parts is None else self.levels(parts[0])
        return [sorted(level.clusters) for level in levels]

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
        for level in self.levels(memory):
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
    def statistics_are_those_of_the_members(self) -> None:
        if (parts := self.parts()) is None:
            return
        for level in self.levels(parts[0]):
            for cluster in level.clusters.values():
                vectors = level.vectors_of(cluster.frames)
                torch.testing.assert_close(level.index.mean(cluster.id), vectors.mean(0), rtol=1e-4, atol=1e-4)
                wide = variance_of(vectors)
                assert abs(cluster.variance - wide) <= 1e-3 * (1 + wide)

    @invariant()
    def rows_are_those_of_the_frames(self) -> None:
        """Rows are those admitted, to the bit; the keys that frames are retrieved by are theirs, but for eight bits."""
        if (parts := self.parts()) is None or not (frames := parts[0].frames):
            return
        memory, _ = parts
        numbers = torch.arange(frames.start, frames.stop)
        book = PhaseBook(memory.adapter.tables, memory.positions.written(numbers))
        for index, layout in enumerate(engine(NAME).adapter.layouts):
            keys, store = memory.keys[index], memory.stores[index]
            assert (keys.first, keys.count) == (frames.start, len(frames)) and store.frames == frames
            rows = store.rows(memory.lines_of(index, numbers.numpy()))
            came = [layers[index] for layers in self.admitted]
            assert rows.keys.equal(torch.cat([own.keys for own in came], 1))
            assert rows.values.equal(torch.cat([own.values for own in came], 1))
            exact = mean_keys(rows, layout, book, memory.positions.tokens, keys.parts) - keys.centre
            step = exact.abs().amax(-1, keepdim=True) / 127
            assert bool(((keys.of(numbers) - exact).abs() <= 0.6 * step + 1e-5).all())

    @invariant()
    def clusters_that_wait_and_their_parents_know_each_other(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, _ = parts
        for level in self.levels(memory):
            for cluster in level.clusters.values():
                assert cluster.lazy == bool(cluster.waiting)
                assert all(level.clusters[id].parent == cluster.id for id in cluster.waiting)
                assert cluster.parent is None or cluster.id in level.clusters[cluster.parent].waiting
                assert level.index.facts[level.index.slot(cluster.id), 5] == cluster.wide
                assert not (cluster.wide and cluster.lazy)

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.stream.close()
            self.patch.undo()


StreamMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
TestStream = pytest.mark.slow(StreamMachine.TestCase)
