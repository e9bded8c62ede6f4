"""Random use of windows and their forks, beside the same written down plainly."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emblema.engine.engine import Engine
from emblema.errors import CapacityError
from emblema.kv.chunk import EncodedChunk
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.window.budget import WindowBudget
from emblema.window.staleness import unseen
from emblema.window.state import WindowSnapshot
from emblema.window.window import Window
from tests.engine.engines import engine, largest_error
from tests.families import loaded, picture, words
from tests.window.plain import Item, PlainWindow, Rows

QUESTION = tuple(words(3, 99).tolist())
EXACT = Auto(Policy(max_kl=0, canary=0, forming=False))


@cache
def pieces(name: str, seed: int) -> tuple[tuple[EncodedChunk, ...], ...]:
    """Two pictures, and a clip of two more."""
    made, sizes = engine(name), loaded(name).case.sizes
    single = [made.encode(picture(*sizes[index % 2], seed=seed + index)) for index in range(4)]
    return single[0], single[1], (*single[2], *single[3])


@dataclass(eq=False)
class Branch:
    """A window, its plain counterpart, and the snapshots of both."""

    window: Window
    plain: PlainWindow
    kept: list[tuple[WindowSnapshot, PlainWindow]] = field(default_factory=list)


class WindowMachine(RuleBasedStateMachine):
    """A window and its forks under a budget, as one thread uses them."""

    name, seed = "qwen2_5_vl", 800
    counted = True
    made: Engine
    sources: dict[int, tuple[str, ...]]

    @initialize(tokens=st.sampled_from([None, 40]), byte=st.booleans())
    def open(self, tokens: int | None, byte: bool) -> None:
        self.made = engine(self.name)
        self.made.forget_prompts()
        row = sum(layout.features for layout in self.made.adapter.layouts) * self.made.adapter.dtype.itemsize
        self.row, self.sources = row, {}
        self.streams: list[tuple[Window, Any, Any, Any]] = []
        self.budget = WindowBudget(tokens=tokens, bytes=100 * row if byte else None)
        window = self.made.window(template=False, budget=self.budget, cascade=unseen)
        self.branches = [Branch(window, PlainWindow(self.made.adapter))]
        self.now = 0
        for which in (0, 1):
            self.append_media(which)
        self.append_text(2, 0)
        self.answer()

    @property
    def branch(self) -> Branch:
        return self.branches[self.now]

    def weight(self, items: list[Item]) -> tuple[int, int]:
        tokens = sum(item.tokens for item in items)
        embeddings = sum(e.bytes for item in items if self.sources[item.number] for e in item.encoded)
        return tokens, tokens * self.row + embeddings + sum(self.repairs(item) for item in items)

    def repairs(self, item: Item, *, always: bool = False) -> int:
        """Bytes of factors of full rank beside an item's rows."""
        if not always and (item.rows is None or item.rows.old is None):
            return 0
        widths = [
            heads * width for layout in self.made.adapter.layouts for heads, width in (layout.keys, layout.values)
        ]
        numbers = (
            min(encoded.tokens, width) * (encoded.tokens + width) for encoded in item.encoded for width in widths
        )
        return sum(numbers) * self.made.adapter.dtype.itemsize

    def fits(self, items: list[Item]) -> bool:
        tokens, size = self.weight(items)
        most, most_bytes = self.budget.tokens, self.budget.bytes
        return (most is None or tokens <= most) and (most_bytes is None or size <= most_bytes)

    def come(self, item: Item, at: int) -> int:
        """The plain window makes room for an item; return its place."""
        plain = self.branch.plain
        while not self.fits([*plain.items, item]):
            plain.leave(plain.items[0])
            at = max(0, at - 1)
        return at

    @rule(count=st.integers(1, 3), seed=st.integers(0, 50))
    def append_text(self, count: int, seed: int) -> None:
        ids = words(count, seed).tolist()
        self.append(ids, [self.made.adapter.encode_text(torch.tensor(ids))], ())

    @rule(which=st.integers(0, 2))
    def append_media(self, which: int) -> None:
        given = pieces(self.name, self.seed)[which]
        self.append(given, [piece.encoded for piece in given], tuple(piece.id for piece in given))

    def append(self, given: Any, encoded: list[Any], sources: tuple[str, ...]) -> None:
        item = Item(0, encoded)
        self.sources[0] = sources
        if not self.fits([item]):
            with pytest.raises(CapacityError):
                self.branch.window.append(given)
            return
        handle = self.branch.window.append(given)
        item.number = handle.number
        assert item.number not in self.sources, "no two parts have one name"
        self.sources[item.number] = sources
        at = self.come(item, len(self.branch.plain.items))
        self.branch.plain.items.insert(at, item)

    @precondition(lambda self: self.branch.plain.items)
    @rule(data=st.data(), media=st.booleans())
    def slide(self, data: st.DataObject, media: bool) -> None:
        free = [item for item in self.branch.plain.items if self.sources[item.number] or not media]
        if free:
            count = data.draw(st.integers(1, len(free)))
            self.branch.window.slide(count, media=media)
            for item in free[:count]:
                self.branch.plain.leave(item)

    @precondition(lambda self: self.branch.plain.items)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.branch.plain.items) - 1))
        self.branch.window.evict(self.branch.window.parts[index])
        self.branch.plain.leave(self.branch.plain.items[index])

    @precondition(lambda self: len(self.branch.plain.items) > 1)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(self.branch.plain.items))))
        self.branch.window.reorder([self.branch.window.parts[index] for index in order])
        self.branch.plain.items = [self.branch.plain.items[index] for index in order]

    @precondition(lambda self: self.branch.plain.evicted)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        plain = self.branch.plain
        item = data.draw(st.sampled_from(plain.evicted))
        at = data.draw(st.integers(0, len(plain.items)))
        handle = next(part for part in self.branch.window.evicted if part.number == item.number)
        self.branch.window.recall(handle, at=at)
        plain.evicted.remove(item)
        at = self.come(item, at)
        plain.items.insert(at, Item(item.number, item.encoded))

    @precondition(lambda self: self.branch.plain.items)
    @rule(data=st.data())
    def refresh(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.branch.plain.items) - 1))
        self.branch.window.refresh(self.branch.window.parts[index])
        self.branch.plain.items[index].rows = None

    @precondition(lambda self: self.branch.plain.items)
    @rule(data=st.data(), every=st.booleans())
    def repair(self, data: st.DataObject, every: bool) -> None:
        plain, window = self.branch.plain, self.branch.window
        index = data.draw(st.integers(0, len(plain.items) - 1))
        wanted = plain.items if every else [plain.items[index]]
        size = sum(self.repairs(item, always=True) for item in plain.items if item in self.to_repair(wanted))
        size += sum(self.repairs(item) for item in plain.items if item not in self.to_repair(wanted))
        bound, (_, held) = self.budget.bytes, self.weight(plain.items)
        over = bound is not None and held - sum(map(self.repairs, plain.items)) + size > bound
        if over and self.to_repair(wanted):
            with pytest.raises(CapacityError):
                window.repair(*([] if every else [window.parts[index]]), rank=10**4)
            return
        found = window.repair(*([] if every else [window.parts[index]]), rank=10**4)
        assert [handle.number for handle in found] == [item.number for item in plain.repair(wanted)]

    def to_repair(self, wanted: list[Item]) -> list[Item]:
        plain = self.branch.plain
        return [item for index, item in enumerate(plain.items) if item in wanted and plain.stale(index)]

    @rule(data=st.data(), tokens=st.sampled_from([None, 14, 30]))
    def arrange(self, data: st.DataObject, tokens: int | None) -> None:
        plain, window = self.branch.plain, self.branch.window
        media = [item.number for item in (*plain.items, *plain.evicted) if self.sources[item.number]]
        wanted = data.draw(st.lists(st.sampled_from(media), unique=True, max_size=2)) if media else []
        handles = [part for number in wanted for part in (*window.parts, *window.evicted) if part.number == number]
        before = window.parts
        try:
            placed = window.arrange(*handles, budget=WindowBudget(tokens=tokens))
        except CapacityError:
            assert window.parts == before
            assert tokens is not None or self.budget != WindowBudget()
            return
        order = [part.number for part in window.parts]
        assert set(wanted) <= set(order)
        assert tokens is None or sum(part.tokens for part in window.parts) <= tokens
        for item in [item for item in plain.items if item.number not in order]:
            plain.leave(item)
        back = [part for part in plain.evicted if part.number in order]
        plain.evicted = [part for part in plain.evicted if part.number not in order]
        recalled = [Item(item.number, item.encoded) for item in back]
        known = {item.number: item for item in (*plain.items, *recalled)}
        plain.items = [known[number] for number in order]
        lanes, names, unit, served = list(placed.lanes), list(placed.order), [], []
        for item in plain.items:
            unit.append(item)
            if self.sources[item.number]:
                assert names.pop(0) == str(item.number)
                serves = lanes.pop(0) == "settled"
                for each in unit:
                    each.rows = each.rows if serves else None
                served += unit if serves else []
                unit = []
        assert not names, "texts without media after them are at the end"
        assert not any(plain.unseen(plain.items.index(item)) for item in served)

    @rule()
    def stream(self) -> None:
        """An answer is begun, and read to its end at some later time."""
        window = self.branch.window
        self.made.forget_prompts()
        whole = window.fork().ask(QUESTION, EXACT, keep=False, max_new_tokens=3)
        self.made.forget_prompts()
        pieces = window.ask(QUESTION, EXACT, stream=True, max_new_tokens=3)
        first = next(pieces)
        self.branch.plain.ask(QUESTION)
        self.made.forget_prompts()
        self.streams.append((window, pieces, first, whole))

    @precondition(lambda self: self.streams)
    @rule()
    def read_on(self) -> None:
        window, pieces, first, whole = self.streams.pop(0)
        every = [first, *pieces]
        assert "".join(every) == whole.text and every[-1].reply.token_ids == whole.token_ids
        assert window.log[-1].operation == "ask" and window.log[-1].error is None

    @rule()
    def answer(self) -> None:
        """What has no rows gets them."""
        self.ask(True)

    @invariant()
    def agree(self) -> None:
        """Whatever was done, a question is answered as plainly, and leaves no trace."""
        if getattr(self, "branches", []):
            self.ask(False)

    def ask(self, keep: bool) -> None:
        expected, rows = self.branch.plain.ask(QUESTION, keep)
        found = self.branch.window.prefill(QUESTION, EXACT, keep=keep)
        assert largest_error(found.logits, expected) < 1e-4
        if self.counted:
            assert (found.trace.computed, found.trace.cached) == (rows, found.prompt.tokens - rows)
        self.made.forget_prompts()
        row = position = 0
        for segment in found.prompt.segments:
            assert (segment.start, segment.position) == (row, position)
            part = segment.part
            span = part.tokens if not hasattr(part, "chunk") else part.chunk.encoded.span
            row, position = segment.stop, position + span
        assert row == self.branch.window.tokens + len(QUESTION)

    @rule()
    def snapshot(self) -> None:
        branch = self.branch
        branch.kept.append((branch.window.snapshot(), branch.plain.copy()))

    @precondition(lambda self: self.branch.kept)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        kept, plain = data.draw(st.sampled_from(self.branch.kept))
        self.branch.window.restore(kept)
        self.branch.plain = plain.copy()
        self.forget(self.branch)

    @precondition(lambda self: len(self.branches) < 3)
    @rule()
    def fork(self) -> None:
        self.branches.append(Branch(self.branch.window.fork(), self.branch.plain.copy()))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        self.now = data.draw(st.integers(0, len(self.branches) - 1))

    @precondition(lambda self: len(self.branches) > 1)
    @rule()
    def close(self) -> None:
        self.branch.window.close()
        del self.branches[self.now]
        self.now = 0

    @invariant()
    def same(self) -> None:
        for branch in getattr(self, "branches", []):
            window, plain = branch.window, branch.plain
            assert [part.number for part in window.parts] == [item.number for item in plain.items]
            assert [part.number for part in window.evicted] == [part.number for part in plain.evicted]
            assert window.tokens == self.weight(plain.items)[0]
            assert self.fits(plain.items)
            rows = sum(item.tokens for item in plain.items if item.rows is not None)
            assert window.memory.rows == rows * self.row
            assert window.memory.repairs == sum(map(self.repairs, plain.items))
            assert window.memory.evicted == sum(
                e.bytes for part in plain.evicted if self.sources[part.number] for e in part.encoded
            )
            assert window.memory.evicted_rows == sum(part.tokens for part in plain.evicted) * self.row

    @invariant()
    def counted_once(self) -> None:
        branches = getattr(self, "branches", [])
        if branches:
            first, *others = (branch.window for branch in branches)
            rows = {id(item.rows.first): item.tokens for branch in branches for item in branch.plain.items if item.rows}
            beside = {id(item.rows): self.repairs(item) for branch in branches for item in branch.plain.items}
            seen = {
                id(e): e.bytes
                for branch in branches
                for item in branch.plain.items
                if self.sources[item.number]
                for e in item.encoded
            }
            own = sum(rows.values()) * self.row + sum(seen.values()) + sum(beside.values())
            assert first.bytes_with(*others) == own

    def forget(self, branch: Branch) -> None:
        """Nothing is deleted here; see `DeletingMachine`."""


