"""The bed of the window's tables: the identities that its arms rest on, on two kinds of cache."""

from functools import cache

import numpy as np
import pytest

from benchmarks.models import model_source
from benchmarks.window.bed import SUBJECT, Bed, Logits, added, difference, norm
from benchmarks.window.probe import quarter, weight
from emblema.engine.engine import Engine
from emblema.eval.metrics import divergence
from emblema.kv.patch import form_patch, rank_for_share
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.reprefill import Reprefill

MODELS = ("reference", "reference-mla")
ORDER = ("legend0", "map0", "legend1", SUBJECT)
CLOSE = 1e-6


@cache
def bed(model: str, index: int = 0) -> Bed:
    return Bed(loaded(model), 5, index)


@cache
def loaded(model: str) -> Engine:
    return Engine.load(model_source(model))


def apart(left: Logits, right: Logits) -> float:
    """The largest divergence of any answer."""
    return max(divergence(one, other) for name in left for one, other in zip(left[name], right[name], strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_rows_set_back_answer_as_the_front_does(model: str) -> None:
    front = bed(model).front(*ORDER)
    first = front.ask()
    assert apart(first, front.ask({at: front.rows(at) for at in range(len(ORDER))})) < CLOSE
    blind = front.ask({-1: bed(model).canonical(SUBJECT)})
    assert apart(first, blind) > 0.5
    # What was given for one answer is gone for the next.
    assert apart(first, front.ask()) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_patch_of_full_rank_is_re_prefill(model: str) -> None:
    front = bed(model).front(*ORDER)
    patch = form_patch(front.deficits(), 384, bed(model).adapter.dtype)
    assert apart(front.ask(), front.ask({-1: added(bed(model).canonical(SUBJECT), patch)})) < CLOSE


@pytest.mark.parametrize("model", MODELS)
def test_strategies_make_the_rows_that_they_say(model: str) -> None:
    front = bed(model).front(*ORDER)
    first, rows, canonical = front.ask(), front.rows(), bed(model).canonical(SUBJECT)
    size = norm(rows)
    assert norm(difference(front.under(Blind()), canonical)) < CLOSE * size
    # The first layer depends on nothing in front: running it again changes nothing.
    assert norm(difference(front.under(Reprefill(20, deep=False)), canonical)) < CLOSE * size
    assert norm(difference(front.under(Reprefill(100, deep=True)), rows)) < 1e-4 * size
    deep = front.under(Reprefill(80, deep=True))
    assert CLOSE * size < norm(difference(deep, rows)) < norm(difference(canonical, rows))
    # The rows that were read do not change with the table, which is as it was.
    assert norm(difference(rows, front.rows())) == 0
    assert apart(first, front.ask()) == 0


def test_items_repeat_and_differ() -> None:
    again = Bed(loaded("reference"), 5, 0)
    assert [one.expected for one in again.questions] == [one.expected for one in bed("reference").questions]
    pages = again.pages
    assert np.array_equal(np.asarray(pages[SUBJECT].image()), np.asarray(bed("reference").pages[SUBJECT].image()))
    assert not np.array_equal(
        np.asarray(pages[SUBJECT].image()), np.asarray(Bed(loaded("reference"), 6, 0).pages[SUBJECT].image())
    )


def test_re_prefill_knows_the_answers_and_the_other_legends_change_them() -> None:
    right = changed = asked = 0
    for index in range(3):
        one = bed("reference", index)
        full = one.front(*ORDER).ask()["slid"]
        other = one.front("other0", "map0", "other1", SUBJECT).ask()["slid"]
        for question, logits, swapped in zip(one.questions, full, other, strict=True):
            right += int(logits.argmax()) == question.expected
            changed += int(swapped.argmax()) != question.expected
            asked += 1
    assert asked >= 6
    assert right == changed == asked


def test_a_quarter_is_the_rank_that_weighs_no_more() -> None:
    adapter = loaded("reference").adapter
    rank = quarter(adapter, 66)
    assert weight(adapter, 66, rank) <= 0.25 < weight(adapter, 66, rank + 1)
    assert rank == rank_for_share(0.25, 66, adapter.layouts, range(len(adapter.layouts)))
