"""The executor over transformers: carries any link plan out and leaves a linked KV table with the last logits."""

import time
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.device import wait_for
from emblema.kv.layout import LayerRows
from emblema.link.mapped import cut_map
from emblema.link.plan import ChunkOrigin, LinkPlan, Recomputation, RowRange, RowSource, Selector
from emblema.link.prompt import Prompt, TextPart
from emblema.link.second_pass import chosen_rows, spanned_rows
from emblema.link.taken_rows import LinkJob, TakenRows, relocated
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.noting import QuestionAttention, noting_attention
from emblema.models.tables import KVTable


@dataclass(frozen=True, slots=True)
class LinkTrace:
    """Counts of one executed plan.

    Attributes:
        computed: rows computed in at least one layer.
        cached: rows taken in every layer.
        patched: cached rows with a patch.
        absent: rows that the prompt names and the table never held.
        row_layers: rows computed, summed over layers.
        bytes_read: bytes of KV read from chunks and kept prefixes, patches aside.
        patch_bytes: bytes of patches added.
        selected: per selector, the rows that it chose to go on computing; of a second pass, the rows chosen for it.
        seconds: wall time of assembling and of the forwards.
        repeated: rows of the question that ran in a first pass too, for what they attend.
    """

    computed: int
    cached: int
    patched: int
    absent: int
    row_layers: int
    bytes_read: int
    patch_bytes: int
    selected: tuple[tuple[int, ...], ...]
    seconds: float
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class LinkedTable:
    """The outcome of a plan.

    Attributes:
        table: the linked KV table; decoding appends to it.
        rows: rows that the prompt has in it.
        logits: of the prompt's last row, [vocab] float32.
        trace: what was done.
    """

    table: KVTable
    rows: int
    logits: Tensor
    trace: LinkTrace


