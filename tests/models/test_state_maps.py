"""Chunks whose layers of linear attention are kept as maps of their state: at any place and in any order."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema.errors import ModelError
from emblema.kv.chunk import Encoded
from emblema.kv.compact_map import CompactMap
from emblema.kv.device import default_device
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, MappedRows, StateMap, StateShape
from emblema.kv.rotation import relocate
from emblema.models.adapter import Adapter
from emblema.models.selfcheck import selfcheck, shifted
from emblema.models.tables import KVTable
from tests.families import CASES, compose, loaded, picture, run_all, words

NAMES = ("qwen3_5", "qwen3_5_moe")
LEAST = 10
"""Tokens of the shortest chunk that can be kept as a map here: more than the rows that are kept beside it."""


@cache
def slow_model(name: str) -> Any:
    """A model of a case whose states fade slowly, as trained ones begin: those of a random one forget at once."""
    model, _ = CASES[name].build(0)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "dt_bias"):
                module.dt_bias.copy_(torch.linspace(-7, -3, len(module.dt_bias)))
    return model.to(default_device())


@cache
def adapter_on(name: str, mapped: bool = True) -> Adapter:
    """An adapter that keeps chunks of any length as maps, or as rows."""
    adapter = Adapter(slow_model(name))
    adapter.layouts = tuple(
        replace(layout, mapped_from=LEAST if mapped else None) if layout.kind == "linear" else layout
        for layout in adapter.layouts
    )
    return adapter


def chunk_of(name: str, seed: int) -> Encoded:
    return adapter_on(name).encode(loaded(name).preparer.image(picture(72, 64, seed)))


def filled(adapter: Adapter, prompt: Any, taken: Sequence[tuple[int, Encoded, KVRows]]) -> tuple[KVTable, Tensor]:
    """A table with rows of chunks at their places, and the rows of the prompt that are left to compute."""
    table = adapter.table(len(prompt.token_ids))
    table.allocate(torch.arange(len(prompt.token_ids)), prompt.groups)
    left = torch.ones(len(prompt.token_ids), dtype=torch.bool)
    for index, chunk, rows in taken:
        span = slice(prompt.starts[index], prompt.starts[index] + chunk.tokens)
        left[span] = False
        for layer, own in enumerate(shifted(adapter, rows, chunk, prompt.offsets[index])):
            table.write(layer, span, own)
    return table, left.nonzero()[:, 0]


def blind(name: str, mapped: bool, chunks: Sequence[Encoded], before: int = 5) -> tuple[Tensor, KVTable]:
    """Logits of the text around chunks that are taken as they were captured alone."""
    adapter = adapter_on(name, mapped)
    text = [adapter.encode_text(words(before, 9))] if before else []
    prompt = compose(adapter, [*text, *chunks, adapter.encode_text(words(6, 1))])
    captured = [(index + len(text), chunk, adapter.capture(chunk)) for index, chunk in enumerate(chunks)]
    table, rows = filled(adapter, prompt, captured)
    return adapter.logits(adapter.forward(prompt.batch(rows), table)), table


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max() / right.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_is_kept_as_a_map_where_that_is_smaller(name: str) -> None:
    adapter = Adapter(slow_model(name))
    layout = next(layout for layout in adapter.layouts if layout.kind == "linear")
    least = layout.mapped_from or 0
    assert layout.numbers(least) == layout.map_numbers < least * layout.features
    assert layout.numbers(least - 1) == (least - 1) * layout.features <= layout.map_numbers
    for tokens in (least - 1, least):
        rows = adapter.capture(adapter.encode_text(words(tokens, 3)))
        for own, kept in zip(rows, adapter.layouts, strict=True):
            assert isinstance(own, MappedRows) is (kept.kind == "linear" and tokens == least)
            assert own.tokens == tokens
            if isinstance(own, MappedRows):
                assert own.maps[0].heads.tolist() == list(range(layout.gates // 2))
                assert own.bytes - own.maps[0].heads.nbytes == layout.map_numbers * adapter.dtype.itemsize


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_maps_link_as_rows_do_in_any_order(name: str, order: tuple[int, ...]) -> None:
    chunks = [chunk_of(name, seed) for seed in order]
    rows, kept = blind(name, False, chunks)
    maps, table = blind(name, True, chunks)
    assert all(len(table.maps[layer]) == 3 for layer in table.states)
    assert difference(maps, rows) < 1e-5
    assert all(difference(known.state, kept.states[layer].state) < 1e-5 for layer, known in table.states.items())


@pytest.mark.parametrize("before", [0, 1, 2, 3, 7])
def test_a_changed_neighbour_is_in_the_convolutions_of_a_maps_first_rows(before: int) -> None:
    chunks = [chunk_of("qwen3_5", 0)]
    rows, _ = blind("qwen3_5", False, chunks, before)
    maps, _ = blind("qwen3_5", True, chunks, before)
    assert difference(maps, rows) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_captured_in_context_and_moved_equals_the_whole_prompt(name: str) -> None:
    """After the same text, 1,000 positions on, with other text behind."""
    adapter = adapter_on(name)
    front, chunk = adapter.encode_text(words(8, 2)), chunk_of(name, 1)
    here = compose(adapter, [front, chunk, adapter.encode_text(words(3, 4))])
    table, _ = run_all(adapter, here)
    there = compose(adapter, [front, chunk, adapter.encode_text(words(9, 5))])
    there = replace(there, positions=there.positions + 1000)
    span = slice(8, 8 + chunk.tokens)
    source, target = adapter.phases(here.positions[:, span]), adapter.phases(there.positions[:, span])
    taken = adapter.table(len(there.token_ids))
    taken.allocate(torch.arange(len(there.token_ids)), there.groups)
    with torch.inference_mode():
        for layer, layout in enumerate(adapter.layouts):
            rows = table.read(layer, span.start, span.stop)
            if layout.kind == "linear":
                own = adapter.state_scan(table).make_map(layer, span.start + layout.front, span.stop)
                rows = MappedRows.of(rows, [own.at(layout.front)], layout.edge)
            taken.write(layer, span, relocate(rows, layout, source, target))
    left = torch.cat((torch.arange(8), torch.arange(span.stop, len(there.token_ids))))
    moved = adapter.logits(adapter.forward(there.batch(left), taken))
    _, full = run_all(adapter, there)
    assert difference(moved, full[left]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_decoding_goes_on_from_a_composed_state(name: str) -> None:
    """24 tokens after three chunks as maps, beside the same chunks as rows."""
    found = []
    for mapped in (False, True):
        adapter = adapter_on(name, mapped)
        _, table = blind(name, mapped, [chunk_of(name, seed) for seed in range(3)])
        batch, first = adapter.batch_table(), table.length
        batch.admit(table)
        steps = []
        for step in range(24):
            place = torch.tensor([first + step])
            steps.append(adapter.decode(words(1, 50 + step), place, place, batch))
        found.append(torch.cat(steps))
    assert difference(found[1], found[0]) < 1e-5


def test_states_are_made_again_after_rows_have_left() -> None:
    """A chunk with its map leaves; the others' states are those of the rows that stay."""
    chunks = [chunk_of("qwen3_5", seed) for seed in range(3)]
    stay = []
    for mapped in (False, True):
        _, table = blind("qwen3_5", mapped, chunks)
        gone, count = 5 + chunks[0].tokens, chunks[1].tokens
        table.drop(torch.cat((torch.arange(gone), torch.arange(gone + count, table.length))))
        adapter_on("qwen3_5", mapped).make_states(table)
        stay.append(table.states)
    assert stay[0].keys() == stay[1].keys()
    for layer, known in stay[1].items():
        assert difference(known.state, stay[0][layer].state) < 1e-5 and known.until == stay[0][layer].until


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_first_rows_that_are_computed_read_the_state_and_the_map_stands_for_the_others(count: int) -> None:
    """Up to the edge all is as with rows; rows that a map stands for leave what they left where they were captured."""
    chunk, found = chunk_of("qwen3_5", 0), []
    for mapped in (False, True):
        adapter = adapter_on("qwen3_5", mapped)
        prompt = compose(adapter, [adapter.encode_text(words(5, 9)), chunk, adapter.encode_text(words(6, 1))])
        table, left = filled(adapter, prompt, [(1, chunk, adapter.capture(chunk))])
        own = torch.cat((left[:5], torch.arange(5, 5 + count), left[5:]))
        parts = [own] if count < 9 else [own[:11], own[11:12], own[12:]]
        runs = [adapter.forward(prompt.batch(part), table) for part in parts]
        found.append(adapter.logits(torch.cat(runs)))
    first = 5 + count
    assert difference(found[1][:first], found[0][:first]) < 1e-5
    assert count > 3 or difference(found[1][first:], found[0][first:]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_the_self_check_proves_that_states_are_affine_compose_and_move(name: str) -> None:
    checks = {check.name: check for check in selfcheck(adapter_on(name)).checks}
    assert {"state is affine", "state maps compose", "state maps move"} <= checks.keys()
    assert all("layers." in checks[each].where for each in checks if each.startswith("state"))


def test_maps_in_bfloat16_answer_as_maps_in_float32() -> None:
    adapter, chunk = adapter_on("qwen3_5"), chunk_of("qwen3_5", 0)
    prompt = compose(adapter, [adapter.encode_text(words(5, 9)), chunk, adapter.encode_text(words(6, 1))])
    captured, found = adapter.capture(chunk), []
    for half in (False, True):
        rows: list[LayerRows] = []
        for own in captured:
            if isinstance(own, MappedRows) and half:
                maps = [
                    each.with_tensors([each.own.bfloat16(), each.decay.bfloat16(), each.heads]) for each in own.maps
                ]
                own = replace(own, maps=tuple(maps))
            rows.append(own)
        table, left = filled(adapter, prompt, [(1, chunk, rows)])
        found.append(adapter.logits(adapter.forward(prompt.batch(left), table))[5:])
    assert 0 < difference(found[1], found[0]) < 5e-3


def test_compact_maps_lose_less_than_computing_in_16_bits_does() -> None:
    """Three chunks, blind: the same weights in float32, with maps whole and in eight bits, and run in bfloat16."""
    whole, chunks = adapter_on("qwen3_5"), [chunk_of("qwen3_5", seed) for seed in range(3)]
    compact = Adapter(slow_model("qwen3_5"))
    compact.layouts = tuple(replace(layout, compact=layout.kind == "linear") for layout in whole.layouts)
    model, _ = CASES["qwen3_5"].build(0)
    half = Adapter(rounded(slow_model("qwen3_5"), model))
    least = [LEAST if layout.kind == "linear" else None for layout in half.layouts]
    half.layouts = tuple(replace(layout, mapped_from=own) for layout, own in zip(half.layouts, least, strict=True))
    found, kinds = [], []
    for adapter in (whole, compact, half):
        text = [adapter.encode_text(words(count, count)) for count in (5, 6)]
        given = [replace(chunk, embeds=chunk.embeds.to(adapter.dtype)) for chunk in chunks]
        captured = [(place, chunk, adapter.capture(chunk)) for place, chunk in enumerate(given, 1)]
        prompt = compose(adapter, [text[0], *given, text[1]])
        table, rows = filled(adapter, prompt, captured)
        kinds.append({type(own.maps[0]) for own in captured[0][2] if isinstance(own, MappedRows)})
        found.append(adapter.logits(adapter.forward(prompt.batch(rows), table))[5:])
    assert kinds == [{StateMap}, {CompactMap}, {CompactMap}]
    assert 0 < difference(found[1], found[0]) < difference(found[2], found[0])


def rounded(source: Any, model: Any) -> Any:
    """A model of the same shapes in bfloat16, with the weights of another."""
    with torch.no_grad():
        for own, given in zip(model.parameters(), source.parameters(), strict=True):
            own.data = given.detach().to(torch.bfloat16)
    return model


def test_a_map_of_heads_that_forget_has_no_decay_of_theirs() -> None:
    generator = torch.Generator().manual_seed(0)
    own, decay, state = (torch.randn(3, 4, width, generator=generator).double() for width in (6, 4, 6))
    whole = StateMap(0, 5, own, decay, torch.arange(3)).apply(state[None])[0]
    some = StateMap(0, 5, own, decay[[0, 2]], torch.tensor([0, 2])).apply(state[None])[0]
    assert torch.equal(whole, decay @ state + own) or difference(whole, decay @ state + own) < 1e-15
    assert torch.equal(some[1], own[1]) and difference(some[[0, 2]], whole[[0, 2]]) < 1e-15


def test_maps_of_neighbours_compose() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(start: int, stop: int, heads: list[int]) -> StateMap:
        own, decay = (torch.randn(3, 4, width, generator=generator).double() for width in (6, 4))
        return StateMap(start, stop, own, decay[heads], torch.tensor(heads))

    first, second = drawn(2, 7, [0, 2]), drawn(7, 11, [1, 2])
    state = torch.randn(1, 3, 4, 6, generator=generator).double()
    both = second.after(first)
    assert (both.start, both.stop, both.heads.tolist()) == (2, 11, [2])
    assert difference(both.apply(state), second.apply(first.apply(state))) < 1e-12
    assert drawn(7, 11, [1]).after(first).heads.tolist() == []


def mapped_table() -> tuple[KVTable, LayerRows, MappedRows]:
    """A table of 12 slots: 2 rows, a chunk of 8 rows kept as a map from its third on, 2 rows; and the chunk's rows."""
    layout = LayerLayout((1, 2), (1, 3), None, taps=3, state=StateShape(1, 2, 1), mapped_from=5)
    table = KVTable([layout], 12, torch.float32, "cpu")
    table.allocate(torch.arange(12))
    whole = LayerRows(torch.arange(24.0).reshape(1, 12, 2), torch.arange(36.0).reshape(1, 12, 3))
    table.write(0, slice(0, 12), whole)
    own = StateMap(2, 8, torch.ones(1, 2, 1), torch.ones(1, 2, 2), torch.tensor([0]))
    chunk = MappedRows.of(whole.slice(2, 10), [own], layout.edge)
    table.write(0, slice(2, 10), chunk)
    return table, whole, chunk


def test_a_table_gives_its_maps_back_with_the_rows_beside_them() -> None:
    table, whole, chunk = mapped_table()
    assert (chunk.tokens, chunk.keys.shape[1]) == (8, 4)
    read = table.read(0)
    assert isinstance(read, MappedRows) and (read.tokens, read.maps[0].start, read.maps[0].stop) == (12, 4, 10)
    assert torch.equal(read.rows_held(), torch.tensor([0, 1, 2, 3, 8, 9, 10, 11]))
    assert torch.equal(read.keys, whole.keys[:, read.rows_held()])
    assert not isinstance(table.read(0, 10, 12), MappedRows)
    (gathered,) = table.gather(torch.arange(2, 10))
    assert isinstance(gathered, MappedRows) and gathered.maps[0].start == 2 and torch.equal(gathered.keys, chunk.keys)
    again = read.slice(2, 10)
    assert isinstance(again, MappedRows) and torch.equal(again.values, chunk.values)
    assert torch.equal(read.slice(10, 12).keys, whole.keys[:, 10:])
    for call in (
        lambda: table.read(0, 0, 6),
        lambda: table.gather(torch.tensor([5, 3])),
        lambda: read.slice(0, 6),
        lambda: read.select(torch.tensor([1])),
        lambda: table.drop(torch.arange(6)),
    ):
        with pytest.raises(ModelError):
            call()


def test_maps_leave_a_table_with_their_rows() -> None:
    table, _, _ = mapped_table()
    table.drop(torch.cat((torch.arange(1), torch.arange(2, 12))))
    assert [(each.start, each.stop) for each in table.maps[0]] == [(3, 9)]
    table.truncate(8)
    assert table.maps[0] == ()
    table, whole, _ = mapped_table()
    table.forget_maps(torch.arange(2, 10))
    assert table.maps[0] == () and torch.equal(table.read(0).keys, whole.keys)
