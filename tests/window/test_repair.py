"""Repairs of survivors: at full rank they are as computed again; the rows as first written stay."""

from typing import Any

import pytest
import torch

from emblema.engine.engine import Engine
from emblema.errors import CapacityError, WindowError
from emblema.window.budget import WindowBudget
from emblema.window.parts import PartHandle
from emblema.window.staleness import changed, unseen
from emblema.window.window import Window
from tests.engine.engines import engine, largest_error
from tests.families import NAMES, loaded, picture, words

QUESTION = tuple(words(4, 9).tolist())
FULL_RANK = 10**4


def shown(name: str, seed: int) -> Any:
    return picture(*loaded(name).case.sizes[seed % 2], seed=3000 + seed)


def filled(made: Engine, name: str, **options: Any) -> tuple[Window, list[PartHandle]]:
    """Text and pictures with their rows."""
    window = made.window(template=False, **{"cascade": unseen, **options})
    given = [shown(name, 0), shown(name, 1), [70, 71, 72], shown(name, 2)]
    handles = [window.append(piece) for piece in given]
    window.prefill(QUESTION)
    return window, handles


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_at_full_rank_survivors_are_as_if_computed_again(name: str) -> None:
    made = engine(name)
    window, (_, *stay) = filled(made, name)
    again, _ = filled(made, name, cascade=changed)
    for item in (window, again):
        item.slide()
        item.append([80, 81])
    kept = window.fork().prefill(QUESTION).logits
    expected = again.prefill(QUESTION)
    tokens = sum(part.tokens for part in stay)
    assert expected.trace.computed == tokens + 2 + len(QUESTION)
    assert window.repair(rank=FULL_RANK) == tuple(stay)
    entry = window.log[-1]
    assert (entry.forwards, entry.rows_computed, entry.patches_formed) == (1, tokens, len(stay))
    assert entry.repaired == tuple(part.number for part in stay)
    found = window.prefill(QUESTION)
    assert found.trace.computed == 2 + len(QUESTION), "what is repaired is taken"
    assert found.trace.patch_bytes == window.memory.repairs
    assert largest_error(found.logits, expected.logits) < 1e-4
    assert largest_error(found.logits, kept) > 1e-4, "there was something to repair"
    assert window.stale() == () and window.repair() == (), "after what is there now"


def test_the_rows_as_first_written_stay_and_a_branch_costs_its_factors() -> None:
    made = engine("qwen2_5_vl")
    window, _ = filled(made, "qwen2_5_vl")
    window.slide()
    window.prefill(QUESTION)
    before, rows, size = window.prefill(QUESTION), window.memory.rows, window.bytes
    kept, fork = window.snapshot(), window.fork()
    assert len(fork.repair(rank=1)) == 3
    assert fork.memory.rows == rows and fork.memory.repairs > 0
    assert fork.bytes == size + fork.memory.repairs == window.bytes_with(fork), "every row is shared"
    assert torch.equal(window.prefill(QUESTION).logits, before.logits)
    window.repair(rank=FULL_RANK)
    assert largest_error(window.prefill(QUESTION).logits, before.logits) > 1e-4
    window.restore(kept)
    assert window.memory.repairs == 0
    assert torch.equal(window.prefill(QUESTION).logits, before.logits)


def test_more_directions_leave_less_and_a_later_repair_replaces_an_earlier_one() -> None:
    made = engine("qwen2_5_vl")
    window, _ = filled(made, "qwen2_5_vl")
    window.slide()
    exact = window.fork()
    exact.repair(rank=FULL_RANK)
    ranks: list[int | str] = [1, 4, FULL_RANK]
    errors, sizes = [], []
    for rank in ranks:
        branch = window.fork()
        branch.repair(rank=rank)
        errors.append(distance(branch, exact))
        sizes.append(branch.memory.repairs)
    assert errors[0] > errors[1] > errors[2] == 0 and sizes == sorted(set(sizes))
    again = window.fork()
    again.repair(rank=1)
    again.slide()
    again.repair(rank=FULL_RANK)
    straight = window.fork()
    straight.slide()
    straight.repair(rank=FULL_RANK)
    assert again.memory.repairs == straight.memory.repairs, "factors do not pile up"
    assert largest_error(again.prefill(QUESTION).logits, straight.prefill(QUESTION).logits) < 1e-4


