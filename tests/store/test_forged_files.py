"""Files whose checksums are right and whose contents lie: a checksum is no signature."""

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emblema.errors import LoadError
from tests.store.corpus import (
    compact,
    file_bytes,
    identity,
    join,
    json_values,
    open_bytes,
    opened,
    refused,
    signed,
)

quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
corpus = st.integers(1, 24)


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [before, *(path for key, item in inner for path in paths(item, (*before, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.slow
@settings(quick, max_examples=300)
@given(corpus, st.data(), json_values)
def test_any_forged_description_gives_the_piece_or_the_error(seed: int, draw: st.DataObject, value: Any) -> None:
    """A checksum is no signature: with a right one, any field may still hold anything."""
    description, entries, tensors = opened(file_bytes(seed))
    path = draw.draw(st.sampled_from(paths(description)))
    new = draw.draw(st.just(value) | st.sampled_from([0, -1, 2**31, 2**63, 10**400, [], {}, "", "F16", True, 1.0]))
    forged = json.dumps(replaced(description, path, new))
    followed = {}
    for item in replaced(description, path, new)["tensors"] if path and path[0] == "tensors" and path[1:] else []:
        if isinstance(item, list) and len(item) == 4 and isinstance(item[0], str) and item[0] in entries:
            followed[item[0]] = entries[item[0]] | {"dtype": item[1], "shape": item[2]}
    refused(signed(forged, entries | followed, tensors), identity(seed))


@pytest.mark.parametrize("seed", [3, 6, 7, 11])
def test_forged_meta_is_refused_wherever_the_codec_relies_on_it(seed: int) -> None:
    """Each of the codec's own values made another: never wrong rows."""
    description, entries, tensors = opened(file_bytes(seed))
    tried = 0
    for path in paths(description["meta"]):
        # What only names the piece or says where it ends: no tensor bears it out.
        if not path or path[0] in ("name", "compression", "span"):
            continue
        for value in (0, -1, 2**31 - 1, 2**40, None, "x", [], {}, 1.5, True):
            forged = {**description, "meta": replaced(description["meta"], path, value)}
            if compact(forged) == compact(description) or path == ("orbit",) and value is True:
                continue
            assert refused(signed(forged, entries, tensors)), f"meta {path} as {value!r}"
            tried += 1
    assert tried >= 50


def table(*rows: tuple[str, Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Tensors of a description, their checksums of nothing, and the entries that a header needs with them."""
    tensors = [[name, dtype, shape, "99aa06d3014798d86001c324468d497f"] for name, dtype, shape in rows]
    entries = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, dtype, shape in rows}
    return tensors, entries


@pytest.mark.parametrize(
    "rows",
    [
        [("a", "U8", [2**62])],
        [("a", "U8", [2**31, 2**31, 2**31])],
        [("a", "F32", [10**300])],
        [("a", "U8", [0, 2**63])],
        [("a", "U8", [0, 2**36, 2**36])],
        [("a", "U8", [0] * 9)],
        [("a", "U8", [-1, -1])],
        [("a", "U8", [0.0])],
        [("a", "U8", [False])],
        [("a", "U9", [0])],
        [("a", ["U8"], [0])],
        [("a", "U8", {"0": 0})],
        [("", "U8", [0])],
        [("__metadata__", "U8", [0])],
        [("../a", "U8", [0])],
        [("a\n", "U8", [0])],
        [("a" * 129, "U8", [0])],
        [("a", "U8", [0]), ("a", "U8", [0])],
    ],
)
def test_a_signed_table_of_impossible_tensors_is_refused(rows: list[tuple[str, Any, Any]]) -> None:
    description, _, _ = opened(file_bytes(6))
    tensors, entries = table(*rows)
    with pytest.raises(LoadError):
        open_bytes(signed({**description, "tensors": tensors}, entries, b""))


def test_overlapping_and_gaping_places_are_refused_with_every_checksum_right() -> None:
    data = file_bytes(6)
    description, entries, tensors = opened(data)
    names = [row[0] for row in description["tensors"]]
    first, second = (entries[name]["data_offsets"] for name in names[:2])
    overlapping = entries | {names[1]: entries[names[1]] | {"data_offsets": first}}
    swapped = entries | {
        names[0]: entries[names[0]] | {"data_offsets": second},
        names[1]: entries[names[1]] | {"data_offsets": first},
    }
    assert not refused(signed(description, entries, tensors))
    assert refused(signed(description, overlapping, tensors))
    assert refused(signed(description, swapped, tensors))
    assert refused(signed(description, entries, tensors + bytes(8)))
    assert refused(signed(description, entries, bytes(8) + tensors))


def test_one_json_rule_inside_the_description_too() -> None:
    description, entries, tensors = opened(file_bytes(6))
    text = compact(description)
    for bad in (
        text[:-1] + ',"version":1}',
        text.replace('"created":6.0', '"created":NaN'),
        text.replace('"created":6.0', '"created":1e999'),
        text.replace('"created":6.0', '"created":true'),
        text.replace('"name":', '"more":Infinity,"name":'),
        text.replace('"name":', '"more":[-1e999],"name":'),
        text.replace("café", "\\ud800"),
        text[:-1] + ',"more":1}',
        text.replace('"meta":{', '"meta":{"a":' + "[" * 100_000 + "]" * 100_000 + ","),
    ):
        assert bad != text
        assert refused(signed(bad, entries, tensors)), bad[:200]


def test_no_hostile_header_takes_more_memory_than_a_few_of_the_largest() -> None:
    """Nested, wide or lying: what opening takes stays within a small multiple of the header's limit."""
    limit = 2**20
    _, _, tensors = opened(file_bytes(6))
    description = opened(file_bytes(6))[0]
    vast, entries = table(("layers.0.keys", "U8", [2**36]))
    hostile = [
        join("[" * (limit - 8), tensors),
        join("[" + "{}," * (limit // 12) + "{}]", tensors),
        (2**63 - 1).to_bytes(8, "little") + bytes(100),
        signed({**description, "tensors": vast}, entries, tensors),
        signed(
            {**description, "tensors": vast},
            {"layers.0.keys": {"dtype": "U8", "shape": [2**36], "data_offsets": [0, 2**36]}},
            tensors,
        ),
    ]
    for data in hostile:
        gc.collect()
        tracemalloc.start()
        try:
            assert refused(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 64 * max(len(data), limit // 4)
