"""Mosaic's memory: frames in visual clusters, inside them in semantic clusters of each layer, members on the host."""

from collections import Counter
from collections.abc import Mapping

import numpy
import torch
from torch import Tensor

from emblema.stream.host import HostRows, Transfers
from emblema.stream.method import NOTHING, Bytes, Departed, Found, Query, Scene, Sight, StreamRows
from emblema.stream.mosaic.index import HOST
from emblema.stream.mosaic.layer import LayerMemory
from emblema.stream.mosaic.looking import representatives, sizes_in_sight, with_recent
from emblema.stream.mosaic.maintainer import Upkeep
from emblema.stream.mosaic.prefetch import Fetcher
from emblema.stream.mosaic.retrieval import choose
from emblema.stream.mosaic.visual import VisualMemory
from emblema.stream.saved import Saved
from emblema.stream.states import frame_vectors


class Mosaic:
    """Clusters on two levels, retrieved in two stages, with representatives of the rest (Mosaic, arXiv 2604.10060)."""

    name = "mosaic"
    shares_local = True
    encodes = True
    bounded = True

    def __init__(self, scene: Scene) -> None:
        self.adapter, self.settings, self.places = scene.adapter, scene.settings, scene.places
        self._phases = scene.phases
        adapter, settings, places = scene.adapter, scene.settings, scene.places
        self.transfers, self.visual_upkeep, self.upkeep = Transfers(), Upkeep(), Upkeep()
        device = adapter.device
        hosts = [HostRows(layout, places.tokens, adapter.dtype, self.transfers) for layout in adapter.layouts]
        self.layers = [
            LayerMemory(settings, layout, host, self.upkeep, device)
            for layout, host in zip(adapter.layouts, hosts, strict=True)
        ]
        self.visual = VisualMemory(settings, adapter.hidden_size, self.layers, self.visual_upkeep)
        self._fetcher = Fetcher(hosts, self.transfers, device)
        # Where rows lie in one memory anyhow, a thread that copies them only takes time from the model.
        self._prefetching = device.type != "cpu" if settings.prefetch is None else settings.prefetch
        self._constructed = False
        self._found: Counter[int] = Counter()

    def admit(self, departed: Departed) -> None:
        self._refine()
        book, embeddings = self._phases.book(departed.positions), departed.codes.embeds.float().mean(1).to(HOST)
        held = [
            (frame_vectors(rows, layout, book, self.places.tokens, memory.parts).to(HOST), memory.host.lines(rows))
            for rows, layout, memory in zip(departed.layers, self.adapter.layouts, self.layers, strict=True)
        ]
        for row, frame in enumerate(departed.frames):
            for memory, (vectors, lines) in zip(self.layers, held, strict=True):
                memory.hold(frame, lines[row], vectors[row])
            self._admit(frame, embeddings[row], [vectors[row] for vectors, _ in held])
        self._release()

    def _admit(self, frame: int, embedding: Tensor, vectors: list[Tensor]) -> None:
        if self._constructed:
            group = self.visual.take(frame, embedding)
            for memory, vector in zip(self.layers, vectors, strict=True):
                memory.take(frame, vector, group)
            return
        group = self.visual.wait(frame, embedding)
        for memory in self.layers:
            memory.wait(frame, group)
        if len(self.visual.level.clusters) >= self.settings.first:
            groups = self.visual.construct()
            for memory in self.layers:
                memory.construct(groups)
            self._constructed = True

    def prepare(self, sight: Sight) -> None:
        self._fetcher.begin()
        self._found.clear()

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        settings, level = self.settings, self.layers[layer].level
        retrieving = query.purpose == "question" or settings.retrieve_while_encoding
        if not level.clusters or not (retrieving or settings.representatives):
            return NOTHING
        chosen = self._choose(layer, query, sight) if retrieving else [set[int]() for _ in range(query.count)]
        recent = with_recent(level, sight)
        taken = sorted(recent.union(*chosen))
        rows, shown = self._rows(layer, query, taken, chosen, sight)
        if retrieving and self._prefetching and layer + 1 < len(self.layers):
            self._guess(layer + 1, query, sight, taken)
        if not settings.representatives:
            return Found(rows, shown)
        counted = self.places.tokens if settings.weighted else None
        seen = [own | recent for own in chosen]
        layout = self.adapter.layouts[layer]
        return Found(rows, shown, representatives(level, layout, counted, sight, seen))

    def _choose(self, layer: int, query: Query, sight: Sight) -> list[set[int]]:
        """For each group, the numbers of the clusters that it retrieves."""
        memory, settings = self.layers[layer], self.settings
        index, sizes = memory.level.index, sizes_in_sight(memory.level, sight)
        groups = index.facts[:, 4].long().numpy()
        if settings.scoring == "pooled":
            every = query.products(memory.short.keys(len(index))).cpu()
        else:
            logits = memory.short.logits(query.states, len(index))
            every = query.densities(logits, torch.from_numpy(sizes).to(logits.device)).cpu()
        return [
            {index.ids[slot] for slot in choose(scores, sizes, groups, settings.budget, settings.breadth)}
            for scores in every
        ]

    def _guess(self, layer: int, query: Query, sight: Sight, taken: list[int]) -> None:
        """Have the next layer's clusters copied that it is likely to ask for; `taken` are this layer's."""
        memory = self.layers[layer]
        if self.settings.guess == "frames":
            own = self.layers[layer - 1].level.clusters
            shared = Counter(memory.level.home[frame] for id in taken for frame in own[id].frames)
            ids = {id for id, frames in shared.items() if 2 * frames > memory.level.clusters[id].size}
        elif memory.short.heads * memory.short.width == query.pooled.shape[1]:
            ids = with_recent(memory.level, sight).union(*self._choose(layer, query, sight))
        else:
            return
        self._fetcher.start(layer, [id for id in sorted(ids) if id in memory.host])

    def _rows(
        self, layer: int, query: Query, taken: list[int], chosen: list[set[int]], sight: Sight
    ) -> tuple[StreamRows | None, Tensor | None]:
        """Rows of clusters in the order of their frames, and which group sees which."""
        if not taken:
            return None, None
        memory, device = self.layers[layer], self.adapter.device
        stored = [id for id in taken if id in memory.host]
        lines = dict(zip(stored, self._fetcher.get(layer, stored), strict=True))
        memory.fetched.update(stored)
        clusters = [memory.level.clusters[id] for id in taken]
        blocks = [lines[one.id] if one.id in lines else memory.waiting[one.frames[0]][None] for one in clusters]
        numbers = numpy.array([frame for one in clusters for frame in one.frames])
        order = numbers.argsort()
        numbers = numbers[order]
        inside = (numbers >= sight.low) & (numbers < sight.high)
        own = numpy.array([[id in mine for id in taken] for mine in chosen])
        shown = own.repeat([one.size for one in clusters], axis=1)[:, order]
        shown = (shown | (numbers >= sight.recent)) & inside
        if query.count == 1:
            # One alone sees no more than its own.
            numbers, order, shown = numbers[shown[0]], order[shown[0]], shown[:, shown[0]]
        if query.purpose == "question":
            self._found.update(numbers.tolist())
        kv = memory.host.rows(torch.cat(blocks)[torch.from_numpy(order).to(device)])
        frames = torch.from_numpy(numbers).to(device)
        rows = StreamRows(kv, self.places.written(frames), frames.repeat_interleave(self.places.tokens))
        if shown.all():
            return rows, None
        return rows, torch.from_numpy(shown).repeat_interleave(self.places.tokens, dim=1).to(device)

    def settle(self) -> None:
        self._refine()
        self._release()

    def _refine(self) -> None:
        """Cut what was fetched and waits for it."""
        self._fetcher.finish()
        groups = self.visual.fetched()
        for memory in self.layers:
            for id in sorted(memory.fetched):
                memory.maintainer.refine(id)
        for group in sorted(groups):
            self.visual.maintainer.refine(group)

    def _release(self) -> None:
        """Nothing of what was fetched is on the device any more."""
        self._fetcher.begin()
        for memory in self.layers:
            memory.fetched.clear()

    def bytes(self) -> Bytes:
        device: Counter[str] = Counter()
        for memory in self.layers:
            device.update(memory.device_bytes)
        device["fetched"] = self._fetcher.bytes
        levels = (self.visual.level, *(one.level for one in self.layers))
        host = {"rows": sum(one.host.bytes for one in self.layers)}
        host["vectors"] = sum(level.vectors.bytes for level in levels)
        host["index"] = sum(level.index.host_bytes for level in levels)
        return Bytes(dict(device), host)

    def counts(self) -> Mapping[str, float]:
        clusters = sum(len(memory.level.clusters) for memory in self.layers)
        return {
            **self.transfers.counts(),
            **self.upkeep.counts("semantic"),
            **self.visual_upkeep.counts("visual"),
            "divided": float(self.visual.divided),
            "clusters": float(clusters),
            "visual_clusters": float(len(self.visual.level.clusters)),
        }

    def retrieved(self) -> Mapping[int, float]:
        return {frame: count / len(self.layers) for frame, count in self._found.items()}

    def close(self) -> None:
        self._fetcher.close()

    def saved(self) -> Saved:
        """For a file."""
        state = Saved({}, {"constructed": self._constructed})
        state.put("visual", self.visual.level.saved())
        for index, memory in enumerate(self.layers):
            state.put(f"layer{index}", memory.saved())
        return state

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved; counts begin anew."""
        self._constructed = saved.facts["constructed"]
        self.visual.level.resume(saved.part("visual"))
        for index, memory in enumerate(self.layers):
            memory.resume(saved.part(f"layer{index}"))