def distance(window: Window, other: Window) -> float:
    """Of all rows of two windows, squared."""
    pairs = zip(window.prefill(QUESTION).kv, other.prefill(QUESTION).kv, strict=True)
    return float(sum((a.keys - b.keys).square().sum() + (a.values - b.values).square().sum() for a, b in pairs))


def test_a_share_bounds_the_factors_and_short_text_gets_new_rows() -> None:
    made = engine("qwen2_5_vl")
    window, (_, second, text, third) = filled(made, "qwen2_5_vl")
    window.slide()
    fork = window.fork()
    assert window.repair(rank="30%") == (second, text, third)
    row = sum(layout.features for layout in made.adapter.layouts) * made.adapter.dtype.itemsize
    assert 0 < window.memory.repairs <= 0.3 * (second.tokens + third.tokens) * row
    assert window.log[-1].patches_formed == 2, "of three tokens no direction fits the share"
    shared = window.bytes + fork.bytes - window.bytes_with(fork)
    pictures = second.tokens + third.tokens
    embedded = fork.memory.embeddings
    assert shared == pictures * row + embedded, "its rows are its own now"


def test_one_part_is_repaired_after_survivors_as_they_are() -> None:
    made = engine("qwen2_5_vl")
    window, (_, second, text, third) = filled(made, "qwen2_5_vl")
    window.slide()
    last = window.append([80])
    assert window.repair(third, rank=2) == (third,)
    assert window.log[-1].rows_computed == third.tokens, "the parts after it do not matter"
    assert window.forming() == (last.number,)
    assert [change.number for change in window.stale()] == [second.number, text.number]
    assert window.repair(third) == () and window.log[-1].forwards == 0


def test_parts_without_rows_before_it_get_theirs() -> None:
    made = engine("qwen2_5_vl")
    window, (first, *_, third) = filled(made, "qwen2_5_vl")
    window.slide()
    window.recall(first, at=0)
    assert window.forming() == (first.number,), "the others saw it, as it was"
    window.evict(window.parts[1])
    assert window.repair(third, rank=FULL_RANK) == (third,)
    assert window.log[-1].rows_computed == first.tokens + third.tokens
    assert window.forming() == ()


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "64", "0%", "101%", "25 %", None])
def test_what_is_no_rank_is_refused(rank: Any) -> None:
    window, _ = filled(engine("qwen2_5_vl"), "qwen2_5_vl")
    window.slide()
    with pytest.raises(WindowError, match="rank"):
        window.repair(rank=rank)
    assert window.log[-1].forwards == 0 and window.memory.repairs == 0


def test_what_left_or_does_not_fit_is_refused() -> None:
    made = engine("qwen2_5_vl")
    window, handles = filled(made, "qwen2_5_vl")
    window.slide()
    with pytest.raises(WindowError, match="has left"):
        window.repair(handles[0])
    size = filled(made, "qwen2_5_vl")[0].bytes
    tight, handles = filled(made, "qwen2_5_vl", budget=WindowBudget(bytes=size))
    tight.slide()
    before = tight.prefill(QUESTION).logits
    with pytest.raises(CapacityError, match="fewer directions"):
        tight.repair(rank=FULL_RANK)
    assert tight.memory.repairs == 0 and torch.equal(tight.prefill(QUESTION).logits, before)
    tight.repair(rank=1)
    assert tight.log[-1].bytes == tight.bytes <= size


def test_a_deletion_reaches_rows_under_a_repair() -> None:
    item = loaded("qwen2_5_vl")
    made = Engine(item.model, item.bundle)
    window, (_, second, text, third) = filled(made, "qwen2_5_vl")
    window.slide()
    window.repair(rank=1)
    made.store.delete(made.encode(shown("qwen2_5_vl", 0))[0].id)
    asked = window.prefill(QUESTION)
    assert asked.trace.computed == second.tokens + text.tokens + third.tokens + len(QUESTION)
    assert window.memory.repairs == 0
