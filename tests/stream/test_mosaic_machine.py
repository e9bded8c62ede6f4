"""Any sequence of pushes and questions: every frame lies in one place, bytes add up, statistics hold."""

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
from emblema.stream.method import EvictedFrames, StreamContext
from emblema.stream.mosaic import clusters, paper
from emblema.stream.mosaic.clusters import ClusterLevel, variance_of
from emblema.stream.mosaic.paper import PaperMosaic
from tests.engine.engines import engine
from tests.families import picture, words
from tests.stream.test_mosaic import Prefetching

NAME = "qwen2_5_vl"
QUESTION = tuple(words(4, 7).tolist())
SIZE = (28, 28)


def view(place: int, side: int) -> Image.Image:
    """Return one of the views of one of a few places."""
    return Image.blend(picture(*SIZE, seed=place), picture(*SIZE, seed=50 + side), 0.3)


class StreamMachine(RuleBasedStateMachine):
    """A stream by either method, and the rows that its memory was given."""

    @initialize(
        method=st.sampled_from([Prefetching, PaperMosaic]),
        positions=st.sampled_from(["native", "packed"]),
        tau=st.sampled_from([0.3, 0.5, 0.7]),
        levels=st.sampled_from(["both", "visual", "semantic"]),
    )
    def open(self, method: Any, positions: Any, tau: float, levels: Any) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, value in {"TAU_SMALL": tau, "TAU_LARGE": tau}.items():
            self.patch.setattr(clusters, name, value)
        for name, value in {"FIRST": 4, "LARGEST": 4}.items():
            self.patch.setattr(paper, name, value)

        class Recorded(method):  # type: ignore[misc]
            def __init__(self, context: StreamContext) -> None:
                super().__init__(context, **({"levels": levels} if method is PaperMosaic else {}))

            def admit(own, evicted: EvictedFrames) -> None:  # noqa: N805
                rows = tuple(LayerRows(each.keys.clone(), each.values.clone()) for each in evicted.layers)
                self.admitted.append(rows)
                super().admit(evicted)

        self.admitted: list[tuple[LayerRows, ...]] = []
        options: dict[str, Any] = {"window": 2, "block": 3, "sinks": 1, "budget": 5, "positions": positions}
        self.stream = engine(NAME).stream(Recorded, template=False, **options)

    def levels(self, memory: Any) -> list[ClusterLevel]:
        return [*(own.level for own in memory.layers), memory.visual] if isinstance(memory, PaperMosaic) else []

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
        return [] if parts is None else [sorted(level.clusters) for level in self.levels(parts[0])]

    def parts(self) -> tuple[Any, Any] | None:
        if not hasattr(self, "stream") or not self.stream.frames:
            return None
        return self.stream.memory, self.stream.recent

    @invariant()
    def every_frame_lies_in_one_place(self) -> None:
        if (parts := self.parts()) is None:
            return
        memory, recent = parts
        near = {int(frame) for frame in recent.frames if frame >= 0} | set(range(recent.done, recent.count))
        assert sorted([*memory.stores[0].frames, *near]) == list(range(self.stream.frames))
        for level in self.levels(memory):
            far = sorted(frame for cluster in level.clusters.values() for frame in cluster.frames)
            assert far == list(memory.stores[0].frames)
            assert level.home == {frame: own.id for own in level.clusters.values() for frame in own.frames}
        for postings in [] if self.levels(memory) else memory.postings:
            for lists in postings._lists:
                entries = sorted(entry for own in lists for entry in own)
                assert entries == list(range(len(memory.frames) * memory.keys[0].parts))

    @invariant()
    def semantic_clusters_lie_in_visual_ones(self) -> None:
        if (parts := self.parts()) is None or not self.levels(parts[0]):
            return
        memory, _ = parts
        for layer in memory.layers:
            for cluster in layer.level.clusters.values():
                assert {memory.visual.home[frame] for frame in cluster.frames} == {cluster.group}
                assert len(cluster.frames) <= 4 or cluster.waiting

    @invariant()
    def statistics_are_those_of_the_members(self) -> None:
        if (parts := self.parts()) is None:
            return
        for level in self.levels(parts[0]):
            for cluster in level.clusters.values():
                vectors = level._states_of(cluster.frames)
                torch.testing.assert_close(cluster.mean, vectors.mean(0), rtol=1e-4, atol=1e-4)
                assert abs(cluster.variance - variance_of(vectors)) <= 1e-3 * (1 + cluster.variance)

    @invariant()
    def rows_are_those_of_the_frames(self) -> None:
        """Rows are those admitted, to the bit; the keys that frames are retrieved by are theirs, but for eight bits."""
        if (parts := self.parts()) is None or not (frames := parts[0].stores[0].frames):
            return
        memory, _ = parts
        numbers = torch.arange(frames.start, frames.stop)
        book = PhaseBook(memory.adapter.tables, memory.positions.written(numbers))
        for index, layout in enumerate(engine(NAME).adapter.layouts):
            store = memory.stores[index]
            rows = store.rows(store.copy(numbers.numpy(), torch.device("cpu")))
            came = [layers[index] for layers in self.admitted]
            assert store.frames == frames and rows.keys.equal(torch.cat([own.keys for own in came], 1))
            assert rows.values.equal(torch.cat([own.values for own in came], 1))
            if self.levels(memory):
                continue
            keys = memory.keys[index]
            assert (keys.first, keys.count) == (frames.start, len(frames))
            exact = mean_keys(rows, layout, book, memory.positions.tokens, keys.parts) - keys.centre
            step = exact.abs().amax(-1, keepdim=True) / 127
            assert bool(((keys.of(numbers) - exact).abs() <= 0.6 * step + 1e-5).all())

    @invariant()
    def clusters_that_wait_and_their_parents_know_each_other(self) -> None:
        if (parts := self.parts()) is None:
            return
        for level in self.levels(parts[0]):
            for cluster in level.clusters.values():
                assert all(level.clusters[id].parent == cluster.id for id in cluster.waiting)
                assert cluster.parent is None or cluster.id in level.clusters[cluster.parent].waiting

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.stream.close()
            self.patch.undo()


StreamMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
TestStream = pytest.mark.slow(StreamMachine.TestCase)