class Executor:
    """Carries plans out on one adapter. Holds no state between calls."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def refusal(self, plan: LinkPlan, prompt: Prompt) -> str | None:
        """Return why this executor cannot carry a plan out on a prompt, or None if it can."""
        computed = plan.sources() == 0
        late = (computed[1:] & ~computed[:-1]).any(axis=0)
        if late.any():
            return f"row {int(late.argmax())} is computed above a layer that it skips"
        narrows = any(part.layers != (0, plan.layers) for part in plan.ranges)
        if self.adapter.keeps_states and narrows and any(part.hidden for part in plan.ranges):
            return "a layer keeps a state of all rows before: rows are not hidden while others leave between layers"
        return cut_map(plan, prompt, self.adapter.layouts)

    @torch.inference_mode()
    def run(self, job: LinkJob, *, reserve: int = 0, table: KVTable | None = None) -> LinkedTable:
        """Carry a plan out. Each layer's taken rows are written when its forward comes to them.

        Args:
            job: the plan, its prompt and its resources. The plan is validated here; its ranges for reused rows are
                ignored.
            reserve: rows to keep room for after the prompt, for decoding.
            table: a linked table to continue, which holds the reused rows (some may have left it); a new one if None.

        Raises:
            PlanError: the plan breaks an invariant or cannot be carried out here.
            LoadError: a chunk's rows that were being loaded did not come. Nothing is left of the forward, and a table
                that was handed in is as it was.
        """
        plan = job.plan
        plan.validate()
        reason = self.refusal(plan, job.prompt)
        if reason is not None:
            raise PlanError(reason)
        began = time.perf_counter()
        run = _PlanRun(self.adapter, job, reserve, table)
        try:
            hidden = run.compute()
            run.table.settle()
        except BaseException:
            run.abandon()
            raise
        logits = self.adapter.logits(hidden[-1:])[0]
        wait_for(self.adapter.device)
        run.drop_leaving()
        codes = plan.sources()
        if plan.recomputation is not None:
            codes = codes.copy()
            codes[:, list(run.selected[-1])] = 0
        codes = codes[:, job.reused_rows :]
        computed = int((codes == 0).any(axis=0).sum())
        absent = int((codes == 3).all(axis=0).sum())
        trace = LinkTrace(
            computed=computed,
            cached=plan.rows - job.reused_rows - computed - absent,
            patched=int(((codes == 2).any(axis=0) & ~(codes == 0).any(axis=0)).sum()),
            absent=absent,
            row_layers=run.row_layers,
            bytes_read=run.taken.bytes_read + run.compared_bytes,
            patch_bytes=run.taken.patch_bytes,
            selected=run.selected,
            seconds=time.perf_counter() - began,
            repeated=0 if plan.recomputation is None else plan.recomputation.question_rows,
        )
        return LinkedTable(run.table, run.table.length, logits, trace)


class _PlanRun:
    """One plan being carried out: the table, and the map from logical rows to physical slots (-1: no slot).

    Attributes:
        row_layers: rows computed so far, summed over layers.
        selected: per selector, the rows that it chose.
        compared_bytes: bytes of KV read for selectors to compare with.
    """

    def __init__(self, adapter: Adapter, job: LinkJob, reserve: int, table: KVTable | None) -> None:
        self.adapter, self.job, self.plan = adapter, job, job.plan
        self.row_layers = self.compared_bytes = 0
        self.selected: tuple[tuple[int, ...], ...] = ()
        present = torch.ones(self.plan.rows, dtype=torch.bool)
        present[: job.reused_rows] = False
        for part in self.plan.ranges:
            if part.source is RowSource.ABSENT:
                if part.layers != (0, self.plan.layers):
                    raise PlanError(f"rows {part.start} to {part.stop} are absent in some layers only")
                present[part.start : part.stop] = False
        rows = present.nonzero().squeeze(1)
        self.table = table or adapter.table(len(rows) + reserve)
        self.before = self.table.length
        slots = self.table.allocate(rows.to(adapter.device), job.prompt.groups[rows].to(adapter.device))
        self.slots = torch.full((self.plan.rows,), -1, dtype=torch.int64)
        if self.before:
            self.slots[self.table.rows[: self.before].cpu()] = torch.arange(self.before)
        self.slots[rows] = torch.arange(slots.start, slots.stop)
        try:
            self.taken = TakenRows(adapter, self.table, self.slots, job)
        except BaseException:
            self.abandon()
            raise
        self.table.fill_with(self.taken.write)

    def abandon(self) -> None:
        """Leave a table that was handed in as it was."""
        self.table.forget_fill()
        self.table.truncate(self.before)

    def compute(self) -> Tensor:
        """Run the rows to compute; return the last row's hidden state, perhaps behind others'."""
        ranges = [part for part in self.plan.ranges if part.source is RowSource.COMPUTED]
        ranges = [part for part in ranges if part.start >= self.job.reused_rows]
        rows = spanned_rows([(part.start, part.stop) for part in ranges])
        batch = self._batch(rows, ranges)
        if any(part.layers != (0, self.plan.layers) for part in ranges):
            narrowing = _Narrowing(self, rows)
            hidden = self.adapter.forward(batch, self.table, narrowing)
            self.row_layers, self.selected = narrowing.row_layers, narrowing.selected
            return hidden
        if self.plan.recomputation is not None:
            return self._twice(self.plan.recomputation, ranges, batch, rows)
        self.row_layers = len(rows) * self.plan.layers
        return self.adapter.forward(batch, self.table, wanted=1)

    def _twice(self, again: Recomputation, ranges: list[RowRange], batch: RowBatch, rows: Tensor) -> Tensor:
        """Run the rows, note what the question attends, and run it again with the rows chosen by that."""
        noted = (rows >= again.question[0]).nonzero().squeeze(1)
        attention = QuestionAttention(len(noted), self.table.length, self.adapter.device)
        with noting_attention(self.adapter, noted, attention.add):
            self.adapter.forward(batch, self.table, wanted=0)
        self.table.settle()
        slots = self.slots[spanned_rows(again.candidates)].to(self.adapter.device)
        chosen = chosen_rows(again, attention.readings.scores(slots).cpu())
        self.selected = (tuple(chosen.tolist()),)
        self.row_layers = (len(rows) + len(chosen) + len(noted)) * self.plan.layers
        # What is computed again is no longer stood for by maps of a state.
        self.table.forget_maps(self.slots[chosen])
        # The question follows all candidates.
        rows = torch.cat((chosen, rows[noted]))
        return self.adapter.forward(self._batch(rows, ranges), self.table, wanted=1)

    def drop_leaving(self) -> None:
        """Drop the rows that leave the table."""
        gone = torch.zeros(self.plan.rows, dtype=torch.bool)
        for start, stop in self.plan.leaving:
            gone[start:stop] = True
        held = self.slots >= 0
        if (gone & held).any():
            self.table.drop(self.slots[~gone & held].to(self.adapter.device))

    def would_take(self, selector: Selector) -> LayerRows:
        """Return what the candidates of a selector would be taken as, at its layer."""
        held = relocated(self.adapter, self.job, selector.layer, spanned_rows(selector.candidates))
        self.compared_bytes += held.bytes
        return held

    def _batch(self, rows: Tensor, ranges: list[RowRange]) -> RowBatch:
        adapter, prompt = self.adapter, self.job.prompt
        embeds, visual, deepstack = embed_rows(adapter, prompt, rows, self.plan)
        hidden_from = self._hidden(rows, ranges)
        return RowBatch(
            embeds=embeds,
            positions=prompt.positions[:, rows].to(adapter.device),
            slots=self.slots[rows].to(adapter.device),
            visual=visual,
            deepstack=deepstack,
            hidden_from=None if hidden_from is None else hidden_from.to(adapter.device),
            token_ids=prompt.token_ids[rows],
        )

    def _hidden(self, rows: Tensor, ranges: list[RowRange]) -> Tensor | None:
        if not any(part.hidden for part in ranges):
            return None
        hidden = torch.zeros(len(rows), self.plan.rows, dtype=torch.bool)
        for part in ranges:
            lines = (rows >= part.start) & (rows < part.stop)
            for start, stop in part.hidden:
                hidden[lines, start:stop] = True
        return hidden[:, self.slots >= 0]


class _Narrowing:
    """Which rows of a batch go on after each layer: those that the plan computes, and those a selector chose.

    The adapter calls it after every layer. Rows of the last layer that keeps any go on to the end.

    Args:
        run: the run.
        rows: logical rows of the batch, in order.
    """

    def __init__(self, run: _PlanRun, rows: Tensor) -> None:
        self.selected: tuple[tuple[int, ...], ...] = ()
        self.row_layers = len(rows)
        self._slots, self._table, self._current = run.slots, run.table, rows
        self._held = {selector: run.would_take(selector) for selector in run.plan.selectors}
        self._computed = torch.from_numpy(run.plan.sources() == 0)
        self._chosen = torch.zeros(run.plan.rows, dtype=torch.bool)

    def __call__(self, layer: int) -> Tensor | None:
        """Return the rows of the batch [n] that go on after a layer; None if all do."""
        if layer + 1 >= len(self._computed):
            return None
        for selector in self._held:
            if selector.layer == layer:
                self._choose(selector)
        keep = (self._computed[layer + 1] | self._chosen)[self._current]
        self._current = self._current[keep]
        self.row_layers += len(self._current)
        return None if bool(keep.all()) else keep.nonzero().squeeze(1)

    def _choose(self, selector: Selector) -> None:
        candidates = spanned_rows(selector.candidates)
        rows = self._table.read(selector.layer, 0, self._table.length)
        fresh = rows.select(self._slots[candidates].to(rows.keys.device))
        scores = deviation(fresh, self._held[selector].to(fresh.keys.device)).cpu()
        chosen = candidates[scores.topk(min(selector.budget, len(candidates))).indices].sort().values
        self._chosen[chosen] = True
        self.selected += (tuple(chosen.tolist()),)


def deviation(fresh: LayerRows, held: LayerRows) -> Tensor:
    """Return how far computing rows moved their keys and values (CacheBlend's measure), [rows] float32.

    Args:
        fresh: rows as just computed.
        held: the same rows as they would be taken.
    """
    keys = (fresh.keys.float() - held.keys.float()).square().sum(dim=(0, 2))
    deviations: Tensor = keys + (fresh.values.float() - held.values.float()).square().sum(dim=(0, 2))
    return deviations


def embed_rows(
    adapter: Adapter, prompt: Prompt, rows: Tensor, plan: LinkPlan | None = None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return what the decoder is fed for rows, which are in order.

    That is embeddings [rows, hidden], visual flags [rows], deepstack per layer.

    Args:
        adapter: the model.
        prompt: the prompt.
        rows: of the prompt, [rows] int64.
        plan: by which the other rows are made; None computes all.
    """
    pieces: list[Tensor] = []
    flags: list[Tensor] = []
    deepstack: list[tuple[Tensor, ...]] = []
    if len(rows) == 0:
        nothing = torch.empty(0, adapter.hidden_size, dtype=adapter.dtype, device=adapter.device)
        return nothing, torch.zeros(0, dtype=torch.bool, device=adapter.device), ()
    order = rows.tolist()
    for segment in prompt.segments:
        first, last = bisect_left(order, segment.start), bisect_left(order, segment.stop)
        if first == last:
            continue
        own = rows[first:last] - segment.start
        part = segment.part
        if isinstance(part, TextPart):
            pieces.append(adapter.embed(torch.tensor(part.token_ids)[own]))
            flags.append(torch.zeros(len(own), dtype=torch.bool))
            continue
        encoded = part.chunk.encoded
        changed = part.changed
        if changed is not None and changed.encoded is not None and plan is not None:
            taken = any(
                isinstance(rows.origin, ChunkOrigin) and rows.origin.chunk == changed.base.id
                for rows in plan.ranges
                if segment.start <= rows.start < segment.stop
            )
            encoded = changed.encoded if taken else encoded
        pieces.append(encoded.embeds.to(adapter.device).index_select(0, own.to(adapter.device)))
        flags.append(encoded.visual[own])
        if encoded.deepstack:
            places = encoded.visual.cumsum(0) - 1
            chosen = places[own][flags[-1]].to(adapter.device)
            deepstack.append(tuple(layer.to(adapter.device).index_select(0, chosen) for layer in encoded.deepstack))
    depth = max((len(layers) for layers in deepstack), default=0)
    features = tuple(torch.cat([layers[index] for layers in deepstack]) for index in range(depth))
    return torch.cat(pieces), torch.cat(flags).to(adapter.device), features
