"""An item of the window's tables: the identities that its arms rest on, on two kinds of cache."""

from functools import cache

import pytest

from benchmarks.fidelity.ablations import DeepReprefill, ShallowReprefill
from benchmarks.models import model_source
from benchmarks.window.experiment import patch_weight, quarter_rank
from benchmarks.window.item import SUBJECT, Logits, WindowItem, added, difference, norm
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch, rank_for_share
from emblema.link.policy.samples import divergence
from emblema.link.strategies.blind import Blind

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
def test_rows_set_back_answer_as_before_and_a_patch_of_full_rank_is_re_prefill(model: str) -> None:
    sequence = item(model).sequence(*ORDER)
    first, blind = sequence.ask(), item(model).canonical(SUBJECT)
    assert apart(first, sequence.ask({at: sequence.rows(at) for at in range(len(ORDER))})) < CLOSE
    assert apart(first, sequence.ask({-1: blind})) > 0.5
    # What was given for one answer is gone for the next.
    assert apart(first, sequence.ask()) == 0
    patch = form_patch(sequence.deficits(), 384, item(model).adapter.dtype)
    assert apart(first, sequence.ask({-1: added(blind, patch)})) < CLOSE


@pytest.mark.parametrize("model", MODELS)
def test_strategies_make_the_rows_that_they_say(model: str) -> None:
    sequence = item(model).sequence(*ORDER)
    first, rows, canonical = sequence.ask(), sequence.rows(), item(model).canonical(SUBJECT)
    size = norm(rows)
    assert norm(difference(sequence.under(Blind()), canonical)) < CLOSE * size
    # The first layer depends on nothing before it: running it again changes nothing.
    assert norm(difference(sequence.under(ShallowReprefill(20)), canonical)) < CLOSE * size
    assert norm(difference(sequence.made(DeepReprefill(100)), rows)) < 1e-4 * size
    deep = sequence.made(DeepReprefill(80))
    assert CLOSE * size < norm(difference(deep, rows)) < norm(difference(canonical, rows))
    # The rows that were read do not change with the table, which is as it was.
    assert norm(difference(rows, sequence.rows())) == 0
    assert apart(first, sequence.ask()) == 0


@pytest.mark.parametrize("index", range(3))
def test_re_prefill_knows_the_answers_and_the_other_legends_change_them(index: int) -> None:
    own = item("reference", index)
    full, other = own.sequence(*ORDER), own.sequence("other0", "map0", "other1", SUBJECT)
    right = [question.expected for question in own.questions]
    assert len(right) >= 2 and [int(logits.argmax()) for logits in full.ask()["slid"]] == right
    assert not any(int(x.argmax()) == answer for x, answer in zip(other.ask()["slid"], right, strict=True))


def test_a_quarter_is_the_rank_that_weighs_no_more() -> None:
    adapter = loaded("reference").adapter
    tokens, rank = item("reference").chunk(SUBJECT).tokens, quarter_rank(item("reference"))
    assert patch_weight(adapter, tokens, rank) <= 0.25 < patch_weight(adapter, tokens, rank + 1)
    assert rank == rank_for_share(0.25, tokens, adapter.layouts, range(len(adapter.layouts)))
