"""The loops of the search, compiled by Numba when this is imported: `LoopKernels`.

They run on one thread, hold no state, and give the interpreter's lock back. Compiled code is kept where Numba finds a
folder that can be written.
"""

import numba
import numpy
from numpy import float32, int32
from numpy.typing import NDArray

from emblema.stream.mosaic.compiling import compiled, prefetch
from emblema.stream.mosaic.kernels import BIG, RANKS, ArrayKernels, Asked, Halves, Marks, SearchArrays
from emblema.stream.mosaic.orders import Numbers, Scores
from emblema.stream.mosaic.tiles import AHEAD, LANES, MOST, compare, products

COLUMNS = 64
"""A row is looked at as a table of so many columns: the highest of each is found without a branch, and noted."""
LOWEST, HIDDEN = float32(-87.0), float32(-BIG)
LOG2E, LN2_HIGH, LN2_LOW = float32(1.44269504), float32(0.693359375), float32(-2.12194440e-4)
NO_SCORES, NO_ENTRIES = numpy.zeros((0, 0), numpy.float32), numpy.zeros((0, 0), numpy.int64)
LOOSE = {"reassoc", "nsz"}
"""Sums may be added in any order; no product is added without being rounded, as NumPy does not either."""


@numba.njit(fastmath=LOOSE, inline="always")
def exponential(number):
    """Return e to the power of a number of at most 0, as Cephes does; e to -87 for lower ones."""
    number = max(number, LOWEST)
    whole = numpy.floor(number * LOG2E + float32(0.5))
    rest = number - whole * LN2_HIGH - whole * LN2_LOW
    series = float32(1.9875691500e-4)
    series = series * rest + float32(1.3981999507e-3)
    series = series * rest + float32(8.3334519073e-3)
    series = series * rest + float32(4.1665795894e-2)
    series = series * rest + float32(1.6666665459e-1)
    series = series * rest + float32(5.0000001201e-1)
    power = int32((int32(whole) + int32(127)) << int32(23)).view(float32)
    return (series * rest * rest + rest + float32(1)) * power


@compiled("void(f4[::1],f4[::1])")
def note(row, columns):
    """Note the highest number of each column of a row."""
    columns[:] = -numpy.inf
    full = len(row) // COLUMNS * COLUMNS
    for start in range(0, full, COLUMNS):
        for column in range(COLUMNS):
            columns[column] = max(columns[column], row[start + column])
    for column in range(len(row) - full):
        columns[column] = max(columns[column], row[full + column])


@compiled("Tuple((i8,f4))(f4[::1],f4[::1])")
def take(row, columns):
    """Return place and size of a row's highest number, the first of several, and make it the lowest."""
    highest = columns[0]
    for column in range(1, COLUMNS):
        highest = max(highest, columns[column])
    place = len(row)
    for column in range(COLUMNS):
        if columns[column] == highest:
            for own in range(column, place, COLUMNS):
                if row[own] == highest:
                    place = own
                    break
    if place == len(row):
        return 0, float32(-numpy.inf)
    row[place] = -numpy.inf
    column, second = place % COLUMNS, float32(-numpy.inf)
    for own in range(column, len(row), COLUMNS):
        second = max(second, row[own])
    columns[column] = second
    return place, highest


@compiled("f4(f4[::1],f4[::1])")
def highest_of(row, columns):
    """Return the highest number of a row, at least `HIDDEN`, and note that of each column."""
    note(row, columns)
    highest = HIDDEN
    for column in range(COLUMNS):
        highest = max(highest, columns[column])
    return highest


@compiled("f4[:,::1](f4[:,:,::1],i8[:,::1])", fastmath=LOOSE)
def log_sum(logits, entries):
    heads, queries, count = logits.shape
    found, columns = numpy.empty((heads, queries), numpy.float32), numpy.empty(COLUMNS, numpy.float32)
    for head in range(heads):
        size = count
        while len(entries) and size and entries[head, size - 1] < 0:
            size -= 1
        for query in range(queries):
            logits[head, query, size:] = -numpy.inf
            row = logits[head, query, :size]
            highest, total = highest_of(row, columns), float32(0)
            for place in range(size):
                total += exponential(row[place] - highest)
            found[head, query] = numpy.log(total) + highest
    return found


@compiled("i8[::1](f4[::1])")
def rising(numbers):
    """Return the places of numbers, the lowest first, equal ones as they come: NumPy's own takes seconds to compile."""
    order, other = numpy.arange(len(numbers)), numpy.empty(len(numbers), numpy.int64)
    width = 1
    while width < len(numbers):
        for start in range(0, len(numbers), 2 * width):
            left, middle, stop = start, min(start + width, len(numbers)), min(start + 2 * width, len(numbers))
            right = middle
            for place in range(start, stop):
                if left < middle and (right == stop or numbers[order[left]] <= numbers[order[right]]):
                    other[place] = order[left]
                    left += 1
                else:
                    other[place] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    return order


