"""Which frames have keys of a kind, head by head: candidates for a question in time that hardly grows with the stream.

Keys of a head are divided among codes, each the mean of its keys. A code's posting list has its keys, in pages. A query
visits the codes that it would attend most, and the keys in their lists are its candidates.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from emblema.stream.buffers import grown
from emblema.stream.mosaic.clusters import second_side
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.state import StreamState

PAGE = 32
"""Keys of a page. A list of one page is cut in two when the page is full, as long as there are few codes."""
CODES = 1024
"""Codes of a head, about. From there on a list is cut that has four times the keys that each of so many would have."""
RANKS, SORTED = 8, 64
"""Codes of a query's order that are told apart: 8, or a 64th of all, which torch sorts without ordering the rest."""
SPREAD = 4
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
        self._sums, self._means = torch.zeros(heads, 16, width), torch.zeros(heads, 16, width)
        self._counts = torch.zeros(heads, 16)
        # By head and code, its pages in the order of time; all but the last one are full.
        self._lists: list[list[list[int]]] = [[] for _ in range(heads)]
        self._pages = torch.full((0, PAGE), -1, dtype=torch.int32)
        # By head and code, the pages that are visited; -1 for none.
        self._shown = torch.full((heads, 16, SHOWN), -1, dtype=torch.int32)
        self._free: list[int] = []
        self._used = self._entries = 0

    @property
    def bytes(self) -> int:
        """Bytes on the host; spare pages are not written and take none."""
        return self._sums.nbytes + self._means.nbytes + self._counts.nbytes + self._pages[: self._used].nbytes

    @property
    def codes(self) -> int:
        """Codes of all heads."""
        return sum(map(len, self._lists))

    def add(self, frames: Sequence[int]) -> None:
        """Add frames, one or more, whose keys were added."""
        numbers = torch.tensor(frames)
        keys = self._keys.of(numbers)
        states = keys.permute(2, 0, 1, 3).flatten(1, 2)
        if self._lists[0]:
            distances = self._means.square().sum(2)[:, None] - 2 * states @ self._means.transpose(1, 2)
            codes = distances.masked_fill_(self._counts[:, None] == 0, torch.inf).argmin(2)
        else:
            codes = torch.zeros(states.shape[:2], dtype=torch.int64)
            for lists in self._lists:
                lists.append([])
        held, width = self._counts.shape[1], keys.shape[3]
        flat = (codes + torch.arange(len(codes))[:, None] * held).flatten()
        before = self._counts.view(-1)[flat].int().tolist()
        self._sums.view(-1, width).index_add_(0, flat, states.flatten(0, 1))
        self._counts.view(-1).index_add_(0, flat, torch.ones(len(flat)))
        changed = flat.unique()
        means = self._sums.view(-1, width)[changed] / self._counts.view(-1)[changed, None]
        self._means.view(-1, width)[changed] = means
        parts = self._keys.parts
        entries = ((numbers - self._keys.first)[:, None] * parts + torch.arange(parts)).flatten()
        self._append(flat.tolist(), before, entries)
        self._entries = self._keys.count * parts
        longest = max(PAGE, 4 * int(self._counts[0].sum()) // CODES)
        for place, count in zip(changed.tolist(), self._counts.view(-1)[changed].tolist(), strict=True):
            head, code = divmod(place, held)
            if count >= (PAGE if len(self._lists[head]) < CODES else longest):
                self._cut(head, code)

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
        self._pages[torch.tensor(rows), torch.tensor(columns)] = entries.int().repeat(len(self._lists))

    def _show(self, head: int, code: int) -> None:
        """Choose the pages of a list that are visited."""
        pages = self._lists[head][code]
        step = -(-len(pages) // SHOWN)
        own = pages[::step] if step else []
        self._shown[head, code] = torch.tensor(own + [-1] * (SHOWN - len(own)), dtype=torch.int32)

    def _page(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._pages):
            self._pages = grown(self._pages, max(64, self._used // 2))
        self._pages[self._used] = -1
        self._used += 1
        return self._used - 1

    def _cut(self, head: int, code: int) -> None:
        """Cut a list in two by 2-means; keys that cannot be told apart are cut in the middle of their time."""
        lists, entries = self._lists[head], self._listed(head, code)
        second = second_side(self._keys.of_head(entries, head))
        # A list that was emptied is taken first.
        new = next((other for other, pages in enumerate(lists) if not pages), len(lists))
        if new == len(lists):
            lists.append([])
        if new == self._counts.shape[1]:
            self._sums, self._means, self._counts = (
                torch.cat((own, torch.zeros_like(own)), 1) for own in (self._sums, self._means, self._counts)
            )
            self._shown = torch.cat((self._shown, torch.full_like(self._shown, -1)), 1)
        self._free_pages(head, code)
        for place, side in ((code, ~second), (new, second)):
            self._set(head, place, entries[side])

    def _listed(self, head: int, code: int) -> Tensor:
        """Return the keys of a list, [n] int64."""
        pages = self._pages[torch.tensor(self._lists[head][code])]
        return pages.flatten()[: int(self._counts[head, code])].long()

    def _free_pages(self, head: int, code: int) -> None:
        self._pages[torch.tensor(self._lists[head][code])] = -1
        self._free += self._lists[head][code]

    def _set(self, head: int, code: int, entries: Tensor) -> None:
        """Make a list, whose pages are free, one of keys [n]."""
        count = len(entries)
        self._lists[head][code] = pages = [self._page() for _ in range(0, count, PAGE)]
        for page, part in zip(pages, entries.int().split(PAGE) if count else (), strict=True):
            self._pages[page, : len(part)] = part
        self._sums[head, code] = self._keys.of_head(entries, head).sum(0)
        self._counts[head, code] = count
        self._means[head, code] = self._sums[head, code] / max(1, count)
        self._show(head, code)

    def forget(self, frames: Sequence[int]) -> None:
        """Take the keys of frames, which are there still, out of their lists."""
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
                    self._set(head, code, left)

    def find(self, states: Tensor, low: int, high: int, most: int) -> tuple[Tensor, Tensor]:
        """Return keys that queries may attend most, and about how much there is to attend.

        Each query visits the codes of its head in the order of their mean keys. What all queries of a head visit first
        is taken first, list by list.

        Args:
            states: [heads, queries, width], those of all query heads that share a key head.
            low, high: frames before and from which are left out.
            most: keys of a head, about.

        Returns:
            Keys [heads, n] as `FrameKeys.of_head` counts them, -1 for none; and [heads, queries] the logarithm of the
            sum over all keys, as `FrameKeys.logits` counts.
        """
        held = max(map(len, self._lists))
        logits = states @ self._means[:, :held].transpose(1, 2)
        counts = self._counts[:, :held]
        mass = (logits + counts.log()[:, None]).logsumexp(2)
        # Of a long list no more than `SHOWN` pages are visited.
        visited = float(counts.clamp_max(SHOWN * PAGE).sum()) / self.codes
        # Codes that are first, second and so on for a query come first; then those of the most attention.
        shares = (logits - mass[:, :, None]).clamp_max_(0).masked_fill_(counts[:, None] == 0, -torch.inf)
        best = shares.topk(min(max(RANKS, held // SORTED), held), dim=2)
        order = best.values.exp() + torch.arange(best.values.shape[2], 0, -1)
        visits = shares.amax(1).scatter_reduce_(1, best.indices.flatten(1), order.flatten(1), "amax")
        visits.masked_fill_(counts == 0, -torch.inf)
        parts, first = self._keys.parts, self._keys.first
        begin, end = (low - first) * parts, (high - first) * parts
        whole = begin <= 0 and end >= self._entries
        wanted = math.ceil(most / visited)
        codes = visits.topk(min(wanted if whole else SPREAD * wanted, held), dim=1).indices
        pages = self._shown.flatten(0, 1)[codes + torch.arange(len(codes))[:, None] * self._counts.shape[1]]
        pages = pages[:, :, : int((pages >= 0).any(0).any(0).sum())].flatten(1)
        entries = self._pages[pages].masked_fill_((pages < 0)[:, :, None], -1).flatten(1)
        if not whole:
            entries.masked_fill_((entries < begin) | (entries >= end), -1)
            entries.masked_fill_((entries >= 0).cumsum(1) > most, -1)
            entries = entries[:, (entries >= 0).any(0)]
        return entries, mass

    def state(self) -> StreamState:
        """Return the state for a file."""
        tensors = {"sums": self._sums, "counts": self._counts, "shown": self._shown}
        tensors["pages"] = self._pages[: self._used]
        return StreamState(tensors, {"lists": self._lists, "free": self._free})

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; no frame has come yet."""
        tensors = state.tensors
        self._sums, self._counts = tensors["sums"], tensors["counts"]
        self._means = self._sums / self._counts.clamp_min(1)[:, :, None]
        self._pages, self._used, self._shown = tensors["pages"], len(tensors["pages"]), tensors["shown"]
        self._lists, self._free = state.facts["lists"], state.facts["free"]
        self._entries = self._keys.count * self._keys.parts
