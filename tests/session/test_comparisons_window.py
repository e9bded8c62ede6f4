"""Comparisons inside a window: survivors are compared, distrusted where they break the bound, and trusted again."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.window.trace import Trace, TraceSettings, agent_trace
from emblema import Engine, Policy, Store
from emblema.link.lanes import Lane
from emblema.link.policy.lane_stats import RECENT, LaneReport
from emblema.link.policy.samples import divergence
from emblema.session.requests import Prefill
from emblema.window.parts import PartHandle
from emblema.window.staleness import Staleness, unseen
from emblema.window.window import Window
from tests.engine.engines import AT_ONCE

ALWAYS = replace(AT_ONCE, canary=1, canary_rows=math.inf)


def trace_of(seed: int, steps: int, *, changing: bool) -> Trace:
    """Legends that come and go in a small window; drawn again each time, or always the same."""
    return agent_trace(seed, TraceSettings(steps, 8, legend=2, listed=8, changing=changing, gone=0, look_back=3))


def engine_on(reference: Engine, policy: Policy = ALWAYS) -> Engine:
    return Engine(reference.adapter.model, reference.processor, policy=policy, store=Store())


class Agent:
    """Walks a trace with a window that keeps survivors for as long as the policy trusts them."""

    def __init__(self, own: Engine, trace: Trace) -> None:
        def cascade(change: Staleness) -> bool:
            return unseen(change) or not own.policy_runtime.trusts("image", "survivor")

        self.own, self.trace = own, trace
        self.window: Window = own.window(cascade=cascade)
        self.handles: dict[int, PartHandle] = {}

    def walk(self) -> Iterator[tuple[Prefill, bool]]:
        """Each step's prefill, and whether something had left by then."""
        for step in self.trace.steps:
            if step.leaving:
                self.window.slide(2 * step.leaving)
            for shown in step.entering:
                self.window.append(shown.text)
                if shown.back:
                    self.window.recall(self.handles[shown.picture])
                else:
                    piece = self.own.encode(self.trace.pages[shown.picture].image())[0]
                    self.handles[shown.picture] = self.window.append(piece)
            yield self.window.prefill(step.question.text), bool(step.leaving)

    def divergence(self, prefill: Prefill, question: str) -> float:
        full = self.window.prefill(question, "full", keep=False)
        return divergence(full.logits.numpy(), prefill.logits.numpy())


def line_of(own: Engine, lane: Lane, kind: str = "image") -> LaneReport:
    return next(line for line in own.policy_runtime.lane_reports if (line.lane, line.kind) == (lane, kind))


@pytest.mark.slow
def test_survivors_that_break_the_bound_are_trusted_no_longer(reference: Engine) -> None:
    own = engine_on(reference)
    agent = Agent(own, trace_of(4, 40, changing=True))
    lanes: list[bool] = []
    for prefill, slid in agent.walk():
        if slid:
            lanes.append("survivor" in prefill.usage.lane)
        if not own.policy_runtime.trusts("image", "survivor"):
            break
    counted, line = own.policy_runtime.statistics.canary, line_of(own, Lane.SURVIVOR)
    assert all(lanes) and counted.skipped == counted.failed == 0
    assert line.measured == len(lanes) >= 2 and line.kl > 0.05 and not line.open, "never by one item"
    assert line_of(own, Lane.SURVIVOR, "text").measured == line.measured
    # What is computed again answers as re-prefill does.
    asked = agent.trace.steps[len(lanes) - 1 + agent.trace.warm].question.text
    agent.window.slide()
    again = agent.window.prefill(asked)
    assert "survivor" not in again.usage.lane and agent.divergence(again, asked) < 1e-6


@pytest.mark.slow
def test_survivors_that_keep_the_bound_stay_as_they_are(reference: Engine) -> None:
    own = engine_on(reference)
    agent = Agent(own, trace_of(6, 16, changing=False))
    for prefill, slid in agent.walk():
        assert ("survivor" in prefill.usage.lane) is slid
        assert own.policy_runtime.trusts("image", "survivor") and own.policy_runtime.trusts("text", "survivor")
    line, whole = line_of(own, Lane.SURVIVOR), line_of(own, Lane.SETTLED)
    assert line.samples == 16 - agent.trace.warm and line.kl < 0.05 and line.agreement == 1
    assert whole.kl < 1e-6, "what has seen all that is before it is exact"


def test_a_check_is_what_a_full_prefill_of_the_window_says(reference: Engine) -> None:
    own = engine_on(reference)
    agent = Agent(own, trace_of(6, 10, changing=True))
    walk, rows = agent.walk(), 0
    for step in agent.trace.steps[: agent.trace.warm + 1]:
        prefill, _ = next(walk)
        rows += prefill.prompt.tokens if step.index else 0
        question = step.question.text
    assert line_of(own, Lane.SURVIVOR).kl == pytest.approx(agent.divergence(prefill, question), rel=1e-3, abs=1e-7)
    counted = own.policy_runtime.statistics.canary
    assert (counted.checks, counted.rows) == (agent.trace.warm, rows), "all but the first took rows of the window"


@pytest.fixture
def distrusting(reference: Engine) -> Engine:
    """An engine that has measured survivors to be bad."""
    own = engine_on(reference)
    for kind in ("image", "text"):
        while own.policy_runtime.trusts(kind, "survivor"):
            own.policy_runtime.record(kind, Lane.SURVIVOR, 0.4, False)
    return own


@pytest.mark.nightly
def test_survivors_are_trusted_again_where_they_are_good(distrusting: Engine) -> None:
    own = distrusting
    alpha = own.policy_runtime.policy.alpha
    # As many as would show an error above alpha more likely than not.
    needed = min(RECENT, math.ceil(math.log(0.5) / math.log1p(-alpha)))
    agent = Agent(own, trace_of(6, needed + 12, changing=False))
    lanes = []
    for prefill, slid in agent.walk():
        if slid:
            lanes.append("survivor" in prefill.usage.lane)
    counted = own.policy_runtime.statistics.canary
    opened = lanes.index(True)
    assert opened == needed >= 16 and all(lanes[opened:]), "opened once, by enough of them"
    assert counted.trials == needed and counted.turned == 2, "image and text"
    assert counted.trial_rows < counted.trials * 120, "little more than what was new"


def test_a_picture_deleted_meanwhile_is_not_compared(reference: Engine) -> None:
    own = engine_on(reference)
    own.defer_idle(True)
    agent = Agent(own, trace_of(6, 10, changing=False))
    for _, slid in agent.walk():
        if slid:
            break
    assert own.policy_runtime.waiting and own.policy_runtime.statistics.canary.checks == 0
    own.idle()
    assert own.policy_runtime.statistics.canary.checks == 1
    agent.window.prefill("what colour is under the tent ?")
    newest = agent.window.parts[-1]
    source = agent.window._state.parts[-1].sources[0]
    assert own.policy_runtime.waiting and newest.kind == "image" and source not in own.store
    own.store.delete(source)
    own.idle()
    counted = own.policy_runtime.statistics.canary
    assert (counted.checks, counted.skipped) == (1, 1) and not own.policy_runtime.waiting
