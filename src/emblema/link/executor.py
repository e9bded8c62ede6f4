"""The executor over transformers: carries any link plan out and leaves a linked KV table with the last logits."""

import time
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.layout import LayerRows
from emblema.link.assemble import Resources, TakenRows, relocated
from emblema.link.plan import LinkPlan, RowRange, Selector, Source
from emblema.link.prompt import Prompt, Rows, TextPart
from emblema.link.selectors import Narrowing, candidate_rows
from emblema.link.trace import Trace
from emblema.models.adapter import Adapter, RowBatch
from emblema.models.table import KVTable


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
    trace: Trace


class Executor:
    """Carries plans out on one adapter. Holds no state between calls."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def refusal(self, plan: LinkPlan) -> str | None:
        """Why this executor cannot carry a plan out, or None if it can."""
        computed = plan.sources() == 0
        begun = numpy.zeros_like(computed)
        for part in plan.ranges:
            if part.residual is not None:
                begun[part.layers[0], part.start : part.stop] = True
        late = (computed[1:] & ~computed[:-1] & ~begun[1:]).any(axis=0)
        if late.any():
            return f"row {int(late.argmax())} is computed above a layer that it skipped; no residual stream is kept"
        if not self.adapter.supports_layerwise and (plan.selectors or (computed != computed[0]).any()):
            return f"{self.adapter.family} cannot narrow its rows between layers"
        return None

    @torch.inference_mode()
    def run(
        self,
        plan: LinkPlan,
        prompt: Prompt,
        resources: Resources,
        reserve: int = 0,
        *,
        table: KVTable | None = None,
        reused_rows: int = 0,
    ) -> LinkedTable:
        """Carry a plan out. Each layer's taken rows are written when its forward comes to them.

        Args:
            plan: the plan; validated here.
            prompt: the prompt that it was made for.
            resources: what the plan names.
            reserve: rows to keep room for after the prompt, for decoding.
            table: a linked table to go on with, whose rows are the front of this prompt; a new one if left out.
            reused_rows: how many rows at the front of the prompt that table holds; those that have left it stay away.
                The plan's ranges for them are ignored.

        Raises:
            PlanError: the plan breaks an invariant or cannot be carried out here.
            LoadError: a chunk's rows under way did not come; nothing is left of the forward, and a table that was
                handed in is as it was.
        """
        plan.validate()
        reason = self.refusal(plan)
        if reason is not None:
            raise PlanError(reason)
        began = time.perf_counter()
        run = _Run(self.adapter, plan, prompt, resources, reserve, table, reused_rows)
        try:
            hidden, selected, row_layers = run.compute()
            run.table.settle()
        except BaseException:
            run.abandon()
            raise
        logits = self.adapter.logits(hidden[-1:])[0]
        run.leave()
        codes = plan.sources()[:, reused_rows:]
        computed = int((codes == 0).any(axis=0).sum())
        absent = int((codes == 3).all(axis=0).sum())
        trace = Trace(
            computed=computed,
            cached=plan.rows - reused_rows - computed - absent,
            patched=int(((codes == 2).any(axis=0) & ~(codes == 0).any(axis=0)).sum()),
            absent=absent,
            row_layers=row_layers,
            bytes_read=run.assembly.bytes_read + run.compared_bytes,
            patch_bytes=run.assembly.patch_bytes,
            selected=selected,
            seconds=time.perf_counter() - began,
            residual_bytes=run.residual_bytes,
        )
        return LinkedTable(run.table, run.table.length, logits, trace)


class _Run:
    """One plan under way: the table and the map from logical rows to physical slots (-1: no slot)."""

    def __init__(
        self,
        adapter: Adapter,
        plan: LinkPlan,
        prompt: Prompt,
        resources: Resources,
        reserve: int,
        table: KVTable | None,
        reused_rows: int,
    ) -> None:
        self.adapter, self.plan, self.prompt, self.resources, self.reused_rows = (
            adapter,
            plan,
            prompt,
            resources,
            reused_rows,
        )
        present = torch.ones(plan.rows, dtype=torch.bool)
        present[:reused_rows] = False
        for part in plan.ranges:
            if part.source is Source.ABSENT:
                if part.layers != (0, plan.layers):
                    raise PlanError(f"rows {part.start} to {part.stop} are absent in some layers only")
                present[part.start : part.stop] = False
        rows = present.nonzero().squeeze(1)
        self.table = table or KVTable(adapter.layouts, len(rows) + reserve, adapter.dtype, adapter.device)
        self.before = self.table.length
        slots = self.table.allocate(rows.to(adapter.device), prompt.groups[rows].to(adapter.device))
        self.slots = torch.full((plan.rows,), -1, dtype=torch.int64)
        self.slots[self.table.rows[: self.before].cpu()] = torch.arange(self.before)
        self.slots[rows] = torch.arange(slots.start, slots.stop)
        try:
            self.assembly = TakenRows(adapter, self.table, self.slots, plan, prompt, resources, reused_rows)
        except BaseException:
            self.abandon()
            raise
        self.table.fill_with(self.assembly.write)
        self.compared_bytes = self.residual_bytes = 0

    def abandon(self) -> None:
        """Leave a table that was handed in as it was."""
        self.table.forget_fill()
        self.table.truncate(self.before)

    def compute(self) -> tuple[Tensor, tuple[tuple[int, ...], ...], int]:
        """Run every stage; returns the last stage's hidden rows, the selected rows and the row-layers computed."""
        ranges = [
            part for part in self.plan.ranges if part.source is Source.COMPUTED and part.start >= self.reused_rows
        ]
        hidden = torch.empty(0)
        row_layers = 0
        selected: tuple[tuple[int, ...], ...] = ()
        for stage in sorted({part.stage for part in ranges}):
            current = [part for part in ranges if part.stage == stage]
            pending = [part for part in ranges if part.stage > stage]
            start = [part for part in current if part.residual is None]
            joining = {layer: self._joining(parts, pending) for layer, parts in _begun(current).items()}
            rows = _rows(start)
            batch = self._batch(rows, start, pending)
            if all(part.layers == (0, self.plan.layers) for part in current):
                hidden = self.adapter.forward(batch, self.table)
                row_layers += len(rows) * self.plan.layers
                continue
            later = {layer: _rows(parts) for layer, parts in _begun(current).items()}
            narrowing = Narrowing(self.plan, rows, later, self.slots, self.table, self._held(rows))
            hidden = self.adapter.forward(batch, self.table, narrowing, joining)
            row_layers += narrowing.row_layers
            selected += narrowing.selected
        return hidden, selected, row_layers

    def _held(self, rows: Tensor) -> dict[Selector, LayerRows]:
        """What the candidates of each selector among the rows would be taken as, at the selector's own layer."""
        held = {}
        for selector in self.plan.selectors:
            candidates = candidate_rows(selector)
            if bool(torch.isin(candidates, rows).all()):
                taken = relocated(self.adapter, self.plan, self.prompt, self.resources, selector.layer, candidates)
                held[selector] = taken
                self.compared_bytes += taken.bytes
        return held

    def _joining(self, parts: list[RowRange], pending: list[RowRange]) -> RowBatch:
        """The rows that begin at one layer, from their chunks' kept residual streams."""
        batch = self._batch(_rows(parts), parts, pending)
        pieces = []
        for part in sorted(parts, key=lambda one: one.start):
            use = part.residual
            kept = None if use is None else self.resources.residual_rows(use.key)
            if use is None or kept is None:
                raise PlanError(f"rows {part.start} to {part.stop} name a residual stream that was not handed over")
            pieces.append(kept[use.offset : use.offset + part.rows].to(batch.embeds))
        embeds = torch.cat(pieces)
        self.residual_bytes += embeds.nbytes
        return replace(batch, embeds=embeds)

    def leave(self) -> None:
        """Drop the rows that leave the table."""
        if not self.plan.leaving:
            return
        gone = torch.zeros(self.plan.rows, dtype=torch.bool)
        for start, stop in self.plan.leaving:
            gone[start:stop] = True
        gone &= self.slots >= 0
        if gone.any():
            keep = self.slots[(~gone) & (self.slots >= 0)]
            self.table.drop(keep.to(self.adapter.device))

    def _batch(self, rows: Tensor, current: list[RowRange], pending: list[RowRange]) -> RowBatch:
        adapter, prompt = self.adapter, self.prompt
        embeds, visual, deepstack = embed_rows(adapter, prompt, rows)
        hidden_from = self._hidden(rows, current, pending)
        return RowBatch(
            embeds=embeds,
            positions=prompt.positions[:, rows].to(adapter.device),
            slots=self.slots[rows].to(adapter.device),
            visual=visual,
            deepstack=deepstack,
            hidden_from=None if hidden_from is None else hidden_from.to(adapter.device),
        )

    def _hidden(self, rows: Tensor, current: list[RowRange], pending: list[RowRange]) -> Tensor | None:
        if not pending and not any(part.hidden for part in current):
            return None
        hidden = torch.zeros(len(rows), self.plan.rows, dtype=torch.bool)
        for part in pending:
            hidden[:, part.start : part.stop] = True
        for part in current:
            lines = (rows >= part.start) & (rows < part.stop)
            for start, stop in part.hidden:
                hidden[lines, start:stop] = True
        return hidden[:, self.slots >= 0]