class GroupsMachine(WindowMachine):
    """Pictures whose rows attend each other both ways, and layers that see a part of the prompt."""

    name, seed = "gemma3", 800


class DeletingMachine(WindowMachine):
    """Pictures are deleted from the store at any time; what is appended again is taken from there where it leads."""

    seed, counted = 900, False

    @initialize(tokens=st.just(None), byte=st.just(False))
    def open(self, tokens: int | None, byte: bool) -> None:
        self.dead: set[str] = set()
        super().open(tokens, byte)

    @rule(which=st.integers(0, 2))
    def delete(self, which: int) -> None:
        for piece in pieces(self.name, self.seed)[which]:
            self.made.store.delete(piece.id)
            self.dead.add(piece.id)
        for branch in self.branches:
            branch.window.snapshot()
            self.forget(branch)

    def append(self, given: Any, encoded: list[Any], sources: tuple[str, ...]) -> None:
        super().append(given, encoded, sources)
        self.dead -= set(sources)

    def forget(self, branch: Branch) -> None:
        plain = branch.plain
        plain.items = [item for item in plain.items if not self.dead.intersection(self.sources[item.number])]
        plain.evicted = [part for part in plain.evicted if not self.dead.intersection(self.sources[part.number])]
        for item in plain.items:
            if item.rows is not None and self.dead & self.absorbed(item.number, item.rows):
                item.rows = None

    def absorbed(self, number: int, rows: Rows) -> set[str]:
        before = (self.absorbed(other, held) for other, held in rows.before)
        older = set() if rows.old is None else self.absorbed(number, rows.old)
        return older.union(self.sources[number], *before)


TestWindow = WindowMachine.TestCase
TestGroups = pytest.mark.slow(GroupsMachine.TestCase)
TestDeleting = pytest.mark.slow(DeletingMachine.TestCase)
TestWindow.settings = settings(max_examples=6, stateful_step_count=20)
TestGroups.settings = settings(max_examples=5, stateful_step_count=20)
TestDeleting.settings = settings(max_examples=8, stateful_step_count=20)
