"""One item in one setting under many strategies: pieces formed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from benchmarks.fidelity.ablations import Directions, MadeRows, OwnForward
from benchmarks.fidelity.arms import Arm, AtShare, Budget
from benchmarks.fidelity.oracles import Oracle, front_table
from emblema.errors import StrategyError
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan, RowSource
from emblema.link.prompt import Prompt, Rows
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.taken_rows import LinkJob


@dataclass(frozen=True, slots=True)
class LinkingCost:
    """What a strategy spent on a prompt.

    Attributes:
        kv_bytes_share: bytes of patches, made rows and recomputed chunk rows over those of the chunks' KV;
            chunks that are slid or lead count on neither side, nor do rows that are only looked at to choose among.
        rows_computed_share: rows computed, in layers, over the prompt's rows.
    """

    kv_bytes_share: float
    rows_computed_share: float


class Linking:
    """Links the prompts of one item's questions. What is formed is kept in `patches`, shared by the item's settings.

    Args:
        patches: pieces formed for this item so far.
        pool: directions of other items' patches, for strategies that learn from them.
    """

    def __init__(
        self,
        executor: Executor,
        prompts: Sequence[Prompt],
        patches: dict[ArtifactKey, Patch],
        pool: Directions = (),
    ) -> None:
        self.executor, self.prompts, self.patches = executor, tuple(prompts), patches
        self._pool = pool
        self._model = executor.adapter.fingerprint
        self._scores: dict[tuple[str, int], Tensor] = {}

    @cached_property
    def context(self) -> LinkContext:
        """Look-ups in what was formed for the item."""
        adapter, find = self.executor.adapter, self.patches.get
        return LinkContext(
            Knowledge(self._model, adapter.layouts, find, lambda prompt: None, anchor=adapter.anchor), {}
        )

    def strategies(self, arm: Arm) -> list[Strategy]:
        """Return what an arm comes to, question by question."""
        adapter = self.executor.adapter
        if isinstance(arm, AtShare):
            return [arm.fitted(Budget.of(arm.percent / 100, prompt, adapter)) for prompt in self.prompts]
        if isinstance(arm, Oracle):
            scored = (self._scored(arm, index) for index in range(len(self.prompts)))
            return [arm.choose(scores, own, adapter.anchor) for scores, own in zip(scored, self.prompts, strict=True)]
        return [arm] * len(self.prompts)

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Form everything that the arms ask for, each piece once and as large as the largest that is asked."""
        asked = [self.strategies(arm) for arm in arms if not isinstance(arm, Oracle)]
        for index, prompt in enumerate(self.prompts):
            plans = [as_published(strategies[index].plan(prompt, self.context.knowledge)) for strategies in asked]
            lacking = [plan for plan in plans if plan.forming]
            if lacking:
                # Never run: it only says what is needed of each piece, by all plans together.
                every = replace(
                    lacking[0],
                    ranges=tuple(part for plan in lacking for part in plan.ranges),
                    forming=tuple(dict.fromkeys(key for plan in lacking for key in plan.forming)),
                )
                self._form(every, prompt)

    def logits(self, strategies: Sequence[Strategy]) -> list[Tensor]:
        """Return the last logits [vocab] float32 of every question.

        Raises:
            StrategyError: the model cannot carry a plan out.
        """
        if all(isinstance(strategy, OwnForward) for strategy in strategies):
            adapter, pairs = self.executor.adapter, zip(strategies, self.prompts, strict=True)
            return [each.logits(adapter, prompt) for each, prompt in pairs if isinstance(each, OwnForward)]
        return [outcome.logits for outcome in self.linked(strategies, 0)]

    def linked(self, strategies: Sequence[Strategy], reserve: int) -> Iterator[LinkedTable]:
        """Return every question linked, one after another, with room to decode."""
        return (self.executor.run(job, reserve=reserve) for job in self._jobs(strategies))

    def spent(self, strategies: Sequence[Strategy]) -> LinkingCost:
        """Return what it costs, the mean over questions."""
        jobs = self._jobs(strategies)
        each = [self._spent(strategy, job.plan, job.prompt) for strategy, job in zip(strategies, jobs, strict=True)]
        return LinkingCost(
            sum(cost.kv_bytes_share for cost in each) / len(each),
            sum(cost.rows_computed_share for cost in each) / len(each),
        )

    def _jobs(self, strategies: Sequence[Strategy]) -> list[LinkJob]:
        jobs = []
        for strategy, prompt in zip(strategies, self.prompts, strict=True):
            plan = as_published(strategy.plan(prompt, self.context.knowledge))
            if plan.forming:
                self._form(plan, prompt)
                plan = as_published(strategy.plan(prompt, self.context.knowledge))
            resources = self.context.resources
            if isinstance(strategy, MadeRows):
                resources = replace(resources, rows=strategy.rows(self.executor, prompt, self._pool))
            jobs.append(LinkJob(plan, prompt, resources))
        refusal = self.executor.refusal(jobs[0].plan, jobs[0].prompt)
        if refusal is not None:
            raise StrategyError(f"{jobs[0].plan.strategy} cannot be run on this model: {refusal}")
        return jobs

    def _form(self, plan: LinkPlan, prompt: Prompt) -> None:
        patches, _ = form_missing(self.executor, prompt, plan, self.context)
        self.patches |= patches

    def _spent(self, strategy: Strategy, plan: LinkPlan, prompt: Prompt) -> LinkingCost:
        adapter, layouts = self.executor.adapter, self.executor.adapter.layouts
        kept: list[Rows] = [
            segment.rows
            for segment, _ in prompt.chunk_segments
            if not prompt.leads(segment, self.executor.adapter.anchor) and segment.rows not in prompt.slid_rows
        ]
        whole = sum(layout.features for layout in layouts)
        numbers = sum(selector.budget * whole for selector in plan.selectors)
        if plan.recomputation is not None:
            numbers += (plan.recomputation.rows - plan.recomputation.question_rows) * whole
        for part in plan.ranges:
            rows = sum(max(0, min(part.stop, stop) - max(part.start, start)) for start, stop in kept)
            if part.source is RowSource.COMPUTED and rows and not _looked_at(plan, part.start):
                numbers += rows * sum(layout.features for layout in layouts[slice(*part.layers)])
        cost = plan.cost(layouts, 1)
        rows_computed = cost.rows_computed
        if isinstance(strategy, MadeRows):
            numbers += sum(strategy.numbers(stop - start, adapter) for start, stop in kept)
            reused = [segment for segment, _ in prompt.chunk_segments if not prompt.leads(segment, adapter.anchor)]
            share = strategy.layers_computed(len(layouts)) / len(layouts)
            rows_computed += share * sum(segment.stop - segment.start for segment in reused)
        held = sum(stop - start for start, stop in kept) * whole
        return LinkingCost(
            (numbers + cost.patch_bytes) / held if held else 0.0,
            rows_computed / prompt.tokens,
        )

    def _scored(self, oracle: Oracle, index: int) -> Tensor:
        if (oracle.kind, index) not in self._scores:
            prompt = self.prompts[index]
            scores = oracle.scores(self.executor, prompt, front_table(self.executor, prompt))
            self._scores[oracle.kind, index] = scores
        return self._scores[oracle.kind, index]


def _looked_at(plan: LinkPlan, row: int) -> bool:
    return any(start <= row < stop for selector in plan.selectors for start, stop in selector.candidates)


def as_published(plan: LinkPlan) -> LinkPlan:
    """Return a plan whose patches have one rank in all layers (Kamera, section 3)."""
    ranges = tuple(
        part if part.patch is None else replace(part, patch=replace(part.patch, even=True)) for part in plan.ranges
    )
    return replace(plan, ranges=ranges)
