"""One item in one setting under many strategies: fronts linked once, pieces formed once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from benchmarks.fidelity.arms import Arm, AtRows, AtShare, Budget
from benchmarks.fidelity.oracles import Oracle, front_table
from emblema.errors import StrategyError
from emblema.kv.artifacts import Artifact
from emblema.kv.patch import Patch
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan, RowSource
from emblema.link.prompt import Prompt, Rows, Segment, TextPart
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.taken_rows import LinkJob
from emblema.models.table import KVTable
from emblema.store.keys import ArtifactKey


@dataclass(frozen=True, slots=True)
class LinkingCost:
    """What a strategy spent on a prompt.

    Attributes:
        kv_bytes_share: bytes of patches, kept residual streams and recomputed chunk rows over those of the chunks' KV;
            chunks that are slid or at row 0 count on neither side, nor do rows that are only looked at to choose among.
        rows_computed_share: rows computed, in layers, over the prompt's rows.
    """

    kv_bytes_share: float
    rows_computed_share: float


class Linking:
    """Links the prompts of one item's questions. What is formed is kept in `patches`, shared by the item's settings.

    Args:
        patches: pieces formed for this item so far.
        pool: patches of other items, by their keys, for strategies that learn from them.
    """

    def __init__(
        self,
        executor: Executor,
        prompts: Sequence[Prompt],
        patches: dict[ArtifactKey, Artifact],
        pool: Mapping[ArtifactKey, Patch],
    ) -> None:
        self.executor, self.prompts, self.patches = executor, tuple(prompts), patches
        self._pool = pool
        self.start = self.prompts[0].segments[-1].start
        self.shared = len(self.prompts) > 1 and self.start > 0 and same_front(self.prompts)
        self._model = executor.adapter.fingerprint
        self._scores: dict[tuple[str, int], Tensor] = {}

    @cached_property
    def context(self) -> LinkContext:
        """Look-ups in what was formed for the item, and in what was learnt from others."""

        def find(key: ArtifactKey) -> Artifact | None:
            return self.patches.get(key) or self._pool.get(key)

        knowledge = Knowledge(self._model, self.executor.adapter.layouts, find, lambda prompt: None)
        return LinkContext(knowledge, {}, self._pool)

    def strategies(self, arm: Arm) -> list[Strategy]:
        """Return what an arm comes to, question by question."""
        if isinstance(arm, AtShare | AtRows):
            fitted = [self._fitted(arm, prompt) for prompt in (self.prompts[:1] if self.shared else self.prompts)]
            return fitted * len(self.prompts) if self.shared else fitted
        if isinstance(arm, Oracle):
            if self.shared and not arm.by_question:
                return [arm.choose(self._scored(arm, 0), self.prompts[0])] * len(self.prompts)
            return [arm.choose(self._scored(arm, index), prompt) for index, prompt in enumerate(self.prompts)]
        return [arm] * len(self.prompts)

    def _fitted(self, arm: AtShare | AtRows, prompt: Prompt) -> Strategy:
        if isinstance(arm, AtRows):
            return arm.fitted(prompt, self.context.knowledge)
        adapter = self.executor.adapter
        return arm.fitted(Budget.of(arm.percent / 100, prompt, adapter.layouts, adapter.hidden_size))

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Form everything that the arms ask for, each piece once and as large as the largest that is asked."""
        for index, prompt in enumerate(self.prompts[:1] if self.shared else self.prompts):
            plans = [
                self.strategies(arm)[index].plan(prompt, self.context.knowledge)
                for arm in arms
                if not isinstance(arm, Oracle)
            ]
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
        jobs = self._jobs(strategies)
        same = self.shared and all(strategy is strategies[0] for strategy in strategies)
        if not same or not all(plain_ending(job.plan, self.start) for job in jobs):
            return [self.executor.run(job).logits for job in jobs]
        longest = max(prompt.tokens for prompt in self.prompts)
        first = self.executor.run(jobs[0], reserve=longest - self.prompts[0].tokens)
        first.table.truncate(first.rows - (self.prompts[0].tokens - self.start))
        plans = [job.plan for job in jobs[1:]]
        return [first.logits, *endings(self.executor, first.table, self.prompts[1:], plans, self.start)]

    def linked(self, strategies: Sequence[Strategy], reserve: int) -> Iterator[LinkedTable]:
        """Return every question linked, one after another, with room to decode."""
        return (self.executor.run(job, reserve=reserve) for job in self._jobs(strategies))

    def spent(self, strategies: Sequence[Strategy]) -> LinkingCost:
        """Return what it costs, the mean over questions."""
        each = [self._spent(job.plan, job.prompt) for job in self._jobs(strategies[:1] if self.shared else strategies)]
        return LinkingCost(
            sum(cost.kv_bytes_share for cost in each) / len(each),
            sum(cost.rows_computed_share for cost in each) / len(each),
        )

    def _jobs(self, strategies: Sequence[Strategy]) -> list[LinkJob]:
        jobs = []
        for strategy, prompt in zip(strategies, self.prompts, strict=False):
            plan = strategy.plan(prompt, self.context.knowledge)
            if plan.forming:
                self._form(plan, prompt)
                plan = strategy.plan(prompt, self.context.knowledge)
            jobs.append(LinkJob(plan, prompt, self.context.resources))
        refusal = self.executor.refusal(jobs[0].plan)
        if refusal is not None:
            raise StrategyError(f"{jobs[0].plan.strategy} cannot be run on this model: {refusal}")
        return jobs

    def _form(self, plan: LinkPlan, prompt: Prompt) -> None:
        artifacts, _ = form_missing(self.executor, prompt, plan, self.context)
        for key, artifact in artifacts.items():
            self.patches[key] = artifact

    def _spent(self, plan: LinkPlan, prompt: Prompt) -> LinkingCost:
        layouts = self.executor.adapter.layouts
        kept: list[Rows] = [
            segment.rows
            for segment, _ in prompt.chunk_segments
            if segment.start > 0 and segment.rows not in prompt.slid_rows
        ]
        whole = sum(layout.features for layout in layouts)
        numbers = sum(selector.budget * whole for selector in plan.selectors)
        if plan.recomputation is not None:
            numbers += (plan.recomputation.rows - plan.recomputation.question_rows) * whole
        for part in plan.ranges:
            rows = sum(max(0, min(part.stop, stop) - max(part.start, start)) for start, stop in kept)
            if part.source is RowSource.COMPUTED and rows and not _looked_at(plan, part.start):
                residual = 0 if part.residual is None else part.residual.width
                numbers += rows * (residual + sum(layout.features for layout in layouts[slice(*part.layers)]))
        cost = plan.cost(layouts, 1)
        held = sum(stop - start for start, stop in kept) * whole
        return LinkingCost(
            (numbers + cost.patch_bytes) / held if held else 0.0,
            cost.rows_computed / prompt.tokens,
        )

    @cached_property
    def _front(self) -> KVTable:
        return front_table(self.executor, self.prompts[0])

    def _scored(self, oracle: Oracle, index: int) -> Tensor:
        if (oracle.kind, index) not in self._scores:
            prompt = self.prompts[index]
            table = self._front if self.shared else front_table(self.executor, prompt)
            self._scores[oracle.kind, index] = oracle.scores(self.executor, prompt, table)
        return self._scores[oracle.kind, index]


