"""Pictures that are encoded in part: as the whole is, while what the part attends is the same."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emblema.errors import ModelError
from emblema.models.cells import PictureCells
from emblema.models.encode_parts import encode_changed, encode_nearly, encode_noting
from emblema.models.families.base import Prepared
from tests.families.running import Loaded, loaded

WHOLE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
PLENTY = 2**30


def pictures(item: Loaded, size: tuple[int, int], seed: int) -> list[Any]:
    """Two pictures of noise that differ in one place, as the encoder takes them."""
    before = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    after = before.copy()
    after[:20, 30:50] //= 3
    return [item.preparer.image(Image.fromarray(each)) for each in (before, after)]


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_parts_of_an_unchanged_picture_are_encoded_as_the_whole(name: str, data: st.DataObject) -> None:
    item = loaded(name)
    size = data.draw(st.sampled_from([(140, 196), (84, 84), (60, 252)]))
    prepared, _ = pictures(item, size, data.draw(st.integers(0, 3)))
    cells = item.adapter.cells(prepared)
    assert cells is not None and not cells.alone
    whole, rows = encode_noting(item.adapter, prepared, PLENTY)
    assert rows is not None
    part = sorted(data.draw(st.sets(st.integers(0, cells.count - 1), min_size=1)))
    made, moved = encode_nearly(item.adapter, cells, part, whole, rows)
    assert moved < 1e-4
    torch.testing.assert_close(made.embeds, whole.embeds, rtol=1e-4, atol=1e-4)
    for own, wanted in zip(made.deepstack, whole.deepstack, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WHOLE)
def test_a_picture_all_of_which_is_encoded_attends_nothing_of_the_other(name: str) -> None:
    item = loaded(name)
    first, second = pictures(item, (140, 196), 1)
    cells = item.adapter.cells(second)
    assert cells is not None
    base, rows = encode_noting(item.adapter, first, PLENTY)
    assert rows is not None
    whole = item.adapter.encode(second)
    made, moved = encode_nearly(item.adapter, cells, range(cells.count), base, rows)
    assert moved == 0
    torch.testing.assert_close(made.embeds, whole.embeds, rtol=1e-4, atol=1e-4)


def test_rows_that_changed_are_exact_where_one_layer_attends_beyond_its_windows() -> None:
    # What it attends of the others, they had within their windows.
    item = loaded("qwen2_5_vl")
    first, second = pictures(item, (140, 196), 2)
    cells = item.adapter.cells(second)
    assert cells is not None and len(item.adapter.kind.whole_layers(item.model)) == 1
    base, rows = encode_noting(item.adapter, first, PLENTY)
    assert rows is not None and len(rows.keys) == 1
    whole, changed = item.adapter.encode(second), [0, 1]
    made, moved = encode_nearly(item.adapter, cells, changed, base, rows)
    assert moved > 0
    media = whole.visual.nonzero().squeeze(1)
    own, others = cells.order(changed), cells.order(range(2, cells.count))
    torch.testing.assert_close(made.embeds[media[own]], whole.embeds[media[own]], rtol=1e-4, atol=1e-4)
    assert torch.equal(made.embeds[media[others]], base.embeds[media[others]])
    assert not torch.equal(whole.embeds[media[others]], base.embeds[media[others]])


def test_nothing_is_noted_beyond_its_bytes_and_the_picture_is_encoded_all_the_same() -> None:
    item = loaded("qwen3_vl")
    prepared, _ = pictures(item, (84, 84), 0)
    whole, rows = encode_noting(item.adapter, prepared, PLENTY)
    assert rows is not None
    for most, kept in ((rows.bytes, True), (rows.bytes - 1, False), (0, False)):
        again, noted = encode_noting(item.adapter, prepared, most)
        assert torch.equal(again.embeds, whole.embeds) and (noted is not None) == kept


def test_a_part_is_not_encoded_alone_where_the_encoder_attends_all() -> None:
    item = loaded("qwen2_vl")
    prepared, _ = pictures(item, (84, 84), 0)
    cells = item.adapter.cells(prepared)
    assert cells is not None
    with pytest.raises(ModelError, match="attends over the whole picture"):
        encode_changed(item.adapter, cells, [0], item.adapter.encode(prepared))


def test_what_runs_in_a_pause_of_the_encoder_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    item = loaded("qwen2_vl")
    first, second = pictures(item, (84, 84), 0)
    _, alone = encode_noting(item.adapter, first, PLENTY)
    ran: list[int] = []

    def pause() -> None:
        monkeypatch.setattr(item.adapter, "pause", None)
        item.adapter.encode(second)
        item.adapter.prefill(item.adapter.encode_text(torch.arange(5)))
        ran.append(1)

    monkeypatch.setattr("emblema.models.encoder_pauses.SECONDS", 0)
    monkeypatch.setattr(item.adapter, "pause", pause)
    _, rows = encode_noting(item.adapter, first, PLENTY)
    assert ran and rows is not None and alone is not None
    assert all(torch.equal(one, two) for one, two in zip(rows.keys, alone.keys, strict=True))


def test_with_flash_attention_pictures_are_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    item = loaded("qwen2_vl")
    prepared, _ = pictures(item, (84, 84), 0)
    config: Any = item.adapter.kind.whole_layers(item.model)[0].config
    monkeypatch.setattr(config, "_attn_implementation", "flash_attention_2")
    assert item.adapter.cells(prepared) is None


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_how_far_others_moved_is_how_far_those_that_are_encoded_again_did(name: str) -> None:
    item = loaded(name)
    first, second = pictures(item, (196, 196), 3)
    old, cells = item.adapter.cells(first), item.adapter.cells(second)
    assert old is not None and cells is not None
    changed = [int(cell) for cell in (old.digests != cells.digests).any(axis=1).nonzero()[0]]
    base, rows = encode_noting(item.adapter, first, PLENTY)
    assert rows is not None
    _, moved = encode_nearly(item.adapter, cells, changed, base, rows)
    media = base.visual.nonzero().squeeze(1)
    probed = cells.probes(changed, 16)
    both, _ = encode_nearly(item.adapter, cells, [*changed, *probed], base, rows)
    held, places = base.embeds[media], cells.order(probed)
    far = sum(
        float((after[places] - before[places]).square().sum(1).mean())
        for before, after in ((held, both.embeds[media]), *zip(base.deepstack, both.deepstack, strict=True))
    )
    spread = sum(float((each - each.mean(0)).square().sum(1).mean()) for each in (held, *base.deepstack))
    assert moved == pytest.approx((far / spread) ** 0.5, rel=1e-3)
    # Nothing moves where nothing changed, but by rounding.
    assert encode_nearly(item.adapter, old, changed, base, rows)[1] < 1e-4


@given(st.integers(1, 40), st.data())
def test_probes_are_other_cells_evenly_spread(count: int, data: st.DataObject) -> None:
    tokens = torch.arange(count).repeat_interleave(data.draw(st.sampled_from([1, 4, 16])))
    contents = [memoryview(b"")] * count
    cells = PictureCells(Prepared("image", tokens), tokens, contents, lambda cells: Prepared("image", tokens))
    changed = data.draw(st.sets(st.integers(0, count - 1)))
    probed = cells.probes(sorted(changed), 16)
    others = [cell for cell in range(count) if cell not in changed]
    assert probed == sorted(set(probed)) and set(probed) <= set(others)
    assert len(probed) == min(len(others), max(1, 16 * count // len(tokens)))
    gaps = np.diff([others.index(cell) for cell in probed])
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
