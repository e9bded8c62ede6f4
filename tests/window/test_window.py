"""What a window refuses, what it keeps of what left, its views, its branches, and what its log tells."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from emblema import Engine
from emblema.errors import CapacityError, EmblemaError, WindowError
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.store import ArtifactKey
from emblema.window.budget import WindowBudget
from emblema.window.parts import PartHandle
from emblema.window.window import Window
from tests.engine.engines import AT_ONCE, largest_error
from tests.families import loaded
from tests.window.windows import QUESTION, filled, row_bytes, settled, shown

UNBOUND = Auto(replace(AT_ONCE, alpha=None, max_kl=None, canary=0, margin=0))


REFUSED: dict[str, tuple[Callable[[Window, list[PartHandle], PartHandle], object], str]] = {
    "recall of what never was": (lambda w, p, other: w.recall(replace(p[0], number=99)), "another window"),
    "recall of another window's": (lambda w, p, other: w.recall(other), "another window"),
    "recall of what is there": (lambda w, p, other: w.recall(p[0]), "is in the window"),
    "recall of no handle": (lambda w, p, other: w.recall("1"), "name a part by the handle"),  # type: ignore[arg-type]
    "evict of another window's": (lambda w, p, other: w.evict(other), "another window"),
    "refresh of another window's": (lambda w, p, other: w.refresh(other), "another window"),
    "an order with one twice": (lambda w, p, other: w.reorder([p[0], p[0]]), "no permutation"),
    "an order without one": (lambda w, p, other: w.reorder(p[:1]), "no permutation"),
    "an order with another window's": (lambda w, p, other: w.reorder([p[0], other]), "no permutation"),
    "an order of numbers": (lambda w, p, other: w.reorder([[1], 2]), "no permutation"),  # type: ignore[list-item]
    "no order": (lambda w, p, other: w.reorder(None), "no permutation"),  # type: ignore[arg-type]
    "sliding past the end": (lambda w, p, other: w.slide(3), "2 parts"),
    "sliding by nothing": (lambda w, p, other: w.slide(0), "2 parts"),
    "sliding by a half": (lambda w, p, other: w.slide(0.5), "2 parts"),  # type: ignore[arg-type]
    "another's snapshot": (lambda w, p, other: w.fork().restore(w.snapshot()), "no snapshot of this window"),
    "no snapshot": (lambda w, p, other: w.restore(None), "no snapshot of this window"),  # type: ignore[arg-type]
    "a view that is none": (lambda w, p, other: setattr(w, "view", "dirty"), "no view"),
    "a need with a rest that is none": (lambda w, p, other: w.needed(p[0], QUESTION, rest="dirty"), "rest is"),
    "a question without room": (lambda w, p, other: w.ask(QUESTION, max_new_tokens=10**6), "context"),
    "a knob that is none": (lambda w, p, other: w.ask(QUESTION, temprature=1), "no sampling knob"),
    "a strategy that is none": (lambda w, p, other: w.ask(QUESTION, "fastest"), "fastest"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_is_refused_and_changes_nothing(made: Engine, what: str) -> None:
    window, handles = filled(made, 0, 1)
    other = filled(made, 0)[1][0]
    before = settled(window)
    call, message = REFUSED[what]
    with pytest.raises(EmblemaError, match=message):
        call(window, handles, other)
    assert window.parts == tuple(handles) and window.evicted == ()
    assert torch.equal(window.prefill(QUESTION).logits, before)


def test_a_closed_window_refuses_everything(made: Engine) -> None:
    window, (part, _) = filled(made, 0, 1)
    fork, kept = window.fork(), window.snapshot()
    before = settled(fork)
    with window:
        pass
    calls: list[Callable[[], object]] = [
        window.fork, window.snapshot, window.stale, window.forming, window.slide, window.ask, window.prefill,
        window.refresh, window.repair, window.arrange, lambda: window.ask(stream=True),
        lambda: window.append([1]), lambda: window.evict(part), lambda: window.recall(part),
        lambda: window.reorder([]), lambda: window.restore(kept), lambda: setattr(window, "view", "clean"),
        lambda: window.needed(part), lambda: window.dependents(part),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(WindowError, match="closed"):
            call()
    assert window.closed and window.bytes == 0 and window.log[-1].operation == "snapshot"
    window.close()
    assert torch.equal(fork.prefill(QUESTION).logits, before), "a fork lives on"


@pytest.mark.parametrize("options", [{"tokens": -1}, {"bytes": 1.5}, {"over": "forget"}, {"recall_bytes": "1 GB"}])
def test_a_budget_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(WindowError):
        WindowBudget(**options)


def test_a_budget_smaller_than_a_part_refuses_it(made: Engine, reference: Engine) -> None:
    tokens = made.encode(shown(0))[0].encoded.tokens
    for budget in (WindowBudget(tokens=tokens - 1), WindowBudget(bytes=tokens * row_bytes(made))):
        window = made.window(template=False, budget=budget)
        window.append([70, 71])
        with pytest.raises(CapacityError, match=str(budget.tokens or budget.bytes)):
            window.append(shown(0))
        assert len(window.parts) == 1, "nothing left for what does not fit anyhow"
    with pytest.raises(CapacityError):
        reference.window(budget=WindowBudget(tokens=1))


def test_over_its_budget_a_window_slides_or_refuses(made: Engine) -> None:
    tokens = made.encode(shown(0))[0].encoded.tokens
    window, handles = filled(made, 0, 1, budget=WindowBudget(tokens=2 * tokens))
    window.append([70, 71], pinned=False)
    assert window.log[-1].left == (handles[0].number,) and window.evicted == (handles[0],)
    window.recall(handles[0], at=1)
    assert [part.kind for part in window.parts] == ["image", "text"] and window.evicted == (handles[1],)
    window, handles = filled(made, 0, 1, budget=WindowBudget(tokens=2 * tokens, over="refuse"))
    with pytest.raises(CapacityError):
        window.append([70])
    assert window.parts == tuple(handles)


def test_a_pinned_part_stays_until_it_is_evicted(made: Engine) -> None:
    window = made.window(template=False, budget=WindowBudget(tokens=60))
    first = window.append([70, 71, 72], pinned=True)
    others = [window.append(shown(seed)) for seed in range(2)]
    assert window.slide() == (others[0],)
    with pytest.raises(WindowError, match="1 parts"):
        window.slide(2)
    window.append([70])
    assert window.slide(1, media=True) == (others[1],) and window.parts[0] == first
    window.evict(first)
    assert first in window.evicted


def test_what_left_is_forgotten_when_its_embeddings_do_not_fit(made: Engine) -> None:
    size = made.encode(shown(0))[0].encoded.bytes
    window, handles = filled(made, 0, 1, 2, budget=WindowBudget(recall_bytes=2 * size))
    window.slide(3)
    assert window.evicted == tuple(handles[1:])
    assert window.memory.evicted == 2 * size
    assert window.memory.evicted_rows == 2 * handles[0].tokens * row_bytes(made)
    with pytest.raises(WindowError, match="gone for good"):
        window.recall(handles[0])
    # What comes back makes room for what leaves for it.
    window, handles = filled(made, 0, 1, 2, budget=WindowBudget(tokens=2 * handles[0].tokens, recall_bytes=size))
    assert window.evicted == (handles[0],)
    window.recall(handles[0])
    assert window.parts == (handles[2], handles[0]) and window.evicted == (handles[1],)


def test_the_clean_view_is_blind_reuse_and_leaves_nothing(made: Engine) -> None:
    window, handles = filled(made, 10, 11)
    window.append([70, 71, 72])
    window.append(shown(10))
    window.view = "clean"
    first = window.prefill(QUESTION)
    assert first.usage.recaptured_tokens == 2 * handles[0].tokens, "each picture was prefilled alone, once"
    assert window.memory.rows == 0
    pieces = [made.add(shown(seed)) for seed in (10, 11)]
    blind = made.prefill([*pieces, [70, 71, 72], pieces[0], list(QUESTION)], "blind", template=False)
    assert largest_error(first.logits, blind.logits) < 1e-5
    with pytest.raises(WindowError, match="clean view"):
        window.prefill(QUESTION, "full")
    window.view = "conditioned"
    before = window.prefill(QUESTION, Auto(Policy(max_kl=0)))
    window.view = "clean"
    assert torch.equal(window.prefill(QUESTION).logits, first.logits)
    window.view = "conditioned"
    after = window.prefill(QUESTION)
    assert largest_error(after.logits, before.logits) < 1e-4
    assert largest_error(after.logits, first.logits) > 1e-3
    assert torch.equal(window.prefill(QUESTION).logits, after.logits), "both ways are exact"


def test_a_branch_costs_what_is_new_in_it(made: Engine) -> None:
    window, handles = filled(made, 20, 21)
    before = settled(window)
    fork, other = window.fork(), window.fork()
    assert window.bytes_with(fork, other) == window.bytes
    size = window.bytes
    handle = fork.append(shown(22))
    assert fork.prefill(QUESTION).trace.computed == len(QUESTION) + handle.tokens
    assert window.bytes_with(fork, other) == fork.bytes == size + (fork.bytes - size)
    other.slide()
    other.append(shown(23))
    other.prefill(QUESTION)
    own = fork.bytes - size + other.bytes - size // 2
    assert window.bytes_with(fork, other) == size + own
    for name in (handle.number, other.parts[-1].number):
        assert name not in [part.number for part in window.parts]
    with pytest.raises(WindowError, match="in a fork alone"):
        window.evict(handle)
    assert torch.equal(window.prefill(QUESTION).logits, before)


def test_restore_is_exact(made: Engine) -> None:
    window, handles = filled(made, 24, 25, 26)
    window.prefill(QUESTION)
    before, kept = window.prefill(QUESTION), window.snapshot()
    window.slide()
    assert [(change.number, change.gone) for change in window.stale()] == [
        (part.number, (handles[0].number,)) for part in handles[1:]
    ]
    window.reorder([handles[2], handles[1]])
    window.append([70, 71])
    window.prefill(QUESTION)
    window.restore(kept)
    after = window.prefill(QUESTION)
    assert window.parts == tuple(handles) and window.evicted == () and window.stale() == ()
    assert torch.equal(after.logits, before.logits)
    assert after.trace.computed == len(QUESTION)
    for layer in range(after.plan.layers):
        assert torch.equal(after.kv[layer].keys, before.kv[layer].keys)
        assert torch.equal(after.kv[layer].values, before.kv[layer].values)


@pytest.mark.parametrize("rest", ["clean", "kept", "fresh"])
def test_need_compares_the_answers_with_and_without(made: Engine, rest: Any) -> None:
    window, handles = filled(made, 30, 31, 32)
    with_it = settled(window)
    need = window.needed(handles[1], QUESTION, rest=rest, max_new_tokens=3)
    assert window.parts == tuple(handles)
    assert torch.equal(window.prefill(QUESTION).logits, with_it)
    pieces = [made.add(shown(seed)) for seed in (30, 31, 32)]
    without = window.fork()
    without.evict(handles[1])
    if rest == "kept":
        logits = without.prefill(QUESTION).logits
    elif rest == "fresh":
        logits = made.prefill([pieces[0], pieces[2], list(QUESTION)], "full", template=False).logits
    else:
        logits = made.prefill([pieces[0], pieces[2], list(QUESTION)], "blind", template=False).logits
    token = int(with_it.argmax())
    others = torch.cat([logits[:token], logits[token + 1 :]])
    assert need.margin_without == pytest.approx(float(logits[token] - others.max()), abs=1e-3)
    assert need.margin == pytest.approx(float(with_it.topk(2).values.diff().abs()), abs=1e-3)
    assert need.needed == (need.answer.text != need.answer_without.text)
    entry = next(entry for entry in window.log if entry.operation == "needed")
    assert entry.rows_decoded == len(need.answer.token_ids) + len(need.answer_without.token_ids)


def test_a_stored_patch_is_replayed_behind_its_antecedents_and_behind_no_others() -> None:
    item = loaded("qwen2_5_vl")
    made = Engine(item.model, item.bundle)
    pieces = [made.add(shown(seed)) for seed in range(40, 43)]
    window = made.window(template=False)
    first, second, third = (window.append(piece) for piece in pieces)
    window.prefill(QUESTION, UNBOUND)
    assert window.log[-1].patches_formed == 2, "the second and the third picture came after others"
    made.settle()
    assert made.store.find_patch(ArtifactKey(made.adapter.fingerprint, pieces[1].id, (pieces[0].id,))) is not None
    window.evict(second)
    window.evict(third)
    window.recall(second)
    known = window.prefill(QUESTION, UNBOUND)
    assert known.trace.computed == len(QUESTION) and known.trace.patched == second.tokens
    window.slide()
    window.evict(second)
    window.append([70])
    window.recall(third, at=0)
    window.recall(second)
    stale = window.prefill(QUESTION, UNBOUND)
    used = [change.patch for change in stale.plan.ranges if change.patch is not None]
    assert not used and stale.trace.computed == len(QUESTION) + second.tokens + 1
    assert [decision.lane for decision in stale.plan.decisions][-1] is Lane.FULL


def test_a_part_whose_antecedents_are_reordered_is_a_survivor_and_others_are_not() -> None:
    item = loaded("qwen2_5_vl")
    made = Engine(item.model, item.bundle)
    pieces = [made.add(shown(seed)) for seed in range(50, 53)]
    window = made.window(template=False)
    handles = [window.append(piece) for piece in pieces]
    window.prefill(QUESTION, Auto(Policy(max_kl=0, forming=False)))
    window.reorder([handles[1], handles[0], handles[2]])
    kept = window.prefill(QUESTION, Auto(Policy(max_kl=None, forming=False)), keep=False)
    assert kept.plan.decisions[-1].lane is Lane.SURVIVOR
    taken = {Lane.SETTLED, Lane.SURVIVOR}
    lanes = [decision.lane for decision in kept.plan.decisions[:2]]
    assert not taken.issuperset(lanes), "they come after others than before"


def test_a_cascade_is_told_formed_in_order_and_may_be_refused(made: Engine) -> None:
    window, handles = filled(made, 80, 81, 82, cascade=lambda change: False)
    first, second, third = (part.number for part in handles)
    assert window.forming() == (first, second, third)
    window.prefill(QUESTION)
    assert window.dependents(handles[0]) == (second, third) and window.forming() == ()
    window.slide()
    window.prefill(QUESTION)
    window.evict(handles[1])
    window.recall(handles[1], at=1)
    assert window.log[-1].stale == (third,), "it saw the part, and the part has no rows yet"
    window.recall(handles[0], at=0)
    fresh = window.append(shown(83))
    moved = window.fork()
    moved.reorder([fresh, *handles])
    assert [change.number for change in moved.stale()] == [third]
    assert moved.forming() == (fresh.number, first, second), "no cascade: the third keeps what it has"
    assert moved.prefill(QUESTION).trace.computed == len(QUESTION) + 3 * fresh.tokens
    kept = made.window(template=False, cascade=lambda change: change.stale)
    for seed in (80, 81):
        kept.append(shown(seed))
    kept.prefill(QUESTION)
    kept.slide()
    assert kept.prefill(QUESTION).trace.computed == len(QUESTION) + kept.parts[0].tokens, "for exact answers"


def test_the_log_says_what_every_operation_cost(made: Engine) -> None:
    window = made.window(template=False)
    text = window.append([70, 71, 72])
    part = window.append(shown(90))
    again = window.append(shown(90))
    assert [entry.encoder_runs for entry in window.log] == [0, 1, 0]
    reply = window.ask(QUESTION, max_new_tokens=2)
    asked = window.log[-1]
    size = text.tokens + part.tokens + again.tokens
    assert (asked.rows_computed, asked.rows_taken, asked.rows_run) == (size + len(QUESTION), 0, size + len(QUESTION))
    assert asked.bytes_moved == size * row_bytes(made) and asked.rows_decoded == len(reply.token_ids)
    window.slide()
    window.prefill(QUESTION)
    moved = window.log[-1]
    assert (moved.rows_computed, moved.rows_taken) == (len(QUESTION), size - text.tokens)
    assert moved.bytes_moved == (size - text.tokens) * row_bytes(made)
    window.evict(part)
    window.recall(part)
    window.prefill(QUESTION)
    assert window.log[-1].rows_computed == len(QUESTION) + part.tokens
    assert sum(entry.encoder_runs for entry in window.log) == 1
    assert [entry.operation for entry in window.log] == [
        "append", "append", "append", "ask", "slide", "prefill", "evict", "recall", "prefill",
    ]  # fmt: skip
    assert all(entry.seconds > 0 and entry.error is None for entry in window.log)
    assert window.log[-1].tokens == window.tokens and window.log[-1].bytes == window.bytes