@compiled("void(f4[:,:,::1],f4[::1],b1[:,::1],i8)")
def fill_up(bounds, highest, seen, wanted):
    """See codes that come closest to a query's first one, as `kernels.fill_up`."""
    heads, queries, codes = bounds.shape
    nearness = numpy.empty(codes, numpy.float32)
    for head in range(heads):
        nearness[:] = -numpy.inf
        for query in range(queries):
            most = highest[head * queries + query]
            for code in range(codes):
                nearness[code] = max(nearness[code], bounds[head, query, code] - most)
        for code in range(codes):
            if seen[head, code]:
                nearness[code] = numpy.inf
        least = max(nearness[rising(nearness)[codes - wanted]], HIDDEN)
        for code in range(codes):
            seen[head, code] |= nearness[code] >= least


@compiled("Tuple((f4[:,::1],b1[:,::1]))(f4[:,:,::1],f4[:,::1],f4[:,::1],f4[:,::1],i8)", fastmath=LOOSE)
def visit(products, lengths, reach, counts, wanted):
    """Return sums and the codes seen; write bounds over the products."""
    heads, queries, codes = products.shape
    mass, seen = numpy.empty((heads, queries), numpy.float32), numpy.zeros((heads, codes), numpy.bool_)
    highest = numpy.empty(heads * queries, numpy.float32)
    columns = numpy.empty((heads * queries, COLUMNS), numpy.float32)
    for head in range(heads):
        far, many = reach[head, :codes], counts[head, :codes]
        for query in range(queries):
            row, index = products[head, query], head * queries + query
            most, total = highest_of(row, columns[index]), float32(0)
            for code in range(codes):
                total += many[code] * exponential(row[code] - most)
            mass[head, query] = numpy.log(total) + most
            length = lengths[head, query]
            for code in range(codes):
                row[code] += length * far[code]
            highest[index] = highest_of(row, columns[index])
    found = numpy.zeros(heads, numpy.int64)
    for rank in range(1, RANKS + 1):
        for head in range(heads):
            for query in range(queries):
                code, _ = take(products[head, query], columns[head * queries + query])
                if not seen[head, code]:
                    seen[head, code] = True
                    found[head] += 1
        if rank * queries >= wanted and found.sum() >= wanted * heads and 2 * found.min() >= wanted:
            return mass, seen
    fill_up(products, highest, seen, wanted)
    return mass, seen


@compiled(
    "i8[:,::1](b1[:,::1],i4[:,:,::1],i2[:,::1],i8,i8)",
    "i8[:,::1](b1[:,::1],i4[:,:,::1],i4[:,::1],i8,i8)",
)
def collect(seen, shown, pages, begin, end):
    heads, codes = seen.shape
    lists, sizes = numpy.zeros(heads, numpy.int64), numpy.zeros(heads, numpy.int64)
    own = numpy.empty((heads, codes * shown.shape[2]), numpy.int64)
    at = pages.ctypes.data
    for head in range(heads):
        for code in range(codes):
            if seen[head, code]:
                for page in shown[head, code]:
                    if page >= 0:
                        own[head, lists[head]] = page
                        lists[head] += 1
                        prefetch(at + page * pages.strides[0])
    room = lists.max() * pages.shape[1]
    found = numpy.empty((heads, room), numpy.int64)
    for head in range(heads):
        size = 0
        for index in range(lists[head]):
            for entry in pages[own[head, index]]:
                if begin <= entry < end:
                    found[head, size] = entry
                    size += 1
        found[head, size:] = -1
        sizes[head] = size
    return found[:, : sizes.max()].copy()


@compiled("f4[:,:,::1](i1[:,::1],i2[::1],i8[:,::1])")
def gather(keys, scales, entries):
    heads, count = entries.shape
    width = keys.shape[1]
    found = numpy.empty((heads, count, width), numpy.float32)
    keys_at, scales_at = keys.ctypes.data, scales.ctypes.data
    for head in range(heads):
        for place in range(count):
            if place + AHEAD < count:
                later = entries[head, place + AHEAD] * heads + head
                prefetch(keys_at + later * keys.strides[0])
                prefetch(scales_at + later * scales.strides[0])
            row = max(entries[head, place], 0) * heads + head
            scale = int32(int32(scales[row]) << int32(16)).view(float32)
            for column in range(width):
                found[head, place, column] = scale * keys[row, column]
    return found


