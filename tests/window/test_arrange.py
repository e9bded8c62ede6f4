"""A window arranged: what it then costs is what its placement says, and no order costs less."""

import random
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch

from emblema.engine.engine import Engine
from emblema.errors import CapacityError, EmblemaError, PlanError, WindowError
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.window.budget import WindowBudget
from emblema.window.parts import PartHandle
from emblema.window.staleness import Cascade, changed, unseen
from emblema.window.window import Window
from tests.engine.engines import AT_ONCE, largest_error
from tests.families import loaded, picture, words

QUESTION = tuple(words(4, 9).tolist())
QUIET = Auto(Policy(canary=0, forming=False))


@cache
def rows_priced() -> Engine:
    """An engine of its own."""
    item = loaded("qwen2_5_vl")
    return Engine(item.model, item.bundle)


def shown(seed: int) -> Any:
    return picture(*loaded("qwen2_5_vl").case.sizes[seed % 2], seed=5000 + seed)


def filled(made: Engine, *given: Any, **options: Any) -> tuple[Window, list[PartHandle]]:
    """Pictures by number, and texts, with their rows."""
    window = made.window(template=False, **{"cascade": unseen, **options})
    handles = [window.append(shown(piece) if isinstance(piece, int) else piece) for piece in given]
    window.prefill(QUESTION, QUIET)
    return window, handles


def to_compute(window: Window) -> int:
    """Rows of media and their texts that the next question computes, texts at the end left out."""
    return rows_of(window) - len(QUESTION)


def rows_of(window: Window) -> int:
    found = window.prefill(QUESTION, QUIET, keep=False)
    window._session.linker.forget_prompts()
    computed: int = found.trace.computed
    return computed


def test_rows_that_are_valid_are_left_where_they_are() -> None:
    window, handles = filled(rows_priced(), 0, 1, 2)
    before = window.prefill(QUESTION, QUIET).logits
    placed = window.arrange()
    assert placed.lanes == ("settled",) * 3 and placed.cost == 0
    assert placed.order == tuple(str(part.number) for part in handles)
    assert window.parts == tuple(handles) and window.log[-1].operation == "arrange"
    assert torch.equal(window.prefill(QUESTION, QUIET).logits, before)


def test_what_is_recalled_comes_where_nothing_else_has_to_be_computed() -> None:
    window, handles = filled(rows_priced(), 0, 1, 2, 3)
    window.slide()
    window.prefill(QUESTION, QUIET)
    entries, runs = len(window.log), sum(entry.encoder_runs for entry in window.log)
    placed = window.arrange(handles[0])
    assert len(window.log) == entries + 1, "one entry"
    assert set(window.parts) == set(handles) and window.evicted == ()
    assert placed.cost == to_compute(window) == handles[0].tokens
    assert sum(entry.encoder_runs for entry in window.log) == runs
    # Those that never saw it would have to be computed too, were it in front of them.
    window, handles = filled(rows_priced(), 0, 1)
    window.evict(handles[0])
    window.append(shown(2))
    window.prefill(QUESTION, QUIET)
    placed = window.arrange(handles[0])
    assert placed.cost == to_compute(window) == handles[0].tokens
    assert [part.number for part in window.parts].index(1) != 1, "not in front of the one that never saw it"


def test_over_a_budget_those_leave_that_cost_least_to_lose() -> None:
    made = rows_priced()
    window, handles = filled(made, 0, 2, 4, 6)
    tokens = handles[0].tokens
    assert {part.tokens for part in handles} == {tokens}
    window.arrange(handles[0], budget=WindowBudget(tokens=2 * tokens))
    assert window.parts == (handles[0], handles[3]), "what is wanted, and the latest of the others"
    assert window.log[-1].left == (handles[1].number, handles[2].number) and len(window.evicted) == 2
    assert to_compute(window) == 0
    worth = {handles[0]: 1.0, handles[1]: 0.0, handles[2]: 5.0 * tokens, handles[3]: 2.0 * tokens}
    window.arrange(budget=WindowBudget(tokens=2 * tokens), worth=worth.__getitem__)
    assert set(window.parts) == {handles[2], handles[3]}, "worth coming back for"
    window.arrange(worth=lambda part: 0.0)
    assert window.parts == () and set(window.evicted) == set(handles)


def test_stored_patches_decide_the_place_of_a_part() -> None:
    item = loaded("qwen2_5_vl")
    made = Engine(item.model, item.bundle, policy=replace(AT_ONCE, alpha=None, max_kl=None, canary=0, margin=0))
    pieces = [made.add(shown(seed)) for seed in range(4)]
    window = made.window(template=False)
    first, second, third = (window.append(piece) for piece in pieces[:3])
    window.prefill(QUESTION)
    made.settle()
    window.slide(3)
    placed = window.arrange(third, second, first)
    assert window.parts == (first, second, third), "the order that their patches were formed in"
    assert placed.lanes == ("leading", "patch", "patch") and placed.cost == 0
    made.forget_prompts()
    asked = window.prefill(QUESTION)
    assert asked.trace.computed == len(QUESTION) and asked.trace.patched == second.tokens + third.tokens


