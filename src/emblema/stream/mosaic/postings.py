"""Which frames have keys of a kind, head by head: candidates for a question in time that hardly grows with the stream.

Keys of a head are divided among codes, each the mean of its keys. A code's posting list has its keys, in pages. A query
visits the codes that it would attend most, and the keys in their lists are its candidates.
"""

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from emblema.stream.buffers import grown
from emblema.stream.mosaic.clusters import second_sides
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.kernels import Asked, SearchArrays
from emblema.stream.mosaic.orders import Numbers, Scores
from emblema.stream.state import StreamState

MEANS = torch.float16
PAGE = 32
"""Keys of a page. A list of one page is cut in two when the page is full, as long as there are few codes."""
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
"""Pages of a list that are visited, at most: of longer lists some that are spread over time."""


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
        # By head and code, its pages in the order of time; all but the last one are full.
        self._lists: list[list[list[int]]] = [[] for _ in range(heads)]
        # In 16 bits as long as the keys can be counted so.
        self._pages = torch.full((0, PAGE), -1, dtype=torch.int16)
        # By head and code, the pages that are visited, -1 for none; one of each until a list has more.
        self._shown = torch.full((heads, 16, 1), -1, dtype=torch.int32)
        self._free: list[int] = []
        self._used = self._entries = 0
        # Keys of a code that are visited, on average; None where that is not known.
        self._visited: float | None = None

    @property
    def bytes(self) -> int:
        """Bytes on the host; spare pages are not written and take none."""
        own = (self._means, self._counts, self._reach, self._shown, self._pages[: self._used])
        return sum(part.nbytes for part in own)

    @property
    def codes(self) -> int:
        """Codes of all heads."""
        return sum(map(len, self._lists))

    def add(self, frames: Sequence[int]) -> None:
        """Add frames, one or more, whose keys were added."""
        self._visited = None
        numbers = torch.tensor(frames)
        keys = self._keys.of(numbers)
        states = keys.permute(2, 0, 1, 3).flatten(1, 2)
        if self._lists[0]:
            means = self._means.float()
            distances = means.square().sum(2)[:, None] - 2 * states @ means.transpose(1, 2)
            codes = distances.masked_fill_(self._counts[:, None] == 0, torch.inf).argmin(2)
        else:
            codes = torch.zeros(states.shape[:2], dtype=torch.int64)
            for lists in self._lists:
                lists.append([])
        held = self._counts.shape[1]
        flat = (codes + torch.arange(len(codes))[:, None] * held).flatten()
        before = self._counts.view(-1)[flat].int().tolist()
        changed = self._count(flat, states.flatten(0, 1))
        parts = self._keys.parts
        entries = ((numbers - self._keys.first)[:, None] * parts + torch.arange(parts)).flatten()
        self._append(flat.tolist(), before, entries)
        self._entries = self._keys.count * parts
        longest = max(PAGE, 4 * int(self._counts[0].sum()) // CODES)
        lengths, full = [len(lists) for lists in self._lists], []
        for place, count in zip(changed.tolist(), self._counts.view(-1)[changed].tolist(), strict=True):
            head, code = divmod(place, held)
            if count >= (PAGE if lengths[head] < CODES else longest):
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

    def _append(self, places: Sequence[int], counts: Sequence[int], entries: Tensor) -> None:
        """Write keys after those of their lists.

        Args:
            places: by head, the code of each new key, counted over all heads.
            counts: keys of these codes before.
            entries: [n], the new keys of each head.
        """
        held = self._counts.shape[1]
        filled: dict[int, int] = {}
        rows, columns = [], []
        for place, count in zip(places, counts, strict=True):
            done = filled.get(place, count)
            filled[place] = done + 1
            head, code = divmod(place, held)
            pages = self._lists[head][code]
            if done == len(pages) * PAGE:
                pages.append(self._page())
                self._show(head, code)
            rows.append(pages[-1])
            columns.append(done % PAGE)
        if self._pages.dtype == torch.int16 and int(entries.max()) > torch.iinfo(torch.int16).max:
            self._pages = self._pages.int()
        self._pages.numpy()[rows, columns] = numpy.tile(entries.numpy(), len(self._lists))

    def _show(self, head: int, code: int) -> None:
        """Choose the pages of a list that are visited."""
        pages = self._lists[head][code]
        step = -(-len(pages) // SHOWN)
        own = pages[::step] if step else []
        if len(own) > self._shown.shape[2]:
            more = self._shown.new_full((*self._shown.shape[:2], SHOWN - self._shown.shape[2]), -1)
            self._shown = torch.cat((self._shown, more), 2)
        self._shown.numpy()[head, code] = own + [-1] * (self._shown.shape[2] - len(own))

    def _page(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._pages):
            self._pages = grown(self._pages, max(64, self._used // 2))
        self._pages.numpy()[self._used] = -1
        self._used += 1
        return self._used - 1

    def _cut(self, lists: Sequence[tuple[int, int]]) -> None:
        """Cut lists, given by head and code, in two by 2-means, all at once.

        Keys that cannot be told apart are cut in the middle of their time.
        """
        listed = [self._listed(head, code) for head, code in lists]
        sizes = torch.tensor([len(own) for own in listed])
        entries = torch.nn.utils.rnn.pad_sequence(listed, batch_first=True)
        keys = self._keys.of_heads(entries, torch.tensor([head for head, _ in lists]))
        here = torch.arange(entries.shape[1]) < sizes[:, None]
        second = second_sides(keys, sizes)
        halves = [(side, *self._statistics(keys, side)) for side in (here & ~second, here & second)]
        for index, (head, code) in enumerate(lists):
            self._free_pages(head, code)
            for place, (side, means, reach) in zip((code, self._new(head)), halves, strict=True):
                self._set(head, place, listed[index][side[index, : len(listed[index])]], means[index], reach[index])

    def _new(self, head: int) -> int:
        """Return a code of a head that has no keys; one whose list was emptied is taken first."""
        lists = self._lists[head]
        new = next((code for code, pages in enumerate(lists) if not pages and not self._counts[head, code]), len(lists))
        if new == len(lists):
            lists.append([])
        held = self._counts.shape[1]
        if new == held:
            more = max(16, held // 8)
            self._means, self._counts, self._reach, self._shown = (
                torch.cat((own, own.new_full((own.shape[0], more, *own.shape[2:]), none)), 1)
                for own, none in ((self._means, 0), (self._counts, 0), (self._reach, NOWHERE), (self._shown, -1))
            )
        return new

    def _listed(self, head: int, code: int) -> Tensor:
        """Return the keys of a list, [n] int64."""
        pages = self._pages[torch.tensor(self._lists[head][code])]
        return pages.flatten()[: int(self._counts[head, code])].long()

    def _free_pages(self, head: int, code: int) -> None:
        self._pages[torch.tensor(self._lists[head][code])] = -1
        self._free += self._lists[head][code]
        self._lists[head][code] = []

    def _set(self, head: int, code: int, entries: Tensor, mean: Tensor, reach: Tensor) -> None:
        """Make a list, whose pages are free, one of keys [n] with the mean [width] and reach []."""
        count = len(entries)
        self._lists[head][code] = pages = [self._page() for _ in range(0, count, PAGE)]
        held, numbers = self._pages.numpy(), entries.numpy()
        for place, page in enumerate(pages):
            part = numbers[place * PAGE : (place + 1) * PAGE]
            held[page, : len(part)] = part
        self._means[head, code], self._reach[head, code], self._counts[head, code] = mean.to(MEANS), reach, count
        self._show(head, code)

    def forget(self, frames: Sequence[int]) -> None:
        """Take the keys of frames, which are there still, out of their lists."""
        self._visited = None
        parts, gone = self._keys.parts, torch.zeros(self._entries, dtype=torch.bool)
        gone.view(-1, parts)[torch.tensor(frames) - self._keys.first] = True
        for head, lists in enumerate(self._lists):
            for code, pages in enumerate(lists):
                if not pages:
                    continue
                entries = self._listed(head, code)
                left = entries[~gone[entries]]
                if len(left) < len(entries):
                    self._free_pages(head, code)
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
        index, kernels = self._arrays(), self._keys.kernels
        parts, first = self._keys.parts, self._keys.first
        begin, end = (low - first) * parts, (high - first) * parts
        whole = begin <= 0 and end >= self._entries
        products, lengths = kernels.products(states.numpy(), index.means, index.codes)
        wanted = self._wanted(most if whole else SPREAD * most)
        mass, seen = kernels.visit(products, lengths, index.reach, index.counts, wanted)
        found = kernels.collect(seen, index.shown, index.pages, max(begin, 0), end)
        return found if whole else found[:, :most], mass

    def search(self, states: Tensor, most: int, asked: Asked) -> list[Numbers]:
        """Return the lines that each group takes of all frames: `find`, and what follows it, in one go.

        Args:
            states: [heads, queries, width], on the host.
            most: as of `find`.
        """
        return self._keys.kernels.search(states.numpy(), self._arrays(), self._wanted(most), asked)

    def _arrays(self) -> SearchArrays:
        return SearchArrays(
            self._means.numpy(),
            self._reach.numpy(),
            self._counts.numpy(),
            self._shown.numpy(),
            self._pages.numpy(),
            max(map(len, self._lists)),
            self._entries,
            self._keys.rows,
            self._keys.scale_bits,
            self._keys.parts,
        )

    def _wanted(self, most: int) -> int:
        """Return how many codes of a head are visited, on average, for so many keys."""
        if self._visited is None:
            # Of a long list no more than `SHOWN` pages are visited.
            self._visited = float(numpy.minimum(self._counts.numpy(), SHOWN * PAGE).sum()) / self.codes
        return min(math.ceil(FEWER * most / self._visited), max(map(len, self._lists)))

    def state(self) -> StreamState:
        """Return the state for a file."""
        tensors = {"means": self._means, "reach": self._reach, "counts": self._counts, "shown": self._shown}
        tensors["pages"] = self._pages[: self._used]
        return StreamState(tensors, {"lists": self._lists, "free": self._free})

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; no frame has come yet."""
        tensors, self._visited = state.tensors, None
        self._means, self._reach, self._counts = (tensors[name] for name in ("means", "reach", "counts"))
        self._pages, self._used, self._shown = tensors["pages"], len(tensors["pages"]), tensors["shown"]
        self._lists, self._free = state.facts["lists"], state.facts["free"]
        self._entries = self._keys.count * self._keys.parts
