"""What may happen to a file beside a range that is replaced, each from a seed."""

import json
import random
from collections.abc import Callable, Iterator

from tests.store.corpus import OWNER, compact, file_bytes, identity, join, split

Corruption = Callable[[random.Random, bytes, bytes], bytes]


def append(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data + rng.choice([b"\0", b" ", rng.randbytes(rng.randint(1, 5000)), data, other])


def swap_tensors(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Two tensors of one size change places, their entries as they were."""
    header, tensors = split(data)
    places = [tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
    pairs = [
        (one, two)
        for one in places
        for two in places
        if one < two and one[1] - one[0] == two[1] - two[0] and tensors[slice(*one)] != tensors[slice(*two)]
    ]
    (a, b), (c, d) = rng.choice(pairs)
    swapped = tensors[:a] + tensors[c:d] + tensors[b:c] + tensors[a:b] + tensors[d:]
    return data[: len(data) - len(tensors)] + swapped


def length_lies(rng: random.Random, data: bytes, other: bytes) -> bytes:
    honest = int.from_bytes(data[:8], "little")
    lie = rng.choice([0, 1, honest - 1, honest + 1, honest + 64, len(data), 2**20 + 1, 2**32, 2**63, 2**64 - 1])
    return lie.to_bytes(8, "little") + data[8:]


def graft(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """This piece's head before another's tensors, or the reverse, or both broken off at one place."""
    mine, theirs = split(data)[1], split(other)[1]
    place = rng.randrange(1, min(len(data), len(other)))
    return rng.choice(
        [data[: -len(mine)] + theirs, other[: -len(theirs)] + mine, data[:place] + other[place:]],
    )


def another(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A sound file of another piece."""
    return other


def metadata_lies(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A field of the description is another, its checksum is not."""
    header, tensors = split(data)
    text = header["__metadata__"]["emblema"]
    old, new = rng.choice([('"version":1', '"version":2'), (OWNER, "ab" * 32), ("a model", "b model"), ("F32", "I32")])
    header["__metadata__"]["emblema"] = text.replace(old, new) if old in text else text + " "
    return join(compact(header), tensors)


def entry_lies(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """An entry of the header is another than the description's: dtype, shape or place."""
    header, tensors = split(data)
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    entry |= rng.choice(
        [
            {"dtype": "I16"},
            {"dtype": "BF16" if entry["dtype"] != "BF16" else "F16"},
            {"dtype": None},
            {"shape": [*entry["shape"], 1]},
            {"shape": [2**62]},
            {"shape": [True, *entry["shape"]]},
            {"shape": [float(length) for length in entry["shape"]]},
            {"shape": [-length for length in entry["shape"]] + [-1]},
            {"data_offsets": [entry["data_offsets"][0], entry["data_offsets"][1] + 8]},
            {"data_offsets": [0, len(tensors)]} if len(header) > 2 else {"data_offsets": []},
            {"data_offsets": [2**63, 2**64]},
            {"data_offsets": [-8, 8]},
            {"extra": 1},
        ]
    )
    return join(compact(header), tensors)


def tensor_table_lies(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A tensor is missing from the header, or one too many."""
    header, tensors = split(data)
    names = [name for name in header if name != "__metadata__"]
    if rng.random() < 0.5:
        del header[rng.choice(names)]
    else:
        header["more"] = {"dtype": "U8", "shape": [0], "data_offsets": [len(tensors), len(tensors)]}
    return join(compact(header), tensors)


def twice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A key stands in the header twice."""
    header, tensors = split(data)
    name = rng.choice(list(header))
    return join(f"{compact(header)[:-1]},{compact(name)}:{compact(header[name])}}}", tensors)


def nested(rng: random.Random, data: bytes, other: bytes) -> bytes:
    depth = rng.choice([50, 5_000, 400_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    header = opening * depth + "1" + closing * depth
    return join(header if rng.random() < 0.5 else opening * depth, split(data)[1])


def not_json(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Text that is not strict JSON, not UTF-8, or not an object."""
    header, tensors = split(data)
    text = compact(header)
    return join(
        rng.choice(
            [
                json.dumps(header).encode(), text.encode("utf-16"), text.encode() + b"\n", b" " + text.encode(),
                text.encode()[:-1] + b",}", b"\xff" + text.encode(), text.encode()[:-1] + b"\xc3\x28}", b"[]", b"{}",
                b"null", b'"text"', b"12", b'{"__metadata__":{}}', b'{"__metadata__":null}', b"NaN", b"9" * 10_000,
                text.replace("[", "[1e999,", 1).encode(), text.replace("a model", "\\ud800", 1).encode(),
            ]
        ),
        tensors,
    )  # fmt: skip


CORRUPTIONS: tuple[Corruption, ...] = (
    append, swap_tensors, length_lies, graft, another, metadata_lies, entry_lies, tensor_table_lies, twice, nested,
    not_json,
)  # fmt: skip


def corrupted(count: int, seed: int = 0) -> Iterator[tuple[str, str, bytes]]:
    """`count` damaged files, each with what was done to it and the id that it should have."""
    rng = random.Random(seed)
    for number in range(count):
        corruption = CORRUPTIONS[number % len(CORRUPTIONS)]
        piece, other = rng.sample(range(1, 25), 2)
        data = file_bytes(piece)
        damaged = corruption(rng, data, file_bytes(other))
        while damaged == data:
            damaged = corruption(rng, data, file_bytes(other))
        yield f"{corruption.__name__} {number}", identity(piece), damaged
