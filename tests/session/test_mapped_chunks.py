"""Chunks that are kept as maps of a state, in an engine: every strategy, kept prompts, windows and the disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emblema import Engine, Policy, Store
from emblema.kv.chunk import Chunk
from emblema.kv.compact_map import CompactMap
from emblema.kv.layout import MappedRows
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.query import QueryStrategy
from emblema.session.requests import Prefill
from tests.families import loaded, picture, words
from tests.models.test_state_maps import slow_model

NAME = "qwen3_5"


def engine_on(mapped: bool = True, store: Store | None = None, compact: bool = False) -> Engine:
    """An engine that keeps chunks as maps however short they are, or as rows however long."""
    item = loaded(NAME)
    own = Engine(slow_model(NAME), item.bundle, store=store, policy=Policy.quiet())
    own.adapter.layouts = tuple(
        replace(layout, mapped_from=10 if mapped else None, compact=compact) if layout.kind == "linear" else layout
        for layout in own.adapter.layouts
    )
    return own


def pictures(own: Engine, count: int = 3) -> list[Chunk]:
    added = [own.add(picture(72, 64, seed)) for seed in range(count)]
    return [chunk for chunk in added if isinstance(chunk, Chunk)]


def linked(own: Engine, strategy: str | Strategy) -> Prefill:
    first, second, third = pictures(own)
    parts = (words(5, 1).tolist(), first, words(2, 2).tolist(), second, third, words(6, 3).tolist())
    return own.prefill(parts, strategy, template=False)


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("strategy", ["full", "prefix", "blind", "full-reuse", "mpic-1", "mpic-3", "vlcache-10"])
def test_maps_answer_as_rows_do(strategy: str) -> None:
    rows, maps = (linked(engine_on(mapped), strategy) for mapped in (False, True))
    assert (maps.usage.lane, maps.usage.fallback, maps.usage.computed_tokens) == (
        rows.usage.lane,
        None,
        rows.usage.computed_tokens,
    )
    # Of computed rows beyond the edge the maps know nothing.
    bound = 0.2 if strategy == "vlcache-10" else 1e-5
    assert difference(maps.logits, rows.logits) < bound
    cost = maps.plan.cost(engine_on().adapter.layouts, 4)
    assert cost.bytes_read == maps.trace.bytes_read


def test_patches_are_of_the_layers_that_keep_rows() -> None:
    own = engine_on()
    found = linked(own, "patch-64")
    assert found.usage.patched_tokens and found.usage.fallback is None
    assert found.plan.cost(own.adapter.layouts, 4).patch_bytes >= found.trace.patch_bytes > 0
    blind, full = linked(own, "blind"), linked(own, "full")
    assert 0 < difference(found.logits, full.logits) < difference(blind.logits, full.logits)


@pytest.mark.parametrize("strategy", ["cacheblend-15", "scattered"])
def test_what_needs_single_rows_computes_all_of_them_and_says_so(strategy: str) -> None:
    from benchmarks.cost.linking import ScatteredShare

    own = engine_on()
    first, *_ = pictures(own)
    parts = (words(5, 1).tolist(), first, words(6, 3).tolist())
    found = own.prefill(parts, ScatteredShare(0.3) if strategy == "scattered" else strategy, template=False)
    assert found.usage.lane == "full" and "kept as a map" in (found.usage.fallback or "")
    assert difference(found.logits, own.prefill(parts, "full", template=False).logits) < 1e-5


def test_a_second_pass_computes_chunks_whole() -> None:
    own = engine_on()
    found = linked(own, QueryStrategy(0.1, None))
    tokens = pictures(own)[0].tokens
    (chosen,) = found.trace.selected
    assert len(chosen) == tokens and list(chosen) == list(range(chosen[0], chosen[0] + tokens))
    everything, rows = (linked(each, QueryStrategy(1.0, None)) for each in (own, engine_on(False)))
    assert everything.trace.selected == rows.trace.selected
    assert difference(everything.logits, rows.logits) < 1e-5


def test_exact_prompts_are_gone_on_from_at_every_chunk() -> None:
    own, other = engine_on(), engine_on()
    first, second, third = pictures(own)
    parts = [words(3, 40).tolist(), first, words(2, 2).tolist(), second, third, words(6, 3).tolist()]
    for stop in (2, 4, 5):
        own.forget_prompts()
        own.prefill(parts, "prefix", template=False)
        tail = [*parts[:stop], words(4, 60 + stop).tolist()]
        found = own.prefill(tail, "prefix", template=False)
        assert found.usage.computed_tokens == 4
        assert difference(found.logits, other.prefill(tail, "full", template=False).logits) < 1e-5


def test_a_chunk_that_leads_is_taken_as_a_map_and_kept_in_a_prefix() -> None:
    own, other = engine_on(), engine_on()
    anchor, first = list(own.adapter.anchor), pictures(own)[0]
    parts = [anchor, first, words(6, 3).tolist()]
    kept = own.prefill(parts, "blind", template=False)
    assert kept.plan.exact and kept.usage.cached_tokens == first.tokens and isinstance(kept.kv[0], MappedRows)
    tail = [*parts[:2], [*parts[2], *words(4, 61).tolist()]]
    found = own.prefill(tail, "prefix", template=False)
    assert found.usage.computed_tokens == 4
    assert difference(found.logits, other.prefill(tail, "full", template=False).logits) < 1e-5


def damage(folder: Path, tensor: str) -> int:
    """Change a byte of a tensor in every file that has it; returns how many have."""
    count = 0
    for path in folder.rglob("*"):
        data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
        length = int.from_bytes(data[:8], "little")
        if b'"__metadata__"' in data[8:64] and tensor.encode() in data[8 : 8 + length]:
            start, _ = json.loads(data[8 : 8 + length])[tensor]["data_offsets"]
            data[8 + length + start] ^= 1
            path.write_bytes(bytes(data))
            count += 1
    return count


@pytest.mark.parametrize(
    "tensor",
    ["layers.0.own", "layers.2.decay", "layers.2.heads", "layers.0.keys", "layers.0.own.scales", "layers.2.diagonal"],
)
def test_maps_are_on_disk_and_damaged_ones_are_made_again(tmp_path: Path, tensor: str) -> None:
    compact = tensor.endswith(("scales", "diagonal"))
    with Store(tmp_path) as store:
        own = engine_on(store=store, compact=compact)
        expected, held = linked(own, "blind"), {chunk.id: chunk.bytes for chunk in pictures(own)}
        store.flush()
    with Store(tmp_path) as store:
        again = engine_on(store=store, compact=compact)
        assert {chunk.id: chunk.bytes for chunk in pictures(again)} == held
        found = linked(again, "blind")
        assert found.usage.recaptured_tokens == 0 and torch.equal(found.logits, expected.logits)
    assert damage(tmp_path, tensor) == 3
    with Store(tmp_path) as store:
        found = linked(engine_on(store=store, compact=compact), "blind")
        assert found.usage.recaptured_tokens == 3 * 18
        assert torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize("compact", [False, True])
def test_maps_that_were_stored_in_the_other_form_are_taken_as_they_are(tmp_path: Path, compact: bool) -> None:
    """Folders from before there were compact maps open."""
    with Store(tmp_path) as store:
        expected = linked(engine_on(store=store, compact=compact), "blind")
        store.flush()
    with Store(tmp_path) as store:
        own = engine_on(store=store, compact=not compact)
        found = linked(own, "blind")
        maps = [rows.maps[0] for rows in pictures(own)[0].rows if isinstance(rows, MappedRows)]
        assert found.usage.recaptured_tokens == 0 and torch.equal(found.logits, expected.logits)
        assert {isinstance(each, CompactMap) for each in maps} == {compact}


def test_chunks_that_were_stored_as_rows_are_taken_as_rows(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        expected = linked(engine_on(False, store), "blind")
        store.flush()
    with Store(tmp_path) as store:
        own = engine_on(store=store)
        found = linked(own, "blind")
        assert found.usage.recaptured_tokens == 0
        assert not any(isinstance(rows, MappedRows) for rows in pictures(own)[0].rows)
        assert torch.equal(found.logits, expected.logits)


def test_a_chunk_is_smaller_as_a_map_by_what_its_heads_forget() -> None:
    """Of a random model most heads forget at once; of one whose states fade slowly none does."""
    item = loaded(NAME)
    random = Engine(item.model, item.bundle, policy=Policy.quiet())
    own = engine_on()
    random.adapter.layouts = own.adapter.layouts
    slow, fast = pictures(own)[0], pictures(random)[0]
    heads = [[len(own.maps[0].heads) for own in chunk.rows if isinstance(own, MappedRows)] for chunk in (slow, fast)]
    assert heads[0] == [4, 4] and sum(heads[1]) < 8
    assert fast.bytes < slow.bytes


def test_a_window_slides_over_maps_as_over_rows() -> None:
    """What it wrote stays, what it took is taken again, and a part that leaves takes its map with it."""
    found = []
    for mapped in (False, True):
        window = engine_on(mapped).window(template=False)
        for seed in range(3):
            window.append(picture(72, 64, seed))
        asked = [window.prefill(words(4, 70).tolist(), strategy).logits for strategy in ("blind", "auto")]
        window.slide()
        window.append(picture(72, 64, 8))
        asked += [window.prefill(words(4, 71).tolist(), strategy).logits for strategy in ("auto", "blind", "full")]
        found.append(asked)
    assert all(difference(maps, rows) < 1e-5 for rows, maps in zip(*found, strict=True))
