"""Representatives of one level's clusters: exact on the host, where clusters are kept, in few bits on the device."""

import torch
from torch import Tensor

from emblema.stream.mosaic.short import Short

GROWTH = 1.25
HOST = torch.device("cpu")


class Index:
    """Rows side by side, one a cluster, in no order; a cluster that goes leaves its row to the last one.

    Args:
        width: of the vectors that are matched: mean keys of all parts of a frame, or embeddings.
        extra: of what is kept beside each (mean values); 0 for nothing.
        short: what the device has of them; None for nothing.
    """

    def __init__(self, width: int, extra: int, short: Short | None) -> None:
        self.ids: list[int] = []
        self.short = short
        self._slots: dict[int, int] = {}
        self._width = width
        self._means = torch.zeros(0, width + extra)
        self._lengths = torch.zeros(0)
        # Per row: members, mean frame, first frame, last frame, group.
        self._facts = torch.zeros(0, 5, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Bytes on the device, room for rows to come included."""
        return 0 if self.short is None else self.short.bytes

    @property
    def host_bytes(self) -> int:
        """Bytes on the host, likewise."""
        return self._means.nbytes + self._lengths.nbytes + self._facts.nbytes

    @property
    def vectors(self) -> Tensor:
        """[clusters, width + extra] float32 on the host."""
        return self._means[: len(self)]

    @property
    def facts(self) -> Tensor:
        """[clusters, 5] float64 on the host: members, mean frame, first frame, last frame, group."""
        return self._facts[: len(self)]

    def slot(self, id: int) -> int:
        """The row of a cluster."""
        return self._slots[id]

    def mean(self, id: int) -> Tensor:
        """[width + extra] of a cluster."""
        return self._means[self._slots[id]]

    def put(self, id: int, mean: Tensor, frames: list[int], group: int) -> None:
        """Set a cluster's row; a new one gets one."""
        if id not in self._slots:
            self._reserve(len(self) + 1)
            self._slots[id] = len(self)
            self.ids.append(id)
        slot = self._slots[id]
        self._set(slot, mean)
        facts = (len(frames), sum(frames) / len(frames), min(frames), max(frames), group)
        self._facts[slot] = torch.tensor(facts, dtype=torch.float64)

    def grow(self, id: int, mean: Tensor, frame: int) -> None:
        """A cluster has one member more, and another mean."""
        slot = self._slots[id]
        self._set(slot, mean)
        facts = self._facts.numpy()[slot]
        facts[0] += 1
        facts[1] += (frame - facts[1]) / facts[0]
        facts[2], facts[3] = min(facts[2], frame), max(facts[3], frame)

    def _set(self, slot: int, mean: Tensor) -> None:
        self._means[slot] = mean
        self._lengths[slot] = mean[: self._width].norm().clamp_min(1e-12)
        if self.short is not None:
            self.short.set(slot, mean)

    def regroup(self, id: int, group: int) -> None:
        """A cluster lies in another visual cluster now."""
        self._facts[self._slots[id], 4] = group

    def remove(self, id: int) -> None:
        """A cluster is gone."""
        slot, last = self._slots.pop(id), self.ids.pop()
        if last == id:
            return
        end = len(self.ids)
        self.ids[slot], self._slots[last] = last, slot
        for held in (self._means, self._lengths, self._facts):
            held[slot] = held[end]
        if self.short is not None:
            self.short.move(end, slot)

    def _reserve(self, rows: int) -> None:
        have = self._means.shape[0]
        if rows <= have:
            return
        more = max(rows, int(have * GROWTH), 16) - have
        self._means = torch.cat((self._means, self._means.new_zeros(more, self._means.shape[1])))
        self._lengths = torch.cat((self._lengths, self._lengths.new_zeros(more)))
        self._facts = torch.cat((self._facts, self._facts.new_zeros(more, 5)))
        if self.short is not None:
            self.short.reserve(more)

    def likeness(self, vector: Tensor) -> Tensor:
        """[clusters]: cosines of a vector [width], on the host, with every mean, times the vector's own length."""
        return self._means[: len(self), : self._width] @ vector[: self._width] / self._lengths[: len(self)]
