"""Rows to run through the decoder."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows to run through the decoder, in the order of their places in the prompt.

    Attributes:
        embeds: [rows, hidden].
        positions: [axes, rows] int64.
        slots: [rows] int64, the table's slots they are written to.
        visual: [rows] bool, rows that carry media features.
        deepstack: per early layer, [visual rows, hidden] added after that layer; empty for most families.
        hidden_from: [rows, table.length] bool, True may not be attended; None hides nothing.
        token_ids: [rows] int64, for decoders that embed ids of tokens in every layer; others need none.
    """

    embeds: Tensor
    positions: Tensor
    slots: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...] = ()
    hidden_from: Tensor | None = None
    token_ids: Tensor | None = None

    def slice(self, start: int, stop: int) -> "RowBatch":
        """Return rows `start` to `stop`."""
        before, within = int(self.visual[:start].sum()), int(self.visual[start:stop].sum())
        return RowBatch(
            self.embeds[start:stop],
            self.positions[:, start:stop],
            self.slots[start:stop],
            self.visual[start:stop],
            tuple(layer[before : before + within] for layer in self.deepstack),
            None if self.hidden_from is None else self.hidden_from[start:stop],
            None if self.token_ids is None else self.token_ids[start:stop],
        )

    def by_hidden(self) -> list["RowBatch"]:
        """Return runs of rows that the same rows are hidden from, to be run one after another."""
        if self.hidden_from is None:
            return [self]
        changes = (self.hidden_from[1:] != self.hidden_from[:-1]).any(dim=1).nonzero().squeeze(1) + 1
        cuts = [0, *changes.tolist(), len(self.slots)]
        return [self.slice(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]

    def blocks(self, rows: Tensor, groups: Tensor, size: int) -> list["RowBatch"]:
        """Return runs of about `size` rows at most, to be run one after another; no bidirectional group is cut.

        Args:
            rows: [rows] int64, each row's place in the prompt; unless it rises, the batch stays whole.
            groups: [rows] int64, each row's bidirectional group, -1 for none.
            size: rows a run should have.
        """
        total = rows.shape[0]
        if total <= size or not bool((rows[1:] > rows[:-1]).all()):
            return [self]
        inside = (groups[1:] == groups[:-1]) & (groups[1:] >= 0)
        cuts = [0]
        while cuts[-1] + size < total:
            stop = cuts[-1] + size
            while stop < total and bool(inside[stop - 1]):
                stop += 1
            cuts.append(stop)
        if cuts[-1] < total:
            cuts.append(total)
        return [self.slice(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]
