"""Attention of chosen rows over a table, without a mask of all rows by all rows; and having a model's layers use it."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from emblema.errors import ModelError
from emblema.models.masks import TableOrder, attention_masks
from emblema.models.tables import KVTable

NAME = "emblema"
MOST_QUERIES = 256
"""Rows that are attended at once: what they do not see of the rows up to the last of them is computed in vain."""
GAP = 4096
"""Scores computed in vain that cost as much as another call: neighbouring runs are joined while there are fewer."""
PACKED = 16
"""Rows up to which the query heads of a key head are packed into one axis of queries; beyond, it gains nothing."""
OTHER_SCORES = ("softcap", "position_bias", "s_aux")
"""Arguments of an attention function that change the scores: layers that give one attend as they do by themselves."""

Attend = Callable[..., Any]


@dataclass(slots=True)
class _Blocks:
    """Blocks that are open on one configuration, and what it said before the first."""

    before: str
    count: int = 0


class _Wanted(threading.local):
    """What a thread's layers call: the forward under way, and a block around it that watches."""

    rows: Attend | None = None
    watch: Attend | None = None


# transformers looks an attention function up by the name in a model's configuration, which threads share. So the name
# leads to one function, which asks what its own thread wants; the configuration is as it was after the last block.
_lock = threading.Lock()
_blocks: dict[int, _Blocks] = {}
_wanted = _Wanted()


def stock_attend(module: Any, *args: Any, **extra: Any) -> Any:
    """Attend as the model does by itself, in transformers' interface; `module` is the layer's attention."""
    return _functions().get(stock_attention(module.config), _eager_attend(module))(module, *args, **extra)


def stock_attention(config: Any) -> str:
    """Return the name of the attention function of a configuration, whatever blocks are open on it."""
    blocks = _blocks.get(id(config))
    return str(config._attn_implementation if blocks is None else blocks.before)


def _eager_attend(module: Any) -> Attend | None:
    """Return what a layer without a named function attends by: a function beside its class."""
    found: Attend | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return found


def row_attend(*args: Any, **extra: Any) -> Any:
    """Attend as the forward under way does by itself, over the rows of its table."""
    return (_wanted.rows or stock_attend)(*args, **extra)


def is_watched() -> bool:
    """Return whether this thread's layers call a function that watches (`attending_by`): it is given whole masks."""
    return _wanted.watch is not None


def _functions() -> Any:
    """Return transformers' table of attention functions, which is imported with its models and not before."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def _attend(*args: Any, **extra: Any) -> Any:
    return (_wanted.watch or _wanted.rows or stock_attend)(*args, **extra)


@contextmanager
def attending_by(config: Any, attend: Attend) -> Iterator[None]:
    """Have layers call an attention function of transformers' interface inside the block, in this thread.

    Args:
        config: the decoder's configuration.
        attend: the function; it calls `row_attend`, or `stock_attend` with rows of its own.
    """
    with _named(config), _wanting(attend, _wanted.rows):
        yield


@contextmanager
def attending_rows(config: Any, attend: Attend) -> Iterator[None]:
    """Have layers attend by a function inside the block, in this thread, unless a block around it watches."""
    with _named(config), _wanting(_wanted.watch, attend):
        yield


@contextmanager
def attending_anew() -> Iterator[None]:
    """Have no block around this one count in it, for other forwards in the midst of one."""
    with _wanting(None, None):
        yield


@contextmanager
def _wanting(watch: Attend | None, rows: Attend | None) -> Iterator[None]:
    outer = _wanted.watch, _wanted.rows
    _wanted.watch, _wanted.rows = watch, rows
    try:
        yield
    finally:
        _wanted.watch, _wanted.rows = outer


@contextmanager
def _named(config: Any) -> Iterator[None]:
    """Have a configuration name `_attend`."""
    with _lock:
        _functions()[NAME] = _attend
        blocks = _blocks.setdefault(id(config), _Blocks(config._attn_implementation))
        blocks.count += 1
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _lock:
            blocks.count -= 1
            if blocks.count == 0:
                config._attn_implementation = blocks.before
                del _blocks[id(config)]


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Rows of a batch that are attended at once.

    Attributes:
        start, stop: of the rows in the batch.
        low, high: slots of the table outside of which they attend nothing.
        causal: the rows are all rows from `low` to `high`, and each attends those before it and itself.
        free: the rows attend all rows from `low` to `high`.
    """

    start: int
    stop: int
    low: int
    high: int
    causal: bool = False
    free: bool = False


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Rows that linear attention runs over, in the order of the prompt.

    Attributes:
        slots: [scanned] int64, of the table.
        places: [rows] int64, where the batch's rows are among them.
        before: [earlier] int64, slots of the rows before, in order.
        start: row of the prompt.
        until: the state that they end with is of all rows before this one; 0 where it is not.
    """

    slots: Tensor
    places: Tensor
    before: Tensor
    start: int
    until: int


RowKernel = Callable[[Tensor, Tensor, Tensor, TableOrder, float], Tensor]
"""Attention [heads, queries, width] of queries, keys, values, an order and a scale of the scores."""


@lru_cache(maxsize=16)
def row_kernel(device: torch.device) -> RowKernel | None:
    """Return a device's kernel that attends by rows and groups: Triton's on a GPU, where it comes with torch."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from emblema.models.attention_triton import attend

    found: RowKernel = attend
    return found


