"""Choices made while a forward runs: after a layer, only a fixed budget of rows goes on."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.layout import LayerRows
from emblema.link.plan import LinkPlan, Selector
from emblema.models.table import KVTable


class Rule(Protocol):
    """Scores candidate rows [rows], the highest go on; `fresh` was just computed, `held` is what would be taken."""

    def __call__(self, fresh: LayerRows, held: LayerRows) -> Tensor: ...


def deviation(fresh: LayerRows, held: LayerRows) -> Tensor:
    """How far computing a row moved its keys and values (CacheBlend's measure), [rows] float32."""
    keys = (fresh.keys.float() - held.keys.float()).square().sum(dim=(0, 2))
    deviations: Tensor = keys + (fresh.values.float() - held.values.float()).square().sum(dim=(0, 2))
    return deviations


RULES: Mapping[str, Rule] = {"deviation": deviation}


def candidate_rows(selector: Selector) -> Tensor:
    """Logical rows that a selector chooses from, in order.

    Raises:
        PlanError: the selector's rule is unknown.
    """
    if selector.rule not in RULES:
        raise PlanError(f"unknown selector rule {selector.rule!r}: choose one of {', '.join(RULES)}")
    rows: Tensor = torch.cat([torch.arange(start, stop) for start, stop in selector.candidates]).unique()
    return rows


class Narrowing:
    """Which rows of a stage's batch go on after each layer: those that the plan computes, and those a selector chose.

    The adapter calls it after every layer.

    Args:
        plan: the plan.
        rows: logical rows of the batch, in order.
        joining: by layer, logical rows that join the batch there.
        slots: [plan rows] physical slots.
        table: the table under way; at the selector's layer it holds the fresh rows when called.
        held: per selector, the candidates' relocated rows of its layer.
    """

    def __init__(
        self,
        plan: LinkPlan,
        rows: Tensor,
        joining: Mapping[int, Tensor],
        slots: Tensor,
        table: KVTable,
        held: Mapping[Selector, LayerRows],
    ) -> None:
        self.slots, self.table, self.held, self.joining = slots, table, held, joining
        self.current = rows
        self.selected: tuple[tuple[int, ...], ...] = ()
        self.row_layers = len(rows)
        self._computed = torch.from_numpy(plan.sources() == 0)
        self._chosen = torch.zeros(plan.rows, dtype=torch.bool)

    def __call__(self, layer: int) -> Tensor | None:
        if layer + 1 == len(self._computed):
            return None
        for selector in self.held:
            if selector.layer == layer:
                self._choose(selector)
        keep = (self._computed[layer + 1] | self._chosen)[self.current]
        self.current = self.current[keep]
        if layer + 1 in self.joining:
            self.current = torch.cat((self.current, self.joining[layer + 1])).sort().values
        self.row_layers += len(self.current)
        return None if bool(keep.all()) else keep.nonzero().squeeze(1)

    def _choose(self, selector: Selector) -> None:
        candidates = candidate_rows(selector)
        where = self.slots[candidates].to(self.table.rows.device)
        fresh = self.table.read(selector.layer, 0, self.table.length).select(where)
        scores = RULES[selector.rule](fresh, self.held[selector]).cpu()
        chosen = candidates[scores.topk(min(selector.budget, len(candidates))).indices].sort().values
        self._chosen[chosen] = True
        self.selected += (tuple(chosen.tolist()),)
