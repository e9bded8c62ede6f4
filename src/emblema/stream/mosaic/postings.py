"""Which frames have keys of a kind, head by head: candidates for a question in time that hardly grows with the stream.

Keys of a head are divided among codes, each the mean of its keys, as in an inverted file. A code's posting list has its
keys. A query visits the codes that it would attend most, and the keys in their lists are its candidates.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.mosaic.bisecting import second_sides
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.ranking import Numbers, Scores, log_sum
from emblema.stream.state import StreamState

MEANS = torch.float16
PAGE = 32
"""Keys of a list that is cut in two, as long as there are few codes."""
CODES = 1024
"""Codes of a head, about. From there on a list is cut that has four times the keys that each of so many would have."""
NOWHERE = -1e30
"""The reach of a code without keys."""
BOUND = 1.75
"""What a product with a code's mean is raised by: standard deviations of what its farthest key adds to it, were the way
from the mean to that key of a direction drawn at random."""
FEWER = 0.8
"""Share of the keys asked for that the heads find on average; no head visits less than half of the codes for it."""
SPREAD = 8
"""Times as many codes are visited where only a part of the stream may be seen."""
SHOWN = 4
"""Runs of `PAGE` keys of a list that are visited, at most: of longer lists some that are spread over time."""
RANKS = 16
"""Codes of a query's order that are told apart."""
LEAST_LENGTH = 1e-12
"""Of a query: of one of nothing too."""
BIG = float(numpy.finfo(numpy.float32).max)


