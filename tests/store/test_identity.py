import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.store import ArtifactKey, ArtifactKind, artifact_id, chunk_id
from emblema.store.identity import canonical

# Few letters and sizes, so that concatenations often agree.
short = st.text("ab", max_size=3)
parts = st.lists(st.binary(max_size=3).map(lambda data: bytes(byte & 1 for byte in data)), max_size=3).map(tuple)
numbers = st.lists(st.integers(0, 11), max_size=3).map(tuple)
leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | short | st.binary(max_size=2)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=2), max_leaves=6
)
fields = st.fixed_dictionaries(
    {
        "media": parts,
        "options": st.dictionaries(short, leaves, max_size=2),
        "model_fingerprint": short,
        "dtype": st.sampled_from(["float32", "bfloat16"]),
        "adapter_version": short,
        "geometry": numbers,
        "anchor": numbers,
        "salt": st.binary(max_size=2),
    }
)

BASE: dict[str, Any] = {
    "media": (b"pixels", b"more"),
    "options": {"mean": [0.5, 0.5], "resize": True, "name": "a"},
    "model_fingerprint": "f" * 64,
    "dtype": "float32",
    "adapter_version": "1",
    "geometry": (1, 4, 6),
    "anchor": (7, 8),
    "salt": b"salt",
}


EXPECTED = "8ec2abd570236b1f1807eab7262069657c58255800a6d30a809a18cd632062c7"


def typed(value: object) -> object:
    """A value that equals another one only if types agree too (True is not 1, 1 is not 1.0, 0.0 is not -0.0)."""
    if isinstance(value, Mapping):
        return ("m", frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("l", tuple(typed(item) for item in value))
    return (type(value).__name__, repr(value))


def test_an_id_is_256_bits_in_hex_and_stays_the_same() -> None:
    name = chunk_id(**BASE)
    assert len(name) == 64
    assert int(name, 16) >= 0
    assert name == chunk_id(**BASE)
    # Written down: stored chunks have to be found by later versions.
    assert name == EXPECTED


@pytest.mark.parametrize(
    "change",
    [
        {"media": (b"pixel", b"smore")},
        {"media": (b"pixelsmore",)},
        {"media": (b"more", b"pixels")},
        {"media": (b"pixels", b"more", b"")},
        {"geometry": (1, 6, 4)},
        {"geometry": (1, 46)},
        {"options": {"mean": [0.5, 0.5], "resize": 1, "name": "a"}},
        {"options": {"mean": [0.5, 0.5], "resize": True, "name": "b"}},
        {"options": {"mean": [0.5, 0.5], "resize": True}},
        {"model_fingerprint": "e" * 64},
        {"dtype": "bfloat16"},
        {"adapter_version": "2"},
        {"model_fingerprint": "f" * 64 + "1", "adapter_version": ""},
        {"anchor": ()},
        {"anchor": (78,)},
        {"geometry": (1, 4, 6, 7), "anchor": (8,)},
        {"salt": b""},
        {"salt": b"salt\0"},
    ],
    ids=str,
)
def test_every_field_counts(change: dict[str, Any]) -> None:
    assert chunk_id(**{**BASE, **change}) != chunk_id(**BASE)


def test_what_does_not_count() -> None:
    options = {"name": "a", "resize": True, "mean": (0.5, 0.5)}
    assert chunk_id(**{**BASE, "options": options}) == chunk_id(**BASE)
    assert chunk_id(**{**BASE, "dtype": torch.float32}) == chunk_id(**BASE)
    assert chunk_id(**{**BASE, "media": iter(BASE["media"])}) == chunk_id(**BASE)


@given(fields, fields)
def test_different_fields_have_different_ids(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (chunk_id(**left) == chunk_id(**right)) == (typed(left) == typed(right))


@given(parts, st.data())
def test_moving_a_border_between_parts_changes_the_id(media: tuple[bytes, ...], data: st.DataObject) -> None:
    whole = b"".join(media)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    other = tuple(whole[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(whole)]))
    assume(other != media)
    assert chunk_id(**{**BASE, "media": media}) != chunk_id(**{**BASE, "media": other})


@given(values, values)
def test_canonical_bytes_are_as_different_as_values(left: object, right: object) -> None:
    assert (canonical(left) == canonical(right)) == (typed(left) == typed(right))


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, torch.float32, [1, {"deep": object()}]], ids=["object", "set", "dtype", "deep"]
)
def test_an_option_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(StoreError, match="options"):
        chunk_id(**{**BASE, "options": {"odd": value}})


names = st.sampled_from(["a", "b", "ab", "ba", ""])
patch_kinds = st.sampled_from([ArtifactKind.PATCH, ArtifactKind.ORBIT, ArtifactKind.REPAIR])


@given(*[st.tuples(names, names, st.lists(names, max_size=3).map(tuple), patch_kinds)] * 2)
def test_patch_ids_are_as_different_as_keys(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    one, other = ArtifactKey(*left), ArtifactKey(*right)
    assert (artifact_id(one, "owner") == artifact_id(other, "owner")) == (one == other)
    assert artifact_id(one, "owner") != artifact_id(one, "another")


def test_an_orbit_key_knows_no_order() -> None:
    orbit = ArtifactKey("m", "c", ("a", "b"), ArtifactKind.ORBIT)
    assert orbit == ArtifactKey("m", "c", ("b", "a", "b"), ArtifactKind.ORBIT)
    assert ArtifactKey("m", "c", ("a", "b")) != ArtifactKey("m", "c", ("b", "a"))
    assert ArtifactKey("m", "c", ("a", "b")) != orbit
    assert ArtifactKey("m", "c", ("a", "b")).chunks == {"a", "b", "c"}
    assert str(ArtifactKey("m", "c" * 64, ("a" * 64,))) == "patch of cccccccc after [aaaaaaaa]"
    assert (
        str(ArtifactKey("m", "c" * 64, ("a" * 64,), ArtifactKind.ORBIT)) == "orbit patch of cccccccc after {aaaaaaaa}"
    )
