"""A table under way goes on with more of the prompt: what was there stays, what comes is linked behind it."""

from collections.abc import Sequence

import pytest
import torch

from emblema.errors import LoadError
from emblema.link.executor import Executor
from emblema.link.prompt import ChunkPart, Part, Prompt
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob, Resources
from emblema.models.adapter import Adapter
from emblema.store.arriving import ArrivingRows
from tests.engine.engines import engine, kv_error, largest_error, pictures, text
from tests.families import NAMES


def knowledge(adapter: Adapter) -> Knowledge:
    return Knowledge(adapter.fingerprint, adapter.layouts, lambda key: None, lambda prompt: None)


def parts_of(name: str) -> tuple[list[Part], list[Part]]:
    first, second = pictures(name)
    front: list[Part] = [text(5, 1), ChunkPart(first), text(3, 2)]
    return front, [ChunkPart(second), text(4, 3)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strategy", ["full", "blind"])
def test_going_on_is_the_same_as_the_whole_at_once(name: str, strategy: str) -> None:
    adapter = engine(name).adapter
    executor, chosen = Executor(adapter), parse(strategy)
    front, rest = parts_of(name)
    whole = Prompt.of([*front, *rest], adapter.axes)
    before = Prompt.of(front, adapter.axes)
    expected = executor.run(LinkJob(chosen.plan(whole, knowledge(adapter)), whole))
    begun = executor.run(LinkJob(chosen.plan(before, knowledge(adapter)), before))
    plan = chosen.plan(whole, knowledge(adapter)).after(before.tokens)
    linked = executor.run(LinkJob(plan, whole, reused_rows=before.tokens), table=begun.table)
    assert largest_error(linked.logits, expected.logits) <= 1e-4
    assert kv_error(name, linked, expected) <= 1e-4
    assert linked.trace.computed + linked.trace.cached == whole.tokens - before.tokens


def test_slid_rows_that_have_left_stay_away() -> None:
    name = NAMES[0]
    adapter = engine(name).adapter
    executor, full = Executor(adapter), parse("full")
    first, second = pictures(name)
    third = pictures(name, seed=7)[0]
    front: list[Part] = [ChunkPart(first, slid=True), ChunkPart(second), text(3, 2)]
    whole = Prompt.of([*front, ChunkPart(third), text(4, 3)], adapter.axes)
    before = Prompt.of(front, adapter.axes)
    begun = executor.run(LinkJob(full.plan(before, knowledge(adapter)), before))
    plan = full.plan(whole, knowledge(adapter)).after(before.tokens)
    linked = executor.run(LinkJob(plan, whole, reused_rows=before.tokens), table=begun.table)
    assert linked.rows == whole.tokens - first.tokens
    held = linked.table.rows[: linked.table.length].tolist()
    assert held == list(range(first.tokens, whole.tokens))


class Failing(Sequence):  # type: ignore[type-arg]
    """Rows whose layer `at` does not verify."""

    def __init__(self, rows: Sequence, at: int) -> None:  # type: ignore[type-arg]
        self.rows, self.at = rows, at

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, layer):  # type: ignore[no-untyped-def]
        if layer == self.at:
            raise LoadError("f" * 64, "its checksum differs")
        return self.rows[layer]


def test_a_load_that_fails_half_way_leaves_a_table_under_way_as_it_was() -> None:
    name = NAMES[0]
    adapter = engine(name).adapter
    executor, blind = Executor(adapter), parse("blind")
    front, rest = parts_of(name)
    whole, before = Prompt.of([*front, *rest], adapter.axes), Prompt.of(front, adapter.axes)
    begun = executor.run(LinkJob(blind.plan(before, knowledge(adapter)), before))
    kept = [(begun.table.read(index).keys.clone(), begun.table.read(index).values.clone()) for index in range(2)]
    plan = blind.plan(whole, knowledge(adapter)).after(before.tokens)
    second = whole.chunk_segments[1][1]
    lost = Resources(rows={second.id: Failing(second.rows, len(adapter.layouts) - 1)})
    with pytest.raises(LoadError):
        executor.run(LinkJob(plan, whole, lost, before.tokens), table=begun.table)
    assert begun.table.length == before.tokens
    for index, (keys, values) in enumerate(kept):
        assert torch.equal(begun.table.read(index).keys, keys)
        assert torch.equal(begun.table.read(index).values, values)
    again = executor.run(LinkJob(plan, whole, reused_rows=before.tokens), table=begun.table)
    expected = executor.run(LinkJob(blind.plan(whole, knowledge(adapter)), whole))
    assert largest_error(again.logits, expected.logits) <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_rows_on_their_way_give_what_rows_at_hand_give_bit_for_bit(name: str) -> None:
    adapter = engine(name).adapter
    executor, blind = Executor(adapter), parse("blind")
    front, rest = parts_of(name)
    whole = Prompt.of([*front, *rest], adapter.axes)
    plan = blind.plan(whole, knowledge(adapter))
    expected = executor.run(LinkJob(plan, whole))
    coming = {}
    for _, chunk in whole.chunk_segments:
        rows = ArrivingRows(chunk.id, [layer.bytes for layer in chunk.rows])
        for index, layer in enumerate(chunk.rows):
            rows.arrive(index, layer)
        coming[chunk.id] = rows
    linked = executor.run(LinkJob(plan, whole, Resources(rows=coming)))
    assert torch.equal(linked.logits, expected.logits)


def test_a_forward_begins_before_the_last_layer_is_here() -> None:
    name = NAMES[0]
    adapter = engine(name).adapter
    front, rest = parts_of(name)
    whole = Prompt.of([*front, *rest], adapter.axes)
    seen: list[int] = []

    class Noting(Failing):
        def __getitem__(self, layer):  # type: ignore[no-untyped-def]
            seen.append(layer)
            return self.rows[layer]

    held = {chunk.id: Noting(chunk.rows, -1) for _, chunk in whole.chunk_segments}
    begun: list[list[int]] = []
    table_class = type(Executor(adapter).run(LinkJob(parse("full").plan(whole, knowledge(adapter)), whole)).table)
    update = table_class.update

    def noting(self, keys, values, layer_idx, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = update(self, keys, values, layer_idx, *args, **kwargs)
        begun.append([layer_idx, max(seen)])
        return result

    table_class.update = noting  # type: ignore[method-assign]
    try:
        Executor(adapter).run(LinkJob(parse("blind").plan(whole, knowledge(adapter)), whole, Resources(rows=held)))
    finally:
        table_class.update = update  # type: ignore[method-assign]
    assert begun == [[layer, layer] for layer in range(len(adapter.layouts))]
