"""An item of the window's tables: the identities that its arms rest on, on two kinds of cache."""

from functools import cache

import pytest

from benchmarks.models import model_source
from benchmarks.window.experiment import patch_weight, quarter_rank
from benchmarks.window.item import SUBJECT, Logits, WindowItem, added, difference, norm
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch, rank_for_share
from emblema.link.policy.fidelity import divergence
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.reprefill import Reprefill

MODELS = ("reference", "reference-mla")
ORDER = ("legend0", "map0", "legend1", SUBJECT)
CLOSE = 1e-6


@cache
def item(model: str, index: int = 0) -> WindowItem:
    return WindowItem(loaded(model), 5, index)


@cache
def loaded(model: str) -> Engine:
    return Engine.load(model_source(model))


def apart(left: Logits, right: Logits) -> float:
    """The largest divergence of any answer."""
    return max(divergence(own, other) for name in left for own, other in zip(left[name], right[name], strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_rows_set_back_answer_as_before(model: str) -> None:
    sequence = item(model).sequence(*ORDER)
    first = sequence.ask()
    assert apart(first, sequence.ask({at: sequence.rows(at) for at in range(len(ORDER))})) < CLOSE
    blind = sequence.ask({-1: item(model).canonical(SUBJECT)})
    assert apart(first, blind) > 0.5
    # What was given for one answer is gone for the next.
    assert apart(first, sequence.ask()) == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_patch_of_full_rank_is_re_prefill(model: str) -> None:
    sequence = item(model).sequence(*ORDER)
    patch = form_patch(sequence.deficits(), 384, item(model).adapter.dtype)
    assert apart(sequence.ask(), sequence.ask({-1: added(item(model).canonical(SUBJECT), patch)})) < CLOSE


@pytest.mark.parametrize("model", MODELS)
def test_strategies_make_the_rows_that_they_say(model: str) -> None:
    sequence = item(model).sequence(*ORDER)
    first, rows, canonical = sequence.ask(), sequence.rows(), item(model).canonical(SUBJECT)
    size = norm(rows)
    assert norm(difference(sequence.under(Blind()), canonical)) < CLOSE * size
    # The first layer depends on nothing before it: running it again changes nothing.
    assert norm(difference(sequence.under(Reprefill(20, deep=False)), canonical)) < CLOSE * size
    assert norm(difference(sequence.under(Reprefill(100, deep=True)), rows)) < 1e-4 * size
    deep = sequence.under(Reprefill(80, deep=True))
    assert CLOSE * size < norm(difference(deep, rows)) < norm(difference(canonical, rows))
    # The rows that were read do not change with the table, which is as it was.
    assert norm(difference(rows, sequence.rows())) == 0
    assert apart(first, sequence.ask()) == 0


def test_re_prefill_knows_the_answers_and_the_other_legends_change_them() -> None:
    right = changed = asked = 0
    for index in range(3):
        own = item("reference", index)
        full = own.sequence(*ORDER).ask()["slid"]
        other = own.sequence("other0", "map0", "other1", SUBJECT).ask()["slid"]
        for question, logits, swapped in zip(own.questions, full, other, strict=True):
            right += int(logits.argmax()) == question.expected
            changed += int(swapped.argmax()) != question.expected
            asked += 1
    assert asked >= 6
    assert right == changed == asked


def test_a_quarter_is_the_rank_that_weighs_no_more() -> None:
    adapter = loaded("reference").adapter
    tokens, rank = item("reference").chunk(SUBJECT).tokens, quarter_rank(item("reference"))
    assert patch_weight(adapter, tokens, rank) <= 0.25 < patch_weight(adapter, tokens, rank + 1)
    assert rank == rank_for_share(0.25, tokens, adapter.layouts, range(len(adapter.layouts)))
