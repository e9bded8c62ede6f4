"""A window against a prefill of the same parts, and against rows moved by hand, on every family of the matrix."""

from typing import Any

import pytest
import torch

from emblema.engine.engine import Engine
from emblema.window.parts import PartHandle
from tests.engine.engines import engine, largest_error
from tests.families import NAMES, loaded, picture, words
from tests.window.plain import Item, PlainWindow

QUESTION = tuple(words(4, 9).tolist())


def ids(count: int, seed: int) -> list[int]:
    return list(words(count, seed).tolist())


class Pair:
    """A window and the same written down plainly; pictures are the window's own, never prefilled alone."""

    def __init__(self, made: Engine, name: str) -> None:
        self.engine, self.name = made, name
        self.window = made.window(template=False)
        self.plain = PlainWindow(made.adapter)

    def append(self, given: Any) -> PartHandle:
        handle = self.window.append(given)
        if isinstance(given, list):
            encoded = [self.engine.adapter.encode_text(torch.tensor(given))]
        else:
            encoded = [piece.encoded for piece in self.engine.encode(given)]
        self.plain.items.append(Item(handle.number, encoded))
        return handle

    def picture(self, seed: int) -> PartHandle:
        return self.append(picture(*loaded(self.name).case.sizes[seed % 2], seed=700 + seed))

    def agree(self) -> int:
        """Ask both; returns the rows that were computed."""
        expected, rows = self.plain.ask(QUESTION)
        found = self.window.prefill(QUESTION)
        assert found.trace.computed == rows
        assert largest_error(found.logits, expected) < 1e-4
        return rows


@pytest.mark.parametrize("name", NAMES)
def test_parts_just_appended_are_a_full_prefill(name: str) -> None:
    made, sizes = engine(name), loaded(name).case.sizes
    first, second = (picture(*sizes[index], seed=index) for index in range(2))
    window = made.window(template=False)
    for part in (ids(5, 0), first, ids(3, 1), second, first):
        window.append(part)
    assert window.log[-1].encoder_runs == 0, "the same picture again is not encoded again"
    chunks = {id(shown): made.add(shown) for shown in (first, second)}
    parts = [ids(5, 0), chunks[id(first)], ids(3, 1), chunks[id(second)], chunks[id(first)], list(QUESTION)]
    full = made.prefill(parts, "full", template=False)
    asked = window.prefill(QUESTION)
    assert torch.equal(asked.prompt.positions, full.prompt.positions)
    assert torch.equal(asked.token_ids, full.token_ids)
    assert largest_error(asked.logits, full.logits) < 1e-4
    again = window.prefill(QUESTION)
    assert again.trace.computed == len(QUESTION)
    assert largest_error(again.logits, full.logits) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_survivors_are_what_they_were_written_as_elsewhere(name: str) -> None:
    pair = Pair(engine(name), name)
    pair.append(ids(5, 50))
    handles = [pair.picture(seed) for seed in range(3)]
    pair.append(ids(2, 1))
    pair.agree()
    # The first part leaves, and the window has no text in front; then a picture between others.
    for count in (1, 1):
        for item in pair.plain.items[:count]:
            pair.plain.leave(item)
        pair.window.slide(count)
        assert pair.agree() == len(QUESTION)
    pair.window.evict(handles[2])
    pair.plain.leave(pair.plain.items[1])
    pair.picture(3)
    assert pair.agree() == len(QUESTION) + pair.window.parts[-1].tokens
    full = pair.window.prefill(QUESTION, "full", keep=False)
    assert largest_error(pair.window.prefill(QUESTION).logits, full.logits) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_what_is_recalled_or_moved_is_formed_behind_what_stands_before_it(name: str) -> None:
    pair = Pair(engine(name), name)
    handles = [pair.picture(seed) for seed in range(3)]
    pair.append(ids(3, 1))
    pair.agree()
    pair.window.slide()
    pair.plain.leave(pair.plain.items[0])
    pair.agree()
    # At the end nothing comes after it; in the middle the parts after it have never seen it there.
    pair.window.recall(handles[0])
    pair.plain.recall(pair.plain.evicted[0], 3)
    assert pair.agree() == len(QUESTION) + handles[0].tokens
    order = [1, 0, 2, 3]
    pair.window.reorder([pair.window.parts[index] for index in order])
    pair.plain.items = [pair.plain.items[index] for index in order]
    moved = sum(part.tokens for part in pair.window.parts[:2])
    assert pair.agree() == len(QUESTION) + moved
    runs = sum(entry.encoder_runs for entry in pair.window.log)
    assert runs == 3, "the encoder ran once for each picture"
