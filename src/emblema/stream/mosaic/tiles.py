"""Products of a few queries with many short keys, eight by eight, compiled by Numba when this is imported.

A tile is the products of eight queries with eight keys. Its sums stay in the processor's vectors, each of one key and
all queries, and keys are made float32 on the way: they are read once, and nothing of them is written. What takes keys
from all over memory, or in half precision, is quicker so than by matrices that have to be made first.
"""

import numpy
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy import float32, int32

from emblema.stream.mosaic.compiling import compiled, prefetch
from emblema.stream.mosaic.kernels import LEAST_LENGTH

LANES = 8
"""Queries, and keys, of a tile. Keys have a multiple of so many columns."""
MOST = 4 * LANES
"""Queries that tiles are quicker for than matrices, at the most."""
AHEAD = 64
"""Keys that are asked for before they are read."""
NUMBER, WHOLE, SHORT, BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
ADDRESS = ir.IntType(64)
NUMBERS, WHOLES = ir.VectorType(NUMBER, LANES), ir.VectorType(WHOLE, LANES)
NONE = ir.Constant(NUMBERS, ir.Undefined)


def every(number):
    """Return a vector of one whole number."""
    return ir.Constant(WHOLES, [number] * LANES)


def from_bytes(builder, address):
    """Return eight numbers of 8 bits each as float32."""
    pointer = builder.inttoptr(address, ir.VectorType(BYTE, LANES).as_pointer())
    return builder.sitofp(builder.sext(builder.load(pointer, align=1), WHOLES), NUMBERS)


def from_halves(builder, address):
    """Return eight finite numbers in half precision as float32, by their bits: not all processors know the kind."""
    pointer = builder.inttoptr(address, ir.VectorType(SHORT, LANES).as_pointer())
    bits = builder.sext(builder.load(pointer, align=2), WHOLES)
    size = builder.bitcast(builder.shl(builder.and_(bits, every(0x7FFF)), every(13)), NUMBERS)
    # An exponent counts from 127 and no more from 15.
    size = builder.fmul(size, ir.Constant(NUMBERS, [2.0**112] * LANES))
    sign = builder.and_(bits, every(-(2**31)))
    return builder.bitcast(builder.or_(builder.bitcast(size, WHOLES), sign), NUMBERS)


def transposed(builder, rows):
    """Return eight vectors' columns."""
    rows, step = list(rows), 1
    while step < LANES:
        for place in (place for place in range(LANES) if not place & step):
            pair = rows[place], rows[place | step]
            first = [lane + (LANES - step if lane & step else 0) for lane in range(LANES)]
            second = [lane + (LANES if lane & step else step) for lane in range(LANES)]
            rows[place], rows[place | step] = (
                builder.shuffle_vector(*pair, ir.Constant(WHOLES, lanes)) for lanes in (first, second)
            )
        step *= 2
    return rows