@compiled("i8[:,::1](f4[:,:,::1],f4[:,::1],i8[:,::1],i8,i8[::1],i8,i8)")
def first_lines(logits, mass, entries, parts, groups, count, budget):
    """Return lines [groups, budget]; -1 for none."""
    heads, queries, keys = logits.shape
    chosen = numpy.full((count, budget), -1, numpy.int64)
    columns = numpy.empty((heads, queries, COLUMNS), numpy.float32)
    weights, lines = numpy.empty(heads * queries, numpy.float32), numpy.empty(heads * queries, numpy.int64)
    for head in range(heads):
        for query in range(queries):
            note(logits[head, query], columns[head, query])
    for group in range(count):
        own, size = chosen[group], 0
        for _ in range(keys):
            found = 0
            for head in range(heads):
                for query in range(queries):
                    if groups[query % len(groups)] != group:
                        continue
                    place, highest = take(logits[head, query], columns[head, query])
                    if highest > -numpy.inf:
                        weights[found] = max(mass[head, query] - highest, float32(0))
                        lines[found] = (entries[head, place] if len(entries) else place) // parts
                        found += 1
            for index in rising(weights[:found]):
                known = False
                for line in own[:size]:
                    known |= line == lines[index]
                if not known and size < budget:
                    own[size] = lines[index]
                    size += 1
            if found == 0 or size == budget:
                break
    return chosen


@compiled("i8[:,::1](f4[:,:,::1],f4[:,::1],i8[:,::1],i8,i8[::1],i8,i8)")
def choose(logits, known, entries, parts, groups, count, budget):
    """Return lines [groups, budget]; -1 for none."""
    mass = log_sum(logits, entries)
    if len(known):
        mass = numpy.maximum(mass, known)
    return first_lines(logits, mass, entries, parts, groups, count, budget)


CODES = "f4[:,:,::1],i2[:,:,::1],f4[:,::1],f4[:,::1],i4[:,:,::1]"
REST = "i8,i8,i8,i1[:,::1],i2[::1],i8,i8[::1],i8,i8"


@compiled(f"i8[:,::1]({CODES},i2[:,::1],{REST})", f"i8[:,::1]({CODES},i4[:,::1],{REST})")
def search(
    states, means, reach, counts, shown, pages, codes, number, wanted, keys, scales, parts, groups, count, budget
):
    """Return lines [groups, budget] by all of the above in one call; -1 for none."""
    found, lengths = products(states, means, codes)
    mass, seen = visit(found, lengths, reach, counts, wanted)
    entries = collect(seen, shown, pages, 0, number)
    return choose(compare(states, keys, scales, entries), mass, entries, parts, groups, count, budget)


class LoopKernels(ArrayKernels):
    """Compiled kernels, where a loop is quicker than an array's own operations."""

    def products(self, states: Scores, means: Halves, codes: int) -> tuple[Scores, Scores]:
        if not _in_tiles(states):
            return super().products(states, means, codes)
        found: tuple[Scores, Scores] = products(numpy.ascontiguousarray(states), means.view(numpy.int16), codes)
        return found

    def visit(
        self, products: Scores, lengths: Scores, reach: Scores, counts: Scores, wanted: int
    ) -> tuple[Scores, Marks]:
        found: tuple[Scores, Marks] = visit(products, lengths, reach, counts, wanted)
        return found

    def collect(
        self,
        seen: Marks,
        shown: NDArray[numpy.int32],
        pages: NDArray[numpy.integer],
        begin: int,
        end: int,
    ) -> Numbers:
        found: Numbers = collect(seen, shown, pages, begin, end)
        return found

    def compare(
        self, states: Scores, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers
    ) -> Scores:
        if not _in_tiles(states):
            return super().compare(states, keys, scales, entries)
        found: Scores = compare(numpy.ascontiguousarray(states), keys, scales, entries)
        return found

    def gather(self, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers) -> Scores:
        found: Scores = gather(keys, scales, entries)
        return found

    def choose(
        self, logits: Scores, known: Scores | None, entries: Numbers | None, parts: int, asked: Asked
    ) -> list[Numbers]:
        if not asked.placed:
            return super().choose(logits, known, entries, parts, asked)
        lines: Numbers = choose(
            logits,
            NO_SCORES if known is None else known,
            NO_ENTRIES if entries is None else entries,
            parts,
            asked.groups,
            asked.count,
            asked.budget,
        )
        return _taken(lines)

    def search(self, states: Scores, index: SearchArrays, wanted: int, asked: Asked) -> list[Numbers]:
        if not asked.placed or not _in_tiles(states):
            return super().search(states, index, wanted, asked)
        lines: Numbers = search(
            numpy.ascontiguousarray(states),
            index.means.view(numpy.int16),
            index.reach,
            index.counts,
            index.shown,
            index.pages,
            index.codes,
            index.entries,
            wanted,
            index.keys,
            index.scales,
            index.parts,
            asked.groups,
            asked.count,
            asked.budget,
        )
        return _taken(lines)


def _in_tiles(states: Scores) -> bool:
    """Say whether tiles are made for queries [heads, queries, width]."""
    return bool(states.shape[1] <= MOST and states.shape[2] % LANES == 0)


def _taken(lines: Numbers) -> list[Numbers]:
    """Return the lines of each group without those that are none."""
    return [own if own[-1] >= 0 else own[own >= 0] for own in lines]