class AttendedRows:
    """Says for the rows of a batch which rows of the table each attends (`attention_masks` says by what rule).

    Where the table's rows are in the order of the prompt, rows are attended in blocks, each over the front of the table
    that it sees; a mask is made of a block alone, and only where a block does not see all of it.

    Args:
        table: the table; rows are not allocated in it while this lives.
        slots: [rows] int64, of the batch's rows in the table.
        windows: of each layer.
        hidden_from: [rows, table.length] bool, True may not be attended; None hides nothing.
        full_layers_causal: whether layers without a window attend causally inside a bidirectional group.
        wanted: rows at the batch's end whose final hidden states are wanted; the last layer attends for no others, and
            puts out zeros for them. None: all.
    """

    def __init__(
        self,
        table: KVTable,
        slots: Tensor,
        windows: Sequence[int | None],
        hidden_from: Tensor | None = None,
        full_layers_causal: bool = False,
        wanted: int | None = None,
    ) -> None:
        self._table, self.slots, self._windows = table, slots, tuple(windows)
        self._hidden_from, self._causal = hidden_from, full_layers_causal
        self._unwanted = 0 if wanted is None else len(slots) - wanted
        self._wanted = wanted
        self._copies: dict[torch.device, AttendedRows] = {}
        self._masks: dict[tuple[int | None, int, int], Tensor] = {}
        self._blocks: dict[tuple[int | None, int], tuple[QueryBlock, ...]] = {}
        self._orders: dict[tuple[int | None, int], TableOrder] = {}
        self._before: dict[int, Tensor] = {}
        self._scans: dict[int, ScannedRows] = {}

    def on(self, device: torch.device) -> "AttendedRows":
        """Return the same for layers on a device, copied there once; itself where it is there."""
        if device == self.slots.device:
            return self
        if device not in self._copies:
            hidden = None if self._hidden_from is None else self._hidden_from.to(device)
            self._copies[device] = AttendedRows(
                self._table, self.slots.to(device), self._windows, hidden, self._causal, self._wanted
            )
        return self._copies[device]

    def select(self, rows: Tensor) -> "AttendedRows":
        """Return what some rows of the batch attend, in the order given."""
        hidden = None if self._hidden_from is None else self._hidden_from[rows]
        return AttendedRows(self._table, self.slots[rows], self._windows, hidden, self._causal)

    def rows_before(self, taps: int) -> Tensor:
        """Return the slots [rows, taps] int64 that a convolution of the batch's rows reads.

        They hold the rows before that are not hidden, in the order of the prompt, then the row itself; -1 is none.
        """
        if taps not in self._before:
            rows = self._table.order(self.slots.device)[0][: self._table.length]
            ordered, slots = rows.sort()
            places = torch.searchsorted(ordered, rows.index_select(0, self.slots))
            if self._hidden_from is None:
                found = places[:, None] - torch.arange(taps - 1, -1, -1, device=slots.device)
            else:
                found = self._last_seen(places, ~self._hidden_from.index_select(1, slots), taps)
            self._before[taps] = slots[found.clamp_min(0)].masked_fill(found < 0, -1)
        return self._before[taps]

    def scanned(self, start: int) -> "ScannedRows":
        """Return the rows that linear attention runs over for the batch's rows, from row `start` of the prompt.

        It begins with the prompt where a row of the batch is before `start`, or rows are hidden: these are left out.
        All other rows before must be in the table.

        Raises:
            ModelError: not all rows of the batch are hidden from the same rows: a state is of all rows before.
        """
        if start not in self._scans:
            rows = self._table.order(self.slots.device)[0][: self._table.length]
            own = rows.index_select(0, self.slots)
            first, last = (int(number) for number in own.aminmax())
            ordered, slots = rows.sort()
            begin, until = (start if first >= start else 0), last + 1
            if self._hidden_from is not None:
                if bool((self._hidden_from != self._hidden_from[:1]).any()):
                    raise ModelError(
                        "rows of one batch cannot be hidden from some of its rows alone: a layer keeps a state"
                    )
                kept = ~self._hidden_from[0].index_select(0, slots)
                # A state without the hidden rows is of no other use.
                ordered, slots, begin, until = ordered[kept], slots[kept], 0, 0
            low, high = torch.searchsorted(ordered, ordered.new_tensor([begin, last + 1])).tolist()
            places = torch.searchsorted(ordered, own) - low
            self._scans[start] = ScannedRows(slots[low:high], places, slots[:low], begin, until)
        return self._scans[start]

    def _last_seen(self, places: Tensor, seen: Tensor, taps: int) -> Tensor:
        """Return the last `taps` places up to each row's own, -1 for none, of those that are seen [rows, length]."""
        order = torch.arange(seen.shape[1], device=seen.device)
        among = torch.where(seen & (order < places[:, None]), order, -1)
        last = among.topk(min(taps - 1, seen.shape[1]), dim=1).values.flip(1)
        last = torch.cat((last, places[:, None]), dim=1)
        return torch.nn.functional.pad(last, (taps - last.shape[1], 0), value=-1)

    @cached_property
    def masks(self) -> dict[int | None, Tensor]:
        """An additive mask [1, 1, rows, length] for each distinct window, for who asks for all of it."""
        return attention_masks(self._table, self.slots, self._windows, self._hidden_from, self._causal)

    def no_mask(self) -> dict[int | None, Tensor]:
        """Return what layers are given where they attend by this: of a mask's shape, without its memory."""
        nothing = torch.zeros(1, 1, 1, 1, dtype=self._table.dtype, device=self.slots.device)
        return dict.fromkeys(self._windows, nothing.expand(1, 1, len(self.slots), self._table.length))

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any
    ) -> tuple[Tensor, None]:
        """Attend in transformers' interface: `mask` is not looked at.

        Args:
            query: [1, heads, rows, width].
            key, value: [1, key heads, length, width] of the table.
        """
        if query.device != self.slots.device:
            return self.on(query.device).attend(module, query, key, value, mask, **extra)
        layer, scaling = int(module.layer_idx), extra.get("scaling")
        window = self._windows[layer]
        if changes_scores(extra):
            return stock_attend(module, query, key, value, self.masks[window], **extra)[0], None
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        first = self._unwanted if layer == len(self._windows) - 1 else 0
        kernel = row_kernel(query.device)
        whole = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
        whole[:, :first] = 0
        if kernel is not None and first < len(self.slots):
            order = self._order(window, first)
            whole[0, first:] = kernel(query[0, :, first:], key[0], value[0], order, scale).transpose(0, 1)
        for block in self._blocks_of(window, first) if kernel is None else ():
            held, part = slice(block.low, block.high), slice(block.start, block.stop)
            own = None if block.causal else self._mask(block, window)
            found = attend_grouped(query[:, :, part], key[:, :, held], value[:, :, held], own, scale, block.causal)
            whole[:, part] = found.transpose(1, 2)
        return whole, None

    def _order(self, window: int | None, first: int) -> TableOrder:
        """Return what a kernel reads in place of a mask, for the batch's rows from `first` on."""
        if (window, first) not in self._orders:
            slots, length = self.slots[first:], self._table.length
            rows, groups = self._table.order(slots.device)
            if window is None and self._causal:
                groups = torch.full_like(groups, -1)
            hidden = None if self._hidden_from is None else self._hidden_from[first:]
            own = (rows.index_select(0, slots), groups.index_select(0, slots))
            self._orders[window, first] = TableOrder(*own, rows[:length], groups[:length], hidden, window)
        return self._orders[window, first]

    def _mask(self, block: QueryBlock, window: int | None) -> Tensor | None:
        """Return the mask [rows, slots] of a block; None where all is seen."""
        if block.free:
            return None
        key = (window, block.start, block.stop)
        if key not in self._masks:
            hidden = self._hidden_from
            if hidden is not None:
                hidden = hidden[block.start : block.stop, block.low : block.high]
            own = self.slots[block.start : block.stop]
            made = attention_masks(self._table, own, (window,), hidden, self._causal, slice(block.low, block.high))
            self._masks[key] = made[window][0, 0]
        return self._masks[key]

    def _blocks_of(self, window: int | None, first: int) -> tuple[QueryBlock, ...]:
        """Return the blocks of the batch's rows from `first` on."""
        if (window, first) not in self._blocks:
            self._blocks[window, first] = tuple(self._made(window, first))
        return self._blocks[window, first]

    @cached_property
    def _in_order(self) -> list[int] | None:
        """Slots of the batch, where they rise in a causal table; None elsewhere or unknown.

        On a device to know it the host would have to wait.
        """
        if not self._table.causal or self._hidden_from is not None or self.slots.device.type != "cpu":
            return None
        slots: list[int] = self.slots.tolist()
        return slots if len(slots) == 1 or bool((self.slots[1:] > self.slots[:-1]).all()) else None

    def _made(self, window: int | None, first: int) -> Iterator[QueryBlock]:
        """Yield the blocks of the batch's rows from `first` on, for layers with a window."""
        count, length = len(self.slots), self._table.length
        slots = self._in_order
        if slots is None:
            step = MOST_QUERIES if self.slots.device.type == "cpu" else max(1, count)
            for start in range(first, count, step):
                yield QueryBlock(start, min(start + step, count), 0, length)
            return
        (rows, _), start = self._table.order(self.slots.device), first
        for stop in range(first + 1, count + 1):
            if stop < count and not _ends(slots, start, stop):
                continue
            high, low = slots[stop - 1] + 1, 0
            bound = window is not None and int(rows[slots[stop - 1]] - rows[0]) >= window
            if bound:
                out = int(rows[slots[start]]) - int(window or 0)
                low = int(torch.searchsorted(rows[:length], out, right=True))
            alone = stop - start == 1
            yield QueryBlock(start, stop, low, high, causal=not bound and stop - start == high, free=alone)
            start = stop