class Postings:
    """The codes of one layer.

    Args:
        keys: of its frames; a list that is cut reads them again.
    """

    def __init__(self, keys: FrameKeys) -> None:
        self._keys = keys
        heads, width = keys.heads, keys.width
        self._means = torch.zeros(heads, 16, width, dtype=MEANS)
        # Keys of each code, and the distance of the farthest one when it came, times `_bound`.
        self._bound = BOUND * width**-0.5
        self._counts, self._reach = torch.zeros(heads, 16), torch.full((heads, 16), NOWHERE)
        # By head and code, the numbers of its keys, rising.
        self._lists: list[list[array[int]]] = [[] for _ in range(heads)]
        # Keys of a code that are visited, on average; None where that is not known.
        self._visited: float | None = None

    @property
    def bytes(self) -> int:
        """Bytes on the host."""
        own = (self._means, self._counts, self._reach)
        return sum(part.nbytes for part in own) + sum(4 * len(entries) for own in self._lists for entries in own)

    @property
    def codes(self) -> int:
        """Codes of all heads."""
        return sum(map(len, self._lists))

    def add(self, frames: Sequence[int]) -> None:
        """Add frames, one or more, whose keys were added."""
        self._visited = None
        numbers = torch.tensor(frames)
        states = self._keys.of(numbers).permute(2, 0, 1, 3).flatten(1, 2)
        if self._lists[0]:
            means = self._means.float()
            distances = means.square().sum(2)[:, None] - 2 * states @ means.transpose(1, 2)
            codes = distances.masked_fill_(self._counts[:, None] == 0, torch.inf).argmin(2)
        else:
            codes = torch.zeros(states.shape[:2], dtype=torch.int64)
            for lists in self._lists:
                lists.append(array("i"))
        held = self._counts.shape[1]
        flat = (codes + torch.arange(len(codes))[:, None] * held).flatten()
        changed = self._count(flat, states.flatten(0, 1))
        entries = _entries(frames, self._keys).tolist()
        for lists, own in zip(self._lists, codes.tolist(), strict=True):
            for code, entry in zip(own, entries, strict=True):
                lists[code].append(entry)
        longest = max(PAGE, 4 * int(self._counts[0].sum()) // CODES)
        lengths, full = [len(lists) for lists in self._lists], []
        for place in changed.tolist():
            head, code = divmod(place, held)
            if len(self._lists[head][code]) >= (PAGE if lengths[head] < CODES else longest):
                full.append((head, code))
                lengths[head] += 1
        if full:
            self._cut(full)

    def _count(self, places: Tensor, states: Tensor) -> Tensor:
        """Let keys [n, width] into the statistics of their codes, counted over all heads; return these, each once."""
        changed: Tensor
        changed, own = places.unique(return_inverse=True)
        means, counts, reach = self._means.flatten(0, 1), self._counts.view(-1), self._reach.view(-1)
        counts.index_add_(0, places, torch.ones(len(places)))
        former = means[changed].float()
        sums = torch.zeros_like(former).index_add_(0, own, states - former[own])
        present = former + sums / counts[changed, None]
        means[changed] = present.to(MEANS)
        distances = torch.linalg.vector_norm(states - present[own], dim=1)
        reach.scatter_reduce_(0, places, self._bound * distances, "amax")
        return changed

    def _cut(self, lists: Sequence[tuple[int, int]]) -> None:
        """Cut lists, given by head and code, in two by 2-means, all at once.

        Keys that cannot be told apart are cut in the middle of their time.
        """
        listed = [torch.tensor(self._lists[head][code]) for head, code in lists]
        sizes = torch.tensor([len(own) for own in listed])
        entries = torch.nn.utils.rnn.pad_sequence(listed, batch_first=True)
        keys = self._keys.of_heads(entries, torch.tensor([head for head, _ in lists]))
        here = torch.arange(entries.shape[1]) < sizes[:, None]
        second = second_sides(keys, sizes)
        halves = [(side, *self._statistics(keys, side)) for side in (here & ~second, here & second)]
        for index, (head, code) in enumerate(lists):
            for place, (side, means, reach) in zip((code, self._new(head)), halves, strict=True):
                self._set(head, place, entries[index][side[index]], means[index], reach[index])

    def _new(self, head: int) -> int:
        """Return a code of a head that has no keys; one whose list was emptied is taken first."""
        lists = self._lists[head]
        new = next((code for code, own in enumerate(lists) if not own), len(lists))
        if new == len(lists):
            lists.append(array("i"))
        held = self._counts.shape[1]
        if new == held:
            more = max(16, held // 8)
            self._means, self._counts, self._reach = (
                torch.cat((own, own.new_full((own.shape[0], more, *own.shape[2:]), none)), 1)
                for own, none in ((self._means, 0), (self._counts, 0), (self._reach, NOWHERE))
            )
        return new

    def _set(self, head: int, code: int, entries: Tensor, mean: Tensor, reach: Tensor) -> None:
        """Make a list one of keys [n] with the mean [width] and reach []."""
        self._lists[head][code] = array("i", entries.int().numpy().tobytes())
        self._means[head, code], self._reach[head, code] = mean.to(MEANS), reach
        self._counts[head, code] = len(entries)

    def forget(self, frames: range) -> None:
        """Take the keys of frames, which are there still, out of their lists."""
        self._visited = None
        gone = _entries(frames, self._keys)
        low, high = int(gone[0]), int(gone[-1])
        for head, lists in enumerate(self._lists):
            for code, own in enumerate(lists):
                listed = _numbers(own)
                left = torch.from_numpy(listed[(listed < low) | (listed > high)]).long()
                if len(left) < len(own):
                    keys = self._keys.of_heads(left[None], torch.tensor([head]))
                    means, reach = self._statistics(keys, torch.ones(keys.shape[:2], dtype=torch.bool))
                    self._set(head, code, left, means[0], reach[0])

    def _statistics(self, keys: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
        """Return means [lists, width] and reaches [lists] of the keys that are `here`.

        Args:
            keys: [lists, n, width].
            here: [lists, n] bool; the mean of none is zero.
        """
        weights = here.float()
        means = (keys * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True).clamp_min(1)
        reach = self._bound * torch.linalg.vector_norm(keys - means[:, None], dim=2)
        return means, reach.where(here, NOWHERE).amax(1) if keys.shape[1] else means.new_full((len(means),), NOWHERE)

    def find(self, states: Tensor, low: int, high: int, most: int) -> tuple[Numbers, Scores]:
        """Find keys that queries may attend most, and about how much there is to attend.

        A query visits the codes of its head in the order of the most that one of their keys is likely to get: the
        product with the mean, and the query's length times the code's reach. What all queries of a head visit first is
        taken first.

        Args:
            states: [heads, queries, width], those of all query heads that share a key head.
            low, high: frames before and from which are left out.
            most: keys of a head; so many are left where only a part of the stream may be seen.

        Returns:
            Keys [heads, n] as `FrameKeys.of_heads` counts them, -1 for none; and [heads, queries] the logarithm of the
            sum over all keys, as `FrameKeys.logits` counts, by the codes' means: it comes out too small.
        """
        keys, codes = self._keys, max(map(len, self._lists))
        begin, end = (low - keys.first) * keys.parts, (high - keys.first) * keys.parts
        whole = begin <= 0 and end >= keys.count * keys.parts
        products = (states @ self._means[:, :codes].float().transpose(1, 2)).numpy()
        mass = log_sum(products, self._counts[:, :codes].numpy())
        lengths = torch.linalg.vector_norm(states, dim=2).clamp_min_(LEAST_LENGTH)
        products += (lengths[:, :, None] * self._reach[:, None, :codes]).numpy()
        seen = visit(products, self._wanted(most if whole else SPREAD * most))
        found = self._collect(seen, max(begin, 0), end)
        return found if whole else found[:, :most], mass

    def _collect(self, seen: NDArray[numpy.bool], begin: int, end: int) -> Numbers:
        """Return the keys from `begin` and before `end` of codes [heads, codes], [heads, n], then -1."""
        listed = []
        for lists, marks in zip(self._lists, seen, strict=True):
            codes = (code for code in marks.nonzero()[0].tolist() if code < len(lists))
            own: list[Any] = [
                lists[code] if len(lists[code]) <= SHOWN * PAGE else _shown(lists[code]) for code in codes
            ]
            # Joined as bytes: a view of each list would take longer than all that follows.
            entries = numpy.frombuffer(b"".join(own), dtype=numpy.int32)
            listed.append(entries[(entries >= begin) & (entries < end)])
        found = numpy.full((len(listed), max(map(len, listed))), -1, dtype=numpy.int64)
        for row, entries in zip(found, listed, strict=True):
            row[: len(entries)] = entries
        return found

    def _wanted(self, most: int) -> int:
        """Return how many codes of a head are visited, on average, for so many keys."""
        if self._visited is None:
            # Of a long list no more than `SHOWN` pages are visited.
            self._visited = float(numpy.minimum(self._counts.numpy(), SHOWN * PAGE).sum()) / self.codes
        return min(math.ceil(FEWER * most / self._visited), max(map(len, self._lists)))

    def state(self) -> StreamState:
        """Return the state for a file."""
        facts = {"codes": [len(lists) for lists in self._lists]}
        if not self.codes:
            return StreamState({}, facts)
        entries = numpy.stack([numpy.concatenate([_numbers(own) for own in lists]) for lists in self._lists])
        tensors = {"means": self._means, "counts": self._counts, "reach": self._reach}
        return StreamState({**tensors, "entries": torch.from_numpy(entries)}, facts)

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; no frame has come yet."""
        if not state.tensors:
            return
        self._means, self._counts, self._reach = (state.tensors[name] for name in ("means", "counts", "reach"))
        self._visited = None
        for head, codes in enumerate(state.facts["codes"]):
            own = state.tensors["entries"][head].split(self._counts[head, :codes].int().tolist())
            self._lists[head] = [array("i", entries.numpy().tobytes()) for entries in own]


def _entries(frames: Sequence[int], keys: FrameKeys) -> Tensor:
    """Return the keys of frames, [frames x parts] int64, by their numbers in each head."""
    return ((torch.tensor(frames) - keys.first)[:, None] * keys.parts + torch.arange(keys.parts)).flatten()


def _numbers(entries: "array[int]") -> NDArray[numpy.int32]:
    """Return a view of a list, which cannot grow as long as there is one."""
    return numpy.frombuffer(entries, dtype=numpy.int32)


def _shown(entries: "array[int]") -> NDArray[numpy.int32]:
    """Return the keys of a long list that are visited."""
    own = _numbers(entries)
    step = -(-len(own) // (SHOWN * PAGE))
    shown: NDArray[numpy.int32] = own[numpy.arange(len(own)) // PAGE % step == 0]
    return shown


def visit(bounds: Scores, wanted: int) -> NDArray[numpy.bool]:
    """Say which codes queries visit: the first ones of each, then those that come closest to a query's first.

    Args:
        bounds: [heads, queries, codes], the most that a code's keys are likely to get; overwritten.
        wanted: codes of a head on average, at least; of each head half as many. At most all.

    Returns:
        [heads, codes] bool.
    """
    heads, queries, codes = bounds.shape
    seen = numpy.zeros((heads, codes), dtype=bool)
    flat, marks = bounds.reshape(-1, codes), seen.reshape(-1)
    every, starts = flat.reshape(-1), numpy.arange(0, flat.size, codes)
    places, highest = numpy.arange(0, seen.size, codes).repeat(queries), flat.max(1)
    for rank in range(1, RANKS + 1):
        best = flat.argmax(1)
        marks[places + best] = True
        every[starts + best] = -numpy.inf
        if rank * queries < wanted or numpy.count_nonzero(seen) < wanted * heads:
            continue
        if 2 * int(seen.sum(1).min()) >= wanted:
            return seen
    nearness = (bounds - highest.reshape(heads, queries, 1)).max(1)
    nearness[seen] = numpy.inf
    seen |= nearness >= numpy.maximum(numpy.partition(nearness, -wanted, axis=1)[:, -wanted, None], -BIG)
    return seen
