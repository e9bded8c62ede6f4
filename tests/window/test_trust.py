"""Which parts keep their rows when what is before them has changed: measurements and bounds decide."""

from typing import Any

import pytest

from emblema import Engine
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.window.staleness import unseen
from tests.engine.engines import largest_error
from tests.families import loaded
from tests.window.windows import QUESTION, filled, shown


def distrusting(*kinds: str, **options: Any) -> Engine:
    """An engine that has measured survivors of some kinds to be bad."""
    item = loaded("qwen2_5_vl")
    made = Engine(item.model, item.bundle, policy=Policy(canary=0, forming=False, **options))
    for kind in kinds:
        while made.policy_runtime.trusts(kind, Lane.SURVIVOR):
            made.policy_runtime.record(kind, Lane.SURVIVOR, 2.0, False)
    return made


@pytest.mark.parametrize("kinds", [(), ("image",), ("text",), ("image", "text")])
def test_survivors_stay_for_as_long_as_they_are_trusted(kinds: tuple[str, ...]) -> None:
    made = distrusting(*kinds)
    window, _ = filled(made, 120, 121)
    text = window.append([70, 71, 72])
    last = window.append(shown(122))
    window.prefill(QUESTION)
    window.slide()
    again = [part for part in window.parts if part.kind in kinds]
    assert window.forming() == tuple(item.number for item in again)
    asked = window.prefill(QUESTION)
    assert asked.trace.computed == len(QUESTION) + sum(item.tokens for item in again)
    assert window.log[-1].refreshed == tuple(item.number for item in again)
    lanes = {decision.kind: decision.lane for decision in asked.plan.decisions}
    assert {kind for kind, lane in lanes.items() if lane is Lane.SURVIVOR} == {"image", "text"} - set(kinds)
    assert window.parts[1:] == (text, last)


def test_another_strategy_takes_survivors_untrusted_and_a_window_of_a_cascade_does_not_ask() -> None:
    made = distrusting("image")
    for cascade, strategy in ((None, "blind"), (unseen, "auto")):
        window, handles = filled(made, 123, 124, cascade=cascade)
        window.prefill(QUESTION)
        window.slide()
        assert window.prefill(QUESTION, strategy).trace.computed == len(QUESTION)


def test_a_bound_of_exact_rows_holds_in_a_window() -> None:
    """Per engine and per request: whatever was moved, the answer is a full prefill's."""
    exact = Policy(max_kl=0, canary=0, forming=False)
    for policy in (None, exact):
        made = distrusting() if policy is not None else distrusting(max_kl=0)
        strategy = "auto" if policy is None else Auto(exact)
        window, handles = filled(made, 125, 126, 127)
        window.append([70, 71])
        window.prefill(QUESTION)
        window.slide()
        window.reorder([window.parts[index] for index in (1, 0, 2)])
        window.recall(handles[0], at=1)
        asked = window.prefill(QUESTION, strategy)
        full = window.prefill(QUESTION, "full", keep=False)
        assert largest_error(asked.logits, full.logits) < 1e-4
        window.evict(window.parts[0])
        left = window.prefill(QUESTION, strategy)
        assert largest_error(left.logits, window.prefill(QUESTION, "full", keep=False).logits) < 1e-4
        assert window.stale() == ()