def _ends(slots: Sequence[int], start: int, stop: int) -> bool:
    """Return whether a block of rows from `start` ends before `stop`."""
    gap = slots[stop] - slots[stop - 1]
    # A block from the table's front is causal, and nothing is computed in vain.
    whole = slots[start] == 0 and slots[stop - 1] == stop - start - 1
    if gap == 1:
        return stop - start >= MOST_QUERIES and not whole
    return whole and stop - start > PACKED or (stop - start) * gap > GAP or stop - start >= MOST_QUERIES


def attend_grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, causal: bool = False
) -> Tensor:
    """Return attention of queries over the key heads that serve them, without copies of these for few queries.

    Args:
        query: [sequences, heads, rows, width].
        key, value: [sequences, key heads, slots, width].
        mask: added to the scores: [rows, slots], or [sequences, 1, 1, slots] of a row each; None where all is seen.
        scale: of the scores; None for one over the root of the width.
        causal: the slots are the rows, and each sees those before it and itself.

    Returns:
        [sequences, heads, rows, value width].
    """
    sequences, heads, count, width = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or count > PACKED:
        grouped = shared > 1
        return scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    if causal and count > 1:
        later = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
        mask = query.new_zeros(count, count).masked_fill(later, torch.finfo(query.dtype).min)
    if mask is not None and mask.dim() == 2:
        mask = mask.repeat(shared, 1)
    packed = query.reshape(sequences, key.shape[1], shared * count, width)
    found = scaled_dot_product_attention(packed, key, value, mask, scale=scale)
    return found.reshape(sequences, heads, count, value.shape[3])


def changes_scores(extra: Mapping[str, Any]) -> bool:
    """Return whether arguments of an attention function change the scores."""
    return any(extra.get(name) is not None for name in OTHER_SCORES)


def attend_step(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any
) -> tuple[Tensor, None]:
    """Attend for one new row of each sequence in transformers' interface; `mask` is [sequences, 1, 1, rows]."""
    if changes_scores(extra):
        return stock_attend(module, query, key, value, mask, **extra)[0], None
    return attend_grouped(query, key, value, mask, extra.get("scaling")).transpose(1, 2), None