def test_a_text_goes_with_the_picture_after_it() -> None:
    window, (line, first, other, second, third, end) = filled(rows_priced(), [70], 0, [71, 72], 2, 4, [73])
    pinned = window.append([74], pinned=True)
    window.prefill(QUESTION, QUIET)
    window.arrange(second, budget=WindowBudget(tokens=second.tokens + 2 + 2))
    assert window.parts == (other, second, end, pinned)
    placed = window.arrange(first)
    assert placed.cost == first.tokens, "its text has left"
    assert window.parts[-2:] == (end, pinned)
    with pytest.raises(WindowError, match="recall it"):
        window.arrange(line)
    kept, (line, page, last) = filled(rows_priced(), [70], 0, 2)
    fixed = kept.fork()
    fixed.append([75], pinned=True)
    fixed.reorder([fixed.parts[-1], line, page, last])
    fixed.prefill(QUESTION, QUIET)
    fixed.slide(2)
    fixed.arrange(page)
    assert fixed.parts[0].tokens == 1 and set(fixed.parts[1:]) == {page, last}, "pinned at the front stays there"


def test_a_pinned_part_never_leaves() -> None:
    made = rows_priced()
    window = made.window(template=False, cascade=unseen)
    other = window.append(shown(0))
    pinned = window.append(shown(2), pinned=True)
    window.arrange(budget=WindowBudget(tokens=pinned.tokens))
    assert window.parts == (pinned,)
    with pytest.raises(CapacityError):
        window.arrange(other, budget=WindowBudget(tokens=pinned.tokens))
    assert window.parts == (pinned,) and window.evicted == (other,)


REFUSED: dict[str, tuple[Any, type[EmblemaError]]] = {
    "another window's": (lambda w, p: w.arrange(PartHandle(1, "image", 1, "other")), WindowError),
    "no handle": (lambda w, p: w.arrange("1"), WindowError),
    "a budget too small": (lambda w, p: w.arrange(*p, budget=WindowBudget(tokens=p[0].tokens)), CapacityError),
    "a worth below zero": (lambda w, p: w.arrange(worth=lambda part: -1.0), PlanError),
    "a worth that is none": (lambda w, p: w.arrange(worth=lambda part: float("nan")), PlanError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_arranged_is_refused_and_changes_nothing(what: str) -> None:
    window, handles = filled(rows_priced(), 0, 1, 2)
    window.slide()
    before = window.prefill(QUESTION, QUIET).logits
    call, error = REFUSED[what]
    with pytest.raises(error):
        call(window, handles)
    assert window.parts == tuple(handles[1:]) and window.evicted == (handles[0],)
    assert torch.equal(window.prefill(QUESTION, QUIET).logits, before)


@pytest.mark.parametrize("cascade", [unseen, changed])
@pytest.mark.parametrize("seed", range(12))
def test_it_costs_what_it_says_and_no_order_less(cascade: Cascade, seed: int) -> None:
    """Behind random moves, every order of the same parts is tried."""
    draw = random.Random(seed)
    window, handles = filled(rows_priced(), 0, 1, [70, 71], 2, 3, cascade=cascade)
    media = [part for part in handles if part.kind == "image"]
    for _ in range(4):
        present = list(window.parts)
        move = draw.choice(["evict", "recall", "reorder", "ask", "refresh"])
        if move == "evict" and len(present) > 2:
            window.evict(draw.choice(present))
        elif move == "recall" and window.evicted:
            window.recall(draw.choice(window.evicted), at=draw.randrange(len(present) + 1))
        elif move == "reorder":
            window.reorder(draw.sample(present, len(present)))
        elif move == "refresh":
            window.refresh(draw.choice(present))
        else:
            window.prefill(QUESTION, QUIET)
    for text in [part for part in window.parts if part.kind == "text"]:
        window.evict(text)
    wanted = [part for part in media if part in window.evicted]
    orders = []
    for order in permutations(media):
        branch = window.fork()
        for item in wanted:
            branch.recall(item)
        branch.reorder(order)
        orders.append(sum(part.tokens for part in branch.parts if part.number in branch.forming()))
    placed = window.arrange(*wanted)
    assert set(window.parts) == set(media)
    assert placed.cost == to_compute(window)
    assert placed.cost <= min(orders)


def test_an_arranged_window_answers_as_one_that_was_moved_by_hand() -> None:
    window, handles = filled(rows_priced(), 0, 1, 2)
    window.slide()
    window.prefill(QUESTION, QUIET)
    hand = window.fork()
    window.arrange(handles[0])
    hand.recall(handles[0], at=window.parts.index(handles[0]))
    assert hand.parts == window.parts
    assert largest_error(window.prefill(QUESTION, QUIET).logits, hand.prefill(QUESTION, QUIET).logits) < 1e-4


def test_rows_that_are_not_valid_are_dropped_for_parts_that_hold_something_of_them() -> None:
    """A part written after another, and before it now, stays a survivor, as if the other had come back."""
    made = rows_priced()
    window = made.window(template=False, cascade=unseen)
    other, pinned = window.append(shown(0)), window.append(shown(2), pinned=True)
    window.prefill(QUESTION, QUIET)
    window.reorder([pinned, other])
    assert window.forming() == (pinned.number, other.number)
    placed = window.arrange()
    assert window.parts == (pinned, other) and placed.lanes == ("settled", "fresh")
    assert window.forming() == (other.number,)
    assert placed.cost == to_compute(window) == other.tokens
