"""A window written down plainly: rows as first written, turned to where they stand, and one forward of the rest."""

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
    """Rows of every layer, where they were written, whose rows stood before, and of repaired ones those before."""

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
        return sum(one.tokens for one in self.encoded)


@dataclass
class PlainWindow:
    """Items in order; `ask` gives logits and counts the rows that it ran."""

    adapter: Adapter
    items: list[Item] = field(default_factory=list)
    evicted: list[Item] = field(default_factory=list)

    def copy(self) -> "PlainWindow":
        return PlainWindow(self.adapter, [self._copied(one) for one in self.items], list(self.evicted))

    def _copied(self, item: Item) -> Item:
        return Item(item.number, item.encoded, item.rows)

    def leave(self, item: Item) -> None:
        self.items.remove(item)
        self.evicted.append(Item(item.number, item.encoded))

    def recall(self, item: Item, at: int) -> None:
        self.evicted.remove(item)
        self.items.insert(at, Item(item.number, item.encoded))

    def unseen(self, index: int) -> bool:
        """Whether an item has something before it that its rows never saw, or saw rows that stand behind it now."""
        rows = self.items[index].rows
        assert rows is not None
        seen = {number for number, _ in rows.before}
        new = any(one.number not in seen for one in self.items[:index])
        behind = [one.rows for one in self.items[index + 1 :]]
        return new or any(held is other for _, held in rows.before for other in behind)

    def stale(self, index: int) -> bool:
        """Whether an item stands behind anything else than its rows were written behind."""
        rows = self.items[index].rows
        if rows is None:
            return False
        now = [(one.number, id(one.rows)) for one in self.items[:index]]
        return now != [(number, id(held)) for number, held in rows.before]

    def ask(self, question: Sequence[int], keep: bool = True) -> tuple[Tensor, int]:
        """Logits behind a question, and the rows that ran."""
        anew = [item for index, item in enumerate(self.items) if item.rows is None or self.unseen(index)]
        ending = self.adapter.encode_text(torch.tensor(list(question)))
        logits, ran, made = self._forward(self.items, anew, [ending])
        for item in anew if keep else ():
            item.rows = made[item.number]
        return logits, ran

    def repair(self, wanted: Sequence[Item]) -> list[Item]:
        """Rows behind what stands there now for those of some items that are stale; they keep their old ones too."""
        chosen = [one for index, one in enumerate(self.items) if one in wanted and self.stale(index)]
        if chosen:
            front = self.items[: self.items.index(chosen[-1]) + 1]
            anew = [one for one in front if one.rows is None or one in chosen]
            made = self._forward(front, anew, [])[2]
            for item in anew:
                made[item.number].old = item.rows
                item.rows = made[item.number]
        return chosen

    def _forward(
        self, items: Sequence[Item], anew: Sequence[Item], ending: Sequence[Encoded]
    ) -> tuple[Tensor, int, dict[int, Rows]]:
        """Some items and what stands at the end computed, all others taken; their rows by number."""
        adapter = self.adapter
        prompt = compose(adapter, [*(one for item in items for one in item.encoded), *ending])
        total = prompt.token_ids.shape[0]
        table = adapter.table(total)
        table.allocate(torch.arange(total), prompt.groups)
        run = torch.ones(total, dtype=torch.bool)
        places: dict[int, slice] = {}
        start = 0
        for item in items:
            where = slice(start, start + item.tokens)
            places[item.number], start = where, start + item.tokens
            if item not in anew:
                assert item.rows is not None
                run[where] = False
                source = PhaseBook(adapter.tables, item.rows.positions)
                target = PhaseBook(adapter.tables, prompt.positions[:, where])
                for layer, layout in enumerate(adapter.layouts):
                    table.write(layer, where, relocate(item.rows.layers[layer], layout, source, target))
        rows = run.nonzero().squeeze(1)
        logits = adapter.logits(adapter.forward(prompt.batch(rows), table))[-1]
        made = {item.number: Rows([], torch.empty(0), []) for item in anew}
        standing = [(one.number, made.get(one.number, one.rows)) for one in items]
        for item in anew:
            new, where = made[item.number], places[item.number]
            read = (table.read(layer, where.start, where.stop) for layer in range(len(adapter.layouts)))
            new.layers = [LayerRows(one.keys.clone(), one.values.clone()) for one in read]
            new.positions = prompt.positions[:, where].clone()
            new.before = [(number, held) for number, held in standing[: list(items).index(item)] if held]
        return logits, len(rows), made
