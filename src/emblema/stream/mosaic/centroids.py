"""What clusters are known by: exact means on the host; where clusters are retrieved or shown, quantized summaries.

A summary is the mean key of each part of the members' frames, and their mean value, on the device: four bits for keys
and eight for values around the layer's centre, with a scale for each head of a part and each head of the values. The
centre is what all keys of a layer have in common; it is often much larger than the differences.
"""

import math

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.buffers import give_back, grown, host_buffer

KEY_MOST, VALUE_MOST, SCALES = 7, 127, torch.bfloat16
UPWARD = 1 + 2**-7
"""Makes up for what a scale may lose in rounding, so that no entry leaves its bits."""
VECTORS = torch.float16
GROWTH = 1.25


class Summaries:
    """Rows of parts x heads x width keys, and of heads x width values, on the device.

    Args:
        parts: of a frame.
        keys: heads and width of the keys that queries are matched with.
        values: heads and width of the values; (0, 0) for none.
    """

    def __init__(self, parts: int, keys: tuple[int, int], values: tuple[int, int], device: torch.device) -> None:
        self.parts, self.heads, self.width = parts, *keys
        self._matched = parts * self.heads * self.width
        self._keys = torch.zeros(0, parts, self.heads, -(-self.width // 2), dtype=torch.uint8, device=device)
        self._values = torch.zeros(0, *values, dtype=torch.int8, device=device)
        self._key_scales = torch.zeros(0, parts, self.heads, dtype=SCALES, device=device)
        self._value_scales = torch.zeros(0, values[0], dtype=SCALES, device=device)
        self._key_centre, self._value_centre = torch.zeros(keys, device=device), torch.zeros(values, device=device)

    @property
    def bytes(self) -> int:
        """Bytes, spare rows included."""
        return sum(held.nbytes for held in (*self._rows, self._key_centre, self._value_centre))

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        return self._keys, self._values, self._key_scales, self._value_scales

    def set_centre(self, keys: Tensor, values: Tensor) -> None:
        """Set the centre: keys [heads, width] and values [heads x width]; there is no row yet."""
        self._key_centre = keys.to(self._keys.device)
        self._value_centre = values.to(self._keys.device).view_as(self._value_centre)

    def put(self, slot: int, mean: Tensor) -> None:
        """Set a row to means [parts x heads x width + values]: keys less their centre, values with theirs."""
        mean = mean.to(self._keys.device)
        keys = mean[: self._matched].view(self.parts, self.heads, self.width)
        keys, self._key_scales[slot] = _rounded(keys, KEY_MOST)
        self._keys[slot] = _packed(keys)
        values = mean[self._matched :].view_as(self._value_centre)
        self._values[slot], self._value_scales[slot] = _rounded(values - self._value_centre, VALUE_MOST)

    def move(self, source: int, target: int) -> None:
        """Copy a row in place of another."""
        for held in self._rows:
            held[target] = held[source]

    def reserve(self, more: int) -> None:
        """Make room for more rows."""
        self._keys, self._values, self._key_scales, self._value_scales = (grown(held, more) for held in self._rows)

    def keys(self, count: int) -> Tensor:
        """Return the mean key of all parts of the first rows, [heads, count, width] float32."""
        keys = _unpacked(self._keys[:count], self.width)
        means = (keys * self._key_scales[:count, ..., None].float()).mean(1) + self._key_centre
        return means.transpose(0, 1)

    def values(self, count: int) -> Tensor:
        """Return the values of the first rows, [heads, count, width] float32."""
        means = self._values[:count] * self._value_scales[:count, ..., None].float() + self._value_centre
        return means.transpose(0, 1)

    def logits(self, states: Tensor, count: int) -> Tensor:
        """Return products of queries with the first rows' parts, [query heads, rows, count, parts].

        Products with the centre are left out: they are the same for all, and no softmax depends on them.

        Args:
            states: [query heads, rows, width]; query heads that share a key head are neighbours.
        """
        heads, rows, width = states.shape
        packed = self._keys[:count].permute(2, 0, 1, 3).flatten(1, 2)
        keys = _unpacked(packed, width).float()
        products = states.reshape(self.heads, -1, width) @ keys.transpose(1, 2)
        scales = self._key_scales[:count].permute(2, 0, 1)[:, None].float()
        products = products.reshape(self.heads, -1, count, self.parts) * scales
        return products.reshape(heads, rows, count, self.parts)


class CentroidIndex:
    """One row for each cluster, in no order; a removed cluster's row is taken by the last one.

    Args:
        width: of the vectors that clusters are made by.
        summaries: rows on the device, by the same slots; None for none.
    """

    def __init__(self, width: int, summaries: Summaries | None) -> None:
        self.ids: list[int] = []
        self.summaries = summaries
        self._slots: dict[int, int] = {}
        self._groups: dict[int, list[int]] = {}
        self._means, self._squares = torch.zeros(0, width), torch.zeros(0)
        self._facts = torch.zeros(0, 6, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Bytes on the host; spare rows are not written and take none."""
        return sum(held[: len(self)].nbytes for held in (self._means, self._squares, self._facts))

    @property
    def means(self) -> Tensor:
        """[clusters, width] float32 on the host."""
        return self._means[: len(self)]

    @property
    def facts(self) -> Tensor:
        """[clusters, 6] float64 on the host: members, mean frame, first and last frame, group, and 1 where wide."""
        return self._facts[: len(self)]

    def slot(self, id: int) -> int:
        """Return the row of a cluster."""
        return self._slots[id]

    def mean(self, id: int) -> Tensor:
        """Return the mean of a cluster, [width]."""
        return self._means[self._slots[id]]

    def group(self, group: int) -> list[int]:
        """Return the clusters of a group."""
        return self._groups.get(group, [])

    def put(self, id: int, mean: Tensor, frames: list[int], group: int) -> None:
        """Set the row of a cluster, new or not."""
        if id not in self._slots:
            self._reserve(len(self) + 1)
            self._slots[id] = len(self)
            self._facts[len(self), 5] = 0
            self.ids.append(id)
            self._groups.setdefault(group, []).append(id)
        slot = self._slots[id]
        self._put_mean(slot, mean)
        facts = (len(frames), sum(frames) / len(frames), min(frames), max(frames), group)
        self._facts[slot, :5] = torch.tensor(facts, dtype=torch.float64)

    def add_frame(self, id: int, mean: Tensor, frame: int) -> None:
        """Count one more member of a cluster, and set its new mean."""
        slot = self._slots[id]
        self._put_mean(slot, mean)
        facts = self._facts.numpy()[slot]
        facts[1] = (_total(facts) + frame) / (facts[0] + 1)
        facts[0] += 1
        facts[2], facts[3] = min(facts[2], frame), max(facts[3], frame)

    def join(self, id: int, other: int, mean: Tensor) -> None:
        """Count the members of another cluster as a cluster's, and set its new mean; the other's row is as it was."""
        slot = self._slots[id]
        self._put_mean(slot, mean)
        facts, more = self._facts.numpy()[slot], self._facts.numpy()[self._slots[other]]
        facts[1] = (_total(facts) + _total(more)) / (facts[0] + more[0])
        facts[0] += more[0]
        facts[2], facts[3] = min(facts[2], more[2]), max(facts[3], more[3])

    def set_wide(self, id: int, wide: bool) -> None:
        """Set whether a cluster is wide."""
        self._facts.numpy()[self._slots[id], 5] = wide

    def closed(self, ids: list[int] | None, largest: int | None) -> Tensor:
        """Return which clusters take in no more states: wide ones, and those of `largest`; None: all, by row."""
        facts = self.facts if ids is None else self._facts[torch.tensor([self._slots[id] for id in ids])]
        return (facts[:, 5] > 0) | (facts[:, 0] >= (math.inf if largest is None else largest))

    def _put_mean(self, slot: int, mean: Tensor) -> None:
        self._means[slot] = mean
        self._squares[slot] = mean @ mean

    def set_group(self, id: int, group: int) -> None:
        """Set the visual cluster of a cluster."""
        facts = self._facts.numpy()[self._slots[id]]
        self._leave(id, int(facts[4]))
        self._groups.setdefault(group, []).append(id)
        facts[4] = group

    def _leave(self, id: int, group: int) -> None:
        self._groups[group].remove(id)
        if not self._groups[group]:
            del self._groups[group]

    def remove(self, id: int) -> None:
        """Remove a cluster's row."""
        slot, last = self._slots.pop(id), self.ids.pop()
        self._leave(id, int(self._facts[slot, 4]))
        if last == id:
            return
        end = len(self.ids)
        self.ids[slot], self._slots[last] = last, slot
        for held in (self._means, self._squares, self._facts):
            held[slot] = held[end]
        if self.summaries is not None:
            self.summaries.move(end, slot)

    def _reserve(self, rows: int) -> None:
        have = self._means.shape[0]
        if rows <= have:
            return
        more = max(rows, int(have * GROWTH), 16) - have
        self._means, self._squares = grown(self._means, more), grown(self._squares, more)
        self._facts = grown(self._facts, more)
        if self.summaries is not None:
            self.summaries.reserve(more)

    def distances(self, vector: Tensor, ids: list[int] | None) -> Tensor:
        """Return squared distances of a vector [width] from the means of clusters; None: of all, by row."""
        if ids is None:
            means, squares = self._means[: len(self)], self._squares[: len(self)]
        else:
            slots = torch.tensor([self._slots[id] for id in ids])
            means, squares = self._means[slots], self._squares[slots]
        return squares - 2 * (means @ vector)


class FrameVectors:
    """Vectors [width] float16 of frames that come in order, on the host.

    Attributes:
        first: number of the first frame.
        count: number of frames.
    """

    def __init__(self) -> None:
        self.first = self.count = self._left = 0
        self._vectors = torch.zeros(0, 0)

    @property
    def bytes(self) -> int:
        """Bytes on the host; spare rows, and what was given back, take none."""
        return self._vectors[self._left : self.count].nbytes

    def add(self, frame: int, vector: Tensor) -> None:
        """Add the vector of the next frame."""
        if self.count == 0:
            self.first, self._vectors = frame, host_buffer((16, vector.shape[0]), VECTORS)
        if self.count == len(self._vectors):
            self._vectors = grown(self._vectors, max(16, len(self._vectors) // 2), self._left)
        most = torch.finfo(VECTORS).max
        self._vectors[self.count] = vector.to("cpu").clamp(-most, most)
        self.count += 1

    def of(self, frames: list[int]) -> Tensor:
        """Return [frames, width] float32."""
        return self._vectors[torch.tensor(frames, dtype=torch.int64) - self.first].float()

    def clear(self, frames: Tensor) -> None:
        """Overwrite vectors of frames [n] with zeros."""
        self._vectors[frames - self.first] = 0

    def drop(self, until: int) -> None:
        """Give back the memory of frames before `until`, whose vectors were cleared."""
        left, self._left = self._left, max(self._left, min(until - self.first, self.count))
        give_back(self._vectors, left, self._left)

    def index_of(self, frames: range) -> Tensor:
        """Return vectors of frames, as a view."""
        return self._vectors[frames.start - self.first : frames.stop - self.first]

    def restore(self, first: int, vectors: Tensor) -> None:
        """Go on from the vectors of frames from `first` on."""
        self._vectors, self.first, self.count, self._left = vectors, first, len(vectors), 0


def _total(facts: NDArray[numpy.float64]) -> float:
    """Return the sum of a cluster's frames, exactly, from its row of facts: so it matters not how they came."""
    return float(round(facts[0] * facts[1]))


def _rounded(vectors: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return vectors [..., width] as whole numbers from -most to most, and a scale for each."""
    if not vectors.numel():
        return vectors.to(torch.int8), vectors.new_zeros(vectors.shape[:-1], dtype=SCALES)
    scales = (vectors.abs().amax(-1).clamp_min(1e-12) * UPWARD / most).to(SCALES)
    return (vectors / scales[..., None].float()).round().to(torch.int8), scales


def _packed(numbers: Tensor) -> Tensor:
    """Return numbers [..., width] from -7 to 7, two in a byte: the width's first half low, its second half high."""
    half = -(-numbers.shape[-1] // 2)
    lifted = (numbers + KEY_MOST + 1).to(torch.uint8)
    high = torch.nn.functional.pad(lifted[..., half:], (0, 2 * half - numbers.shape[-1]))
    return lifted[..., :half] | high << 4


def _unpacked(packed: Tensor, width: int) -> Tensor:
    """Return numbers [..., width] int8."""
    numbers = torch.cat((packed & 15, packed >> 4), dim=-1)
    return numbers[..., :width].to(torch.int8) - (KEY_MOST + 1)