def tile(widened, width):
    """Return what writes a tile of keys, whose numbers of `width` bytes are read by `widened`."""

    @intrinsic
    def write_tile(typing_context, keys, scales, queries, columns, out, stride):
        """Write products.

        Args:
            keys, scales: addresses of eight addresses of keys, and of eight factors.
            queries: address of numbers [columns, eight].
            columns: of a key.
            out: address of the first query's products; those of the next one are `stride` bytes farther.
        """

        def build(context, builder, signature, arguments):
            keys, scales, queries, columns, out, stride = arguments
            shape = ir.FunctionType(NUMBERS, [NUMBERS] * 3)
            times = cgutils.get_or_insert_function(builder.module, shape, f"llvm.fmuladd.v{LANES}f32")
            every_key = builder.inttoptr(keys, ADDRESS.as_pointer())
            rows = [builder.load(builder.gep(every_key, [ir.Constant(ADDRESS, key)])) for key in range(LANES)]
            zeros = ir.Constant(NUMBERS, [0.0] * LANES)
            held = [cgutils.alloca_once(builder, NUMBERS) for _ in range(LANES)]
            for own in held:
                builder.store(zeros, own)
            with cgutils.for_range(builder, builder.udiv(columns, ir.Constant(ADDRESS, LANES))) as loop:
                away = builder.mul(loop.index, ir.Constant(ADDRESS, LANES * width))
                parts = [widened(builder, builder.add(row, away)) for row in rows]
                away = builder.mul(loop.index, ir.Constant(ADDRESS, LANES * LANES * 4))
                states = builder.inttoptr(builder.add(queries, away), NUMBERS.as_pointer())
                sums = [builder.load(own) for own in held]
                for column in range(LANES):
                    state = builder.load(builder.gep(states, [ir.Constant(ADDRESS, column)]), align=4)
                    for key, part in enumerate(parts):
                        number = builder.shuffle_vector(part, NONE, every(column))
                        sums[key] = builder.call(times, [number, state, sums[key]])
                for own, total in zip(held, sums, strict=True):
                    builder.store(total, own)
            factors = builder.load(builder.inttoptr(scales, NUMBERS.as_pointer()), align=4)
            for query, row in enumerate(transposed(builder, [builder.load(own) for own in held])):
                place = builder.add(out, builder.mul(stride, ir.Constant(ADDRESS, query)))
                builder.store(builder.fmul(row, factors), builder.inttoptr(place, NUMBERS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 6), build

    return write_tile


tile_of_bytes, tile_of_halves = tile(from_bytes, 1), tile(from_halves, 2)


@compiled("f4[:,:,::1](f4[:,:,::1])")
def in_lanes(states):
    """Return queries [heads, queries, width] as [heads, queries / eight, width x eight], zeros for missing ones."""
    heads, queries, width = states.shape
    found = numpy.zeros((heads, (queries + LANES - 1) // LANES, width * LANES), numpy.float32)
    for head in range(heads):
        for query in range(queries):
            for column in range(width):
                found[head, query // LANES, column * LANES + query % LANES] = states[head, query, column]
    return found


@compiled("void(f4[:,::1],f4[:,::1],i8,i8,i8,i8)")
def copy_tile(found, rest, row, queries, start, size):
    """Write the part of a tile that lies inside of all products."""
    for query in range(queries):
        for index in range(size):
            found[row + query, start + index] = rest[query, index]


@compiled("f4[:,:,::1](f4[:,:,::1],i1[:,::1],i2[::1],i8[:,::1])")
def compare(states, keys, scales, entries):
    """Return products [heads, queries, n] of queries with entries, whose keys and scales lie by entry and head."""
    heads, queries, width = states.shape
    count, lanes = entries.shape[1], in_lanes(states)
    groups = lanes.shape[1]
    # A tile's last rows may lie where those of the next head come to lie, which are written later.
    found = numpy.empty((heads * queries + groups * LANES - queries, count), numpy.float32)
    rest, addresses = numpy.empty((LANES, LANES), numpy.float32), numpy.zeros(LANES, numpy.int64)
    factors = numpy.zeros(LANES, numpy.float32)
    keys_at, scales_at = keys.ctypes.data, scales.ctypes.data
    for head in range(heads):
        for start in range(0, count, LANES):
            size = min(LANES, count - start)
            for index in range(size):
                place = start + index
                if place + AHEAD < count:
                    later = entries[head, place + AHEAD] * heads + head
                    prefetch(keys_at + later * keys.strides[0])
                    prefetch(scales_at + later * scales.strides[0])
                row = max(entries[head, place], 0) * heads + head
                factors[index] = int32(int32(scales[row]) << int32(16)).view(float32)
                addresses[index] = keys_at + row * keys.strides[0]
            if size < LANES:
                addresses[size:] = addresses[0]
            for group in range(groups):
                row = head * queries + group * LANES
                own = lanes[head, group]
                if size == LANES:
                    out, stride = found[row, start:].ctypes.data, found.strides[0]
                else:
                    out, stride = rest.ctypes.data, rest.strides[0]
                tile_of_bytes(addresses.ctypes.data, factors.ctypes.data, own.ctypes.data, width, out, stride)
                if size < LANES:
                    copy_tile(found, rest, row, min(LANES, queries - group * LANES), start, size)
    return found[: heads * queries].reshape((heads, queries, count))


@compiled("Tuple((f4[:,:,::1],f4[:,::1]))(f4[:,:,::1],i2[:,:,::1],i8)")
def products(states, means, codes):
    """Return products [heads, queries, codes] of queries with the first means of their head, and the queries' lengths.

    Args:
        means: the bits of halves.
    """
    heads, queries, width = states.shape
    lanes = in_lanes(states)
    groups = lanes.shape[1]
    found = numpy.empty((heads * queries + groups * LANES - queries, codes), numpy.float32)
    rest, addresses = numpy.empty((LANES, LANES), numpy.float32), numpy.zeros(LANES, numpy.int64)
    factors = numpy.ones(LANES, numpy.float32)
    for head in range(heads):
        for start in range(0, codes, LANES):
            size = min(LANES, codes - start)
            for index in range(LANES):
                place = start + index if index < size else start
                addresses[index] = means.ctypes.data + head * means.strides[0] + place * means.strides[1]
            for group in range(groups):
                row = head * queries + group * LANES
                own = lanes[head, group]
                if size == LANES:
                    out, stride = found[row, start:].ctypes.data, found.strides[0]
                else:
                    out, stride = rest.ctypes.data, rest.strides[0]
                tile_of_halves(addresses.ctypes.data, factors.ctypes.data, own.ctypes.data, width, out, stride)
                if size < LANES:
                    copy_tile(found, rest, row, min(LANES, queries - group * LANES), start, size)
    lengths = numpy.empty((heads, queries), numpy.float32)
    for head in range(heads):
        for query in range(queries):
            total = float32(0)
            for number in states[head, query]:
                total += number * number
            lengths[head, query] = max(numpy.sqrt(total), float32(LEAST_LENGTH))
    return found[: heads * queries].reshape((heads, queries, codes)), lengths