def same_front(prompts: Sequence[Prompt]) -> bool:
    """Return whether prompts differ in their last part alone, and that is text in all of them."""
    fronts = [[_identity(segment) for segment in prompt.segments[:-1]] for prompt in prompts]
    return all(front == fronts[0] for front in fronts) and all(
        isinstance(prompt.segments[-1].part, TextPart) for prompt in prompts
    )


def _identity(segment: Segment) -> tuple[object, ...]:
    part = segment.part
    shown = part.token_ids if isinstance(part, TextPart) else (part.chunk.id, part.state)
    return segment.start, segment.position, shown


def plain_ending(plan: LinkPlan, start: int) -> bool:
    """Return whether a plan computes every row from `start` on, in all layers, and none of them twice."""
    return plan.recomputation is None and all(
        part.source is RowSource.COMPUTED and part.layers == (0, plan.layers) and part.residual is None
        for part in plan.ranges
        if part.stop > start
    )


def endings(
    executor: Executor, table: KVTable, prompts: Sequence[Prompt], plans: Sequence[LinkPlan], start: int
) -> list[Tensor]:
    """Return the last logits [vocab] float32 of each prompt.

    Args:
        table: holds the rows before `start`, which all prompts share, and again when this returns.
        plans: of the prompts; `plain_ending` holds for all.
    """
    front, found = table.length, []
    for prompt, plan in zip(prompts, plans, strict=True):
        linked = executor.run(LinkJob(plan.after(start), prompt, reused_rows=start), table=table)
        found.append(linked.logits)
        table.truncate(front)
    return found


def _looked_at(plan: LinkPlan, row: int) -> bool:
    return any(start <= row < stop for selector in plan.selectors for start, stop in selector.candidates)
