"""A window written down plainly: rows as first written, turned to their place, and one forward of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.kv.chunk import Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import PhaseBook, relocate
from emblema.models.adapter import Adapter
from tests.families import compose


@dataclass(eq=False)
class Rows:
    """Rows of every layer: their positions, the rows before them when they were written, and rows before a repair."""

    layers: list[LayerRows]
    positions: Tensor
    before: list[tuple[int, "Rows"]]
    old: "Rows | None" = None

    @property
    def first(self) -> "Rows":
        """As first written."""
        return self if self.old is None else self.old.first


@dataclass(eq=False)
class Item:
    """One part: what it is fed, and its rows once there are any."""

    number: int
    encoded: list[Encoded]
    rows: Rows | None = None

    @property
    def tokens(self) -> int:
        return sum(encoded.tokens for encoded in self.encoded)


@dataclass
class PlainWindow:
    """Items in order; `ask` gives logits and counts the rows that it ran."""

    adapter: Adapter
    items: list[Item] = field(default_factory=list)
    evicted: list[Item] = field(default_factory=list)

    def copy(self) -> "PlainWindow":
        return PlainWindow(self.adapter, [self._copied(item) for item in self.items], list(self.evicted))

    def _copied(self, item: Item) -> Item:
        return Item(item.number, item.encoded, item.rows)

    def leave(self, item: Item) -> None:
        self.items.remove(item)
        self.evicted.append(Item(item.number, item.encoded))

    def recall(self, item: Item, at: int) -> None:
        self.evicted.remove(item)
        self.items.insert(at, Item(item.number, item.encoded))

    def unseen(self, index: int) -> bool:
        """Whether an item has something before it that its rows never saw, or saw rows that are after it now."""
        rows = self.items[index].rows
        assert rows is not None
        seen = {number for number, _ in rows.before}
        new = any(item.number not in seen for item in self.items[:index])
        after = [item.rows for item in self.items[index + 1 :]]
        return new or any(held is other for _, held in rows.before for other in after)

    def stale(self, index: int) -> bool:
        """Whether anything before an item differs from what its rows were written after."""
        rows = self.items[index].rows
        if rows is None:
            return False
        now = [(item.number, id(item.rows)) for item in self.items[:index]]
        return now != [(number, id(held)) for number, held in rows.before]

    def ask(self, question: Sequence[int], keep: bool = True) -> tuple[Tensor, int]:
        """Logits after a question, and the rows that ran."""
        again = [item for index, item in enumerate(self.items) if item.rows is None or self.unseen(index)]
        ending = self.adapter.encode_text(torch.tensor(list(question)))
        logits, ran, made = self._forward(self.items, again, [ending])
        for item in again if keep else ():
            item.rows = made[item.number]
        return logits, ran

    def repair(self, wanted: Sequence[Item]) -> list[Item]:
        """Compute stale items again in their place; they keep their old rows too."""
        chosen = [item for index, item in enumerate(self.items) if item in wanted and self.stale(index)]
        if chosen:
            front = self.items[: self.items.index(chosen[-1]) + 1]
            again = [item for item in front if item.rows is None or item in chosen]
            made = self._forward(front, again, [])[2]
            for item in again:
                made[item.number].old = item.rows
                item.rows = made[item.number]
        return chosen

    def _forward(
        self, items: Sequence[Item], again: Sequence[Item], ending: Sequence[Encoded]
    ) -> tuple[Tensor, int, dict[int, Rows]]:
        """Compute some items and the ending, take all others; return the computed rows by number."""
        adapter = self.adapter
        prompt = compose(adapter, [*(encoded for item in items for encoded in item.encoded), *ending])
        total = prompt.token_ids.shape[0]
        table = adapter.table(total)
        table.allocate(torch.arange(total), prompt.groups)
        run = torch.ones(total, dtype=torch.bool)
        places: dict[int, slice] = {}
        start = 0
        for item in items:
            where = slice(start, start + item.tokens)
            places[item.number], start = where, start + item.tokens
            if item not in again:
                assert item.rows is not None
                run[where] = False
                source = PhaseBook(adapter.tables, item.rows.positions)
                target = PhaseBook(adapter.tables, prompt.positions[:, where])
                for layer, layout in enumerate(adapter.layouts):
                    table.write(layer, where, relocate(item.rows.layers[layer], layout, source, target))
        rows = run.nonzero().squeeze(1)
        logits = adapter.logits(adapter.forward(prompt.batch(rows), table))[-1]
        made = {item.number: Rows([], torch.empty(0), []) for item in again}
        rows_now = [(item.number, made.get(item.number, item.rows)) for item in items]
        for item in again:
            new, where = made[item.number], places[item.number]
            read = (table.read(layer, where.start, where.stop) for layer in range(len(adapter.layouts)))
            new.layers = [LayerRows(layer.keys.clone(), layer.values.clone()) for layer in read]
            new.positions = prompt.positions[:, where].clone()
            new.before = [(number, held) for number, held in rows_now[: list(items).index(item)] if held]
        return logits, len(rows), made
