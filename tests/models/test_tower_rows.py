"""Rows of an encoder: the latest are kept within bytes, and noting them leaves nothing behind."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.models.tower_rows import KeptTowerRows, TowerRows, joined_rows, noting_rows
from tests.families.running import loaded


def test_an_encoder_that_ends_early_leaves_nothing_behind() -> None:
    item = loaded("qwen2_vl")
    layers = item.adapter.kind.whole_layers(item.model)
    config: Any = layers[0].config
    before = config._attn_implementation
    with pytest.raises(ZeroDivisionError), noting_rows(layers, 2**30) as noted:
        raise ZeroDivisionError
    assert config._attn_implementation == before and joined_rows(noted, layers) is None


Names = st.sampled_from("abc")


@given(st.lists(st.tuples(Names, Names, st.integers(1, 9), st.booleans()), max_size=30))
def test_the_latest_rows_are_kept_within_bytes(steps: list[tuple[str, str, int, bool]]) -> None:
    kept, plain, most = KeptTowerRows(), list[tuple[tuple[str, str], int]](), 12 * 8
    for owner, id, count, drop in steps:
        plain = [(name, size) for name, size in plain if name != (owner, id)]
        if drop:
            kept.forget(owner, id)
        else:
            half = torch.zeros(1, 1, count, 1)
            kept.note(owner, id, TowerRows((half,), (half,)), most)
            plain.append(((owner, id), count * 8))
        while sum(size for _, size in plain) > most:
            plain.pop(0)
        assert kept.bytes == sum(size for _, size in plain) <= most
        for each in "abc":
            assert kept.names(each) == [id for (own, id), _ in plain if own == each]
            for other in "abc":
                assert (kept.find(each, other) is not None) == any(name == (each, other) for name, _ in plain)
