"""What a window lets go of when something was deleted, or the weights have changed."""

import pytest
import torch

from emblema import Engine
from emblema.errors import EmblemaError, StoreError, WindowError
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from tests.engine.engines import largest_error
from tests.families import loaded
from tests.window.windows import QUESTION, filled, shown


def test_a_deleted_chunk_leaves_with_all_that_absorbed_it(made: Engine) -> None:
    pieces = [made.add(shown(seed)) for seed in range(60, 63)]
    assert all(isinstance(piece, Chunk) for piece in pieces)
    window = made.window(template=False)
    exact = Auto(Policy(max_kl=0, forming=False))
    handles = [window.append(pieces[0]), window.append(pieces[1]), window.append([70, 71]), window.append(pieces[2])]
    window.prefill(QUESTION, exact)
    window.slide()
    kept = window.snapshot()
    fork = window.fork()
    # It left, and the parts after it still hold something of it.
    assert made.store.delete(pieces[0].id)
    asked = window.prefill(QUESTION, exact)
    full = made.prefill([pieces[1], [70, 71], pieces[2], list(QUESTION)], "full", template=False)
    assert largest_error(asked.logits, full.logits) < 1e-4
    with pytest.raises(WindowError, match="gone for good"):
        window.recall(handles[0])
    window.restore(kept)
    assert largest_error(window.prefill(QUESTION, exact).logits, full.logits) < 1e-4
    assert made.store.delete(pieces[2].id)
    assert largest_error(fork.prefill(QUESTION, exact).logits, full.logits) > 1e-3
    assert fork.parts == tuple(handles[1:3])
    with pytest.raises(StoreError, match="deleted"):
        window.append(pieces[2])
    again = window.append(shown(62))
    assert window.log[-1].rows_recaptured == again.tokens, "it is wanted again, and the store is told"
    assert window.parts[-1] == again and pieces[2].id in made.store


def test_rows_are_dropped_where_somebody_elses_deletion_reaches(made: Engine) -> None:
    """A picture that only windows know is deleted by its id all the same."""
    window, handles = filled(made, 70, 71)
    window.prefill(QUESTION)
    id = made.encode(shown(70))[0].id
    assert id not in made.store
    made.store.delete(id)
    assert window.prefill(QUESTION).trace.computed == len(QUESTION) + handles[1].tokens
    assert window.parts == (handles[1],)


def test_a_deletion_reaches_whoever_is_left_of_several(made: Engine) -> None:
    windows = [filled(made, 72)[0] for _ in range(3)]
    windows[0].close()
    made.store.delete(made.encode(shown(72))[0].id)
    for window in windows[1:]:
        window.snapshot()
        assert window.parts == ()


def test_what_other_weights_wrote_is_refused() -> None:
    item = loaded("llava", seed=5)
    made = Engine(item.model, item.bundle)
    window = made.window(template=False)
    window.append([70, 71])
    window.prefill(QUESTION)
    weight = next(item.model.parameters())
    with torch.no_grad():
        weight.add_(1e-3)
    with pytest.raises(EmblemaError, match="made by another model"):
        window.prefill(QUESTION)
    window.refresh()
    window.prefill(QUESTION)


def test_the_store_is_asked_for_deletions_when_there_were_some(made: Engine) -> None:
    window, _ = filled(made, 128)
    fork, kept = window.fork(), window.snapshot()
    before = made.store.deletions
    window.slide()
    assert made.store.deletions == before
    id = made.encode(shown(128))[0].id
    made.store.delete(id)
    assert made.store.deletions > before and made.store.deleted([id, "other"]) == {id}
    window.snapshot()
    fork.snapshot()
    assert window.evicted == () and fork.parts == ()
    window.restore(kept)
    assert window.parts == (), "a snapshot brings nothing back"