def embed_rows(adapter: Adapter, prompt: Prompt, rows: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """What the decoder is fed for some rows: embeddings [rows, hidden], visual flags [rows], deepstack per layer."""
    pieces: list[Tensor] = []
    flags: list[Tensor] = []
    deepstack: list[tuple[Tensor, ...]] = []
    if len(rows) == 0:
        nothing = torch.empty(0, adapter.hidden_size, dtype=adapter.dtype, device=adapter.device)
        return nothing, torch.zeros(0, dtype=torch.bool, device=adapter.device), ()
    for segment in prompt.segments:
        own = rows[(rows >= segment.start) & (rows < segment.stop)] - segment.start
        if len(own) == 0:
            continue
        own = own.to(adapter.device)
        part = segment.part
        if isinstance(part, TextPart):
            ids = torch.tensor(part.token_ids, device=adapter.device).index_select(0, own)
            pieces.append(adapter.embed(ids))
            flags.append(torch.zeros(len(own), dtype=torch.bool, device=adapter.device))
            continue
        encoded = part.chunk.encoded
        pieces.append(encoded.embeds.to(adapter.device).index_select(0, own))
        seen = encoded.visual.to(adapter.device)
        flags.append(seen.index_select(0, own))
        if encoded.deepstack:
            order = seen.cumsum(0) - 1
            chosen = order.index_select(0, own)[flags[-1]]
            deepstack.append(tuple(layer.to(adapter.device).index_select(0, chosen) for layer in encoded.deepstack))
    depth = max((len(layers) for layers in deepstack), default=0)
    features = tuple(torch.cat([layers[index] for layers in deepstack]) for index in range(depth))
    return torch.cat(pieces), torch.cat(flags), features


def _rows(ranges: list[RowRange]) -> Tensor:
    spans: set[Rows] = {(part.start, part.stop) for part in ranges}
    rows: Tensor = torch.cat([torch.arange(0), *(torch.arange(start, stop) for start, stop in spans)]).unique()
    return rows


def _begun(ranges: list[RowRange]) -> dict[int, list[RowRange]]:
    """The ranges that begin from a residual stream, by the layer that they begin at."""
    begun: dict[int, list[RowRange]] = {}
    for part in ranges:
        if part.residual is not None:
            begun.setdefault(part.layers[0], []).append(part)
    return begun
