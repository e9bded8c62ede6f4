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
    """Rows of every layer, where they were written, and whose rows stood before."""

    layers: list[LayerRows]
    positions: Tensor
    before: list[tuple[int, "Rows"]]


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
    departed: list[Item] = field(default_factory=list)

    def copy(self) -> "PlainWindow":
        return PlainWindow(self.adapter, [self._copied(one) for one in self.items], list(self.departed))

    def _copied(self, item: Item) -> Item:
        return Item(item.number, item.encoded, item.rows)

    def leave(self, item: Item) -> None:
        self.items.remove(item)
        self.departed.append(Item(item.number, item.encoded))

    def recall(self, item: Item, at: int) -> None:
        self.departed.remove(item)
        self.items.insert(at, Item(item.number, item.encoded))

    def unseen(self, index: int) -> bool:
        """Whether an item has something before it that its rows never saw, or saw rows that stand behind it now."""
        rows = self.items[index].rows
        assert rows is not None
        seen = {number for number, _ in rows.before}
        new = any(one.number not in seen for one in self.items[:index])
        behind = [one.rows for one in self.items[index + 1 :]]
        return new or any(held is other for _, held in rows.before for other in behind)

    def ask(self, question: Sequence[int], keep: bool = True) -> tuple[Tensor, int]:
        """Logits behind a question, and the rows that ran."""
        adapter = self.adapter
        ending = adapter.encode_text(torch.tensor(list(question)))
        encoded = [one for item in self.items for one in item.encoded]
        prompt = compose(adapter, [*encoded, ending])
        total = prompt.token_ids.shape[0]
        table = adapter.table(total)
        table.allocate(torch.arange(total), prompt.groups)
        run = torch.ones(total, dtype=torch.bool)
        fresh: list[tuple[int, Item]] = []
        start = 0
        for index, item in enumerate(self.items):
            where = slice(start, start + item.tokens)
            if item.rows is None or self.unseen(index):
                fresh.append((start, item))
            else:
                run[where] = False
                source = PhaseBook(adapter.tables, item.rows.positions)
                target = PhaseBook(adapter.tables, prompt.positions[:, where])
                for layer, layout in enumerate(adapter.layouts):
                    table.write(layer, where, relocate(item.rows.layers[layer], layout, source, target))
            start += item.tokens
        rows = run.nonzero().squeeze(1)
        logits = adapter.logits(adapter.forward(prompt.batch(rows), table))[-1]
        if keep:
            new = {id(item): Rows([], torch.empty(0), []) for _, item in fresh}
            standing = [(one.number, new.get(id(one), one.rows)) for one in self.items]
            for start, item in fresh:
                made, stop = new[id(item)], start + item.tokens
                read = (table.read(layer, start, stop) for layer in range(len(adapter.layouts)))
                made.layers = [LayerRows(one.keys.clone(), one.values.clone()) for one in read]
                made.positions = prompt.positions[:, start:stop].clone()
                made.before = [(number, held) for number, held in standing[: self.items.index(item)] if held]
            for _, item in fresh:
                item.rows = new[id(item)]
        return logits, len(rows)
