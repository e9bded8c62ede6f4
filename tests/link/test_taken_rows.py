"""Taken rows against a construction of their own: complex numbers in float64, row by row, from the definitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerLayout, LayerRows, RotaryBand
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.kv.placing import LayerMemory, RowPlacement, SlotRows
from emblema.kv.placing_torch import TorchPlacer
from emblema.kv.rotation import RotaryTable
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, PrefixOrigin, RowRange, RowSource
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.taken_rows import LinkJob, Resources, TakenRows
from tests.kv.tables import BANDS, table, table_turns, turned_pairs
from tests.one_device import META, OneDevice

LATENT = RotaryBand("values", "pairs", 0, 16, "", (0,) * 8, tuple(range(8)))
LAYOUTS = (
    LayerLayout((2, 16), (2, 16), BANDS["half"]),
    LayerLayout((2, 16), (3, 4), BANDS["pairs"]),
    LayerLayout((2, 16), (2, 16), BANDS["partial"]),
    LayerLayout((1, 12), (1, 16), LATENT),
    LayerLayout((2, 16), (2, 16), None),
)
RANK = 3


@dataclass
class Model:
    """The geometry of a decoder without one."""

    layouts: tuple[LayerLayout, ...] = LAYOUTS
    tables: Mapping[str, RotaryTable] = field(default_factory=lambda: {"": table})
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")


class Sink:
    """A table of zeros."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.arange(rows)
        self.written: list[int] = []
        self.layers = [
            LayerRows(torch.zeros(at.keys[0], rows, at.keys[1]), torch.zeros(at.values[0], rows, at.values[1]))
            for at in LAYOUTS
        ]

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        self.written.append(rows.keys.shape[1])
        self.layers[layer].keys[:, slots] = rows.keys
        self.layers[layer].values[:, slots] = rows.values


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chunk(number: int, tokens: int, base: int = 0) -> Chunk:
    encoded = Encoded(
        torch.full((tokens,), 9),
        torch.zeros(tokens, 4),
        torch.arange(tokens)[None],
        tokens,
        torch.ones(tokens, dtype=torch.bool),
        (),
        torch.full((tokens,), -1),
    )
    rows = tuple(
        LayerRows(
            random(at.keys[0], tokens, at.keys[1], seed=10 * number + layer),
            random(at.values[0], tokens, at.values[1], seed=100 * number + layer),
        )
        for layer, at in enumerate(LAYOUTS)
    )
    return Chunk(f"{number:064x}", "image", "m", encoded, rows, base=base)


def patch(tokens: int) -> Patch:
    def factors(shape: tuple[int, int], seed: int) -> Factors:
        return Factors(random(tokens, RANK, seed=seed), random(RANK, shape[0] * shape[1], seed=seed + 1))

    seeds = range(50, 50 + 4 * len(LAYOUTS), 4)
    made = zip(seeds, LAYOUTS, strict=True)
    return Patch(tuple(LayerPatch(factors(at.keys, seed), factors(at.values, seed + 2)) for seed, at in made))


def expected(
    piece: Chunk, span: slice, layer: int, positions: Tensor, added: Patch | None, rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Keys and values of some rows of a chunk at their positions in the prompt."""
    at = LAYOUTS[layer]
    made = []
    for slot, shape in (("keys", at.keys), ("values", at.values)):
        rows = getattr(piece.rows[layer], slot)[:, span].double()
        shift = np.zeros(rows.shape)
        if added is not None:
            factors = getattr(added.slice(rank).layers[layer], slot)
            matrix = factors.left[span].double().numpy() @ factors.right.double().numpy()
            for head in range(shape[0]):
                shift[head] = matrix[:, head * shape[1] : (head + 1) * shape[1]]
        if at.rotary is not None and at.rotary.slot == slot:
            written = torch.arange(span.start, span.stop)[None] + piece.base
            there = table_turns(at.rotary, positions)
            back = table_turns(at.rotary, written).conj()
            own = turned_pairs(rows, at.rotary, there * back)
            made.append(own + turned_pairs(torch.from_numpy(shift), at.rotary, there))
        else:
            made.append(rows.numpy() + shift)
    return made[0], made[1]


FIRST, SECOND = chunk(1, 4), chunk(2, 6, base=7)
PROMPT = Prompt.of([TextPart((1, 2, 3)), ChunkPart(FIRST), TextPart((4, 5)), ChunkPart(SECOND), TextPart((6,))], 1)
KEY = ArtifactKey("m", SECOND.id, (FIRST.id,))


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("cut", [0, 2])
def test_rows_are_those_of_their_definition(patched: bool, cut: int) -> None:
    """Every layer of every layout, of a chunk whose rows are canonical and of one written elsewhere, in part."""
    layers = (0, len(LAYOUTS))
    use, added = (PatchUse(KEY, RANK - 1), patch(6)) if patched else (None, None)
    ranges = (
        RowRange(0, 3, RowSource.COMPUTED, layers),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(FIRST.id)),
        RowRange(7, 9 + cut, RowSource.COMPUTED, layers),
        RowRange(9 + cut, 15, RowSource.TAKEN, layers, ChunkOrigin(SECOND.id, cut), use),
        RowRange(15, 16, RowSource.COMPUTED, layers),
    )
    plan = LinkPlan("test", PROMPT.tokens, len(LAYOUTS), ranges)
    plan.validate()
    artifacts = {} if added is None else {KEY: added}
    sink = Sink(PROMPT.tokens)
    taken = TakenRows(Model(), sink, torch.arange(PROMPT.tokens), LinkJob(plan, PROMPT, Resources(artifacts)))
    for layer in range(len(LAYOUTS)):
        taken.write(layer)
        for piece, start, stop, offset, wanted in ((FIRST, 3, 7, 0, None), (SECOND, 9 + cut, 15, cut, added)):
            span, positions = slice(offset, piece.tokens), PROMPT.positions[:, start:stop]
            assert positions.tolist() == [list(range(start, stop))]
            keys, values = expected(piece, span, layer, positions, wanted, RANK - 1)
            found = sink.layers[layer]
            assert np.abs(found.keys[:, start:stop].numpy() - keys).max() < 1e-5
            assert np.abs(found.values[:, start:stop].numpy() - values).max() < 1e-5
        for computed in (slice(0, 3), slice(7, 9 + cut), slice(15, 16)):
            assert not sink.layers[layer].keys[:, computed].any() and not sink.layers[layer].values[:, computed].any()


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 2, 1, 0), (1, 2, 3, 4), (0, 1, 2, 5)])
def test_rows_go_to_their_slots_in_whatever_order_these_are(order: tuple[int, ...]) -> None:
    """Pages of another engine are no run, though the first and last of them may look like one."""
    layers, kept = (0, len(LAYOUTS)), chunk(3, PROMPT.tokens).rows
    prefix = PrefixOrigin("kept")
    ranges = (
        RowRange(0, 3, RowSource.TAKEN, layers, prefix),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(FIRST.id)),
        RowRange(7, 16, RowSource.COMPUTED, layers),
    )
    plan = LinkPlan("test", PROMPT.tokens, len(LAYOUTS), ranges)
    job = LinkJob(plan, PROMPT, Resources(prefixes={"kept": kept}))
    slots = torch.arange(PROMPT.tokens)
    slots[3:7] = 3 + torch.tensor(order)
    slots[:3] = torch.tensor([2, 1, 0]) + 12
    other, straight = Sink(PROMPT.tokens), Sink(PROMPT.tokens)
    for sink, where in ((other, slots), (straight, torch.arange(PROMPT.tokens))):
        taken = TakenRows(Model(), sink, where, job)
        for layer in range(len(LAYOUTS)):
            taken.write(layer)
    for found, whole in zip(other.layers, straight.layers, strict=True):
        assert torch.equal(found.keys[:, slots[:7]], whole.keys[:, :7])
        assert torch.equal(found.values[:, slots[:7]], whole.values[:, :7]) and whole.values[:, :7].any()


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (2, 6), (0, 4), (2, 4)])
def test_a_range_takes_its_own_rows_of_a_patch(start: int, stop: int) -> None:
    """Wherever it begins and ends in its chunk."""
    layers, added = (0, len(LAYOUTS)), patch(6)
    ranges = (
        RowRange(0, 9 + start, RowSource.COMPUTED, layers),
        RowRange(9 + start, 9 + stop, RowSource.TAKEN, layers, ChunkOrigin(SECOND.id, start), PatchUse(KEY, RANK)),
        RowRange(9 + stop, 16, RowSource.COMPUTED, layers),
    )
    job = LinkJob(LinkPlan("test", PROMPT.tokens, len(LAYOUTS), ranges), PROMPT, Resources({KEY: added}))
    sink = Sink(PROMPT.tokens)
    taken = TakenRows(Model(), sink, torch.arange(PROMPT.tokens), job)
    at = slice(9 + start, 9 + stop)
    for layer in range(len(LAYOUTS)):
        taken.write(layer)
        positions = PROMPT.positions[:, at]
        keys, values = expected(SECOND, slice(start, stop), layer, positions, added, RANK)
        assert np.abs(sink.layers[layer].keys[:, at].numpy() - keys).max() < 1e-5
        assert np.abs(sink.layers[layer].values[:, at].numpy() - values).max() < 1e-5
        # No more is read than is written.
        whole = added.slice(RANK).layers[layer]
        read = sum((stop - start) * RANK * 4 + slot.right.nbytes for slot in (whole.keys, whole.values))
        assert taken.patch_bytes == read
        taken.patch_bytes = 0


@pytest.mark.parametrize("slot", ["keys", "values"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_of_another_shape_are_refused(slot: str, axis: int) -> None:
    """Heads, tokens or features: of the keys, and of the values alone."""
    own = FIRST.rows[1]
    tensor = getattr(own, slot)
    wrong = replace(own, **{slot: torch.cat((tensor, tensor.narrow(axis, 0, 1)), dim=axis)})
    piece = replace(FIRST, rows=(FIRST.rows[0], wrong, *FIRST.rows[2:]))
    prompt = Prompt.of([TextPart((1, 2, 3)), ChunkPart(piece)], 1)
    layers = (0, len(LAYOUTS))
    ranges = (
        RowRange(0, 3, RowSource.COMPUTED, layers),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(piece.id)),
    )
    job = LinkJob(LinkPlan("test", prompt.tokens, len(LAYOUTS), ranges), prompt)
    taken = TakenRows(Model(), Sink(prompt.tokens), torch.arange(prompt.tokens), job)
    taken.write(0)
    with pytest.raises(LoadError, match="layer 1 have other shapes"):
        taken.write(1)


@pytest.mark.parametrize("together", [1, 7, 9, 1000])
def test_what_is_written_does_not_follow_from_how_many_rows_are_worked_on_at_once(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (0, len(LAYOUTS))
    pieces = [chunk(number, tokens) for number, tokens in enumerate((3, 4, 2, 6))]
    prompt = Prompt.of([TextPart((1, 2)), *map(ChunkPart, pieces), TextPart((3,))], 1)
    taken = [RowRange(*at.rows, RowSource.TAKEN, layers, ChunkOrigin(own.id)) for at, own in prompt.chunk_segments]
    text = [RowRange(*rows, RowSource.COMPUTED, layers) for rows in prompt.text_rows]
    job = LinkJob(LinkPlan("test", prompt.tokens, len(LAYOUTS), (*taken, *text)), prompt)
    sinks = []
    for rows in (together, 1000):
        monkeypatch.setattr("emblema.kv.placing_torch.RUN_ROWS", rows)
        sinks.append(Sink(prompt.tokens))
        own = TakenRows(Model(), sinks[-1], torch.arange(prompt.tokens), job)
        for layer in range(len(LAYOUTS)):
            own.write(layer)
        assert own.bytes_read == sum(piece.rows[layer].bytes for piece in pieces for layer in range(len(LAYOUTS)))
    for found, whole in zip(sinks[0].layers, sinks[1].layers, strict=True):
        assert torch.equal(found.keys, whole.keys) and torch.equal(found.values, whole.values)


class OpenTable(Sink):
    """The same with memory that may be written to, and layers of which all are there but some."""

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        raise AssertionError("its memory is written to")

    def memory(self, layer: int) -> LayerMemory:
        rows = self.layers[layer]
        return LayerMemory(rows.keys.transpose(0, 1)[None], rows.values.transpose(0, 1)[None])


class TogetherPlacer(TorchPlacer):
    """Takes layers together, and notes how many."""

    takes_layers_together = True

    def __init__(self) -> None:
        self.calls: list[int] = []

    def place(self, placement: RowPlacement, slots: Sequence[SlotRows]) -> None:
        self.calls.append(len(slots) // 2)
        super().place(placement, slots)


class LateRows(tuple[LayerRows, ...]):
    """Rows of which a layer is under way."""

    late: int

    def is_here(self, layer: int) -> bool:
        return layer != self.late


def test_layers_that_are_there_are_written_together_and_each_once() -> None:
    layers = (0, len(LAYOUTS))
    rows = LateRows(FIRST.rows)
    rows.late = 3
    piece = replace(FIRST, rows=rows)
    prompt = Prompt.of([TextPart((1, 2, 3)), ChunkPart(piece)], 1)
    ranges = (
        RowRange(0, 3, RowSource.COMPUTED, layers),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(piece.id)),
    )
    job = LinkJob(LinkPlan("test", prompt.tokens, len(LAYOUTS), ranges), prompt)
    together, apart, placer = OpenTable(prompt.tokens), Sink(prompt.tokens), TogetherPlacer()
    for sink, own in ((together, placer), (apart, TorchPlacer())):
        taken = TakenRows(Model(), sink, torch.arange(prompt.tokens), job, own)
        for layer in range(len(LAYOUTS)):
            taken.write(layer)
            assert sink.layers[layer].keys[:, 3:].any()
        assert taken.bytes_read == FIRST.bytes
    assert placer.calls == [3, 2]
    for found, whole in zip(together.layers, apart.layers, strict=True):
        assert torch.equal(found.keys, whole.keys) and torch.equal(found.values, whole.values)


class DeviceSink:
    """A table on another device; it keeps nothing."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, device=META)
        self.written = 0

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        assert isinstance(slots, slice) or slots.device == META
        assert rows.keys.device == rows.values.device == META
        self.written += rows.tokens


def device_table(positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions.float()[:, None] * torch.arange(8, dtype=torch.float32, device=positions.device)
    return angles.cos(), angles.sin()


def test_rows_in_host_memory_go_to_a_device_that_nothing_waits_for() -> None:
    """Relocated and patched there; `meta` stands for a GPU."""
    layers, sink = (0, len(LAYOUTS)), DeviceSink()
    ranges = (
        RowRange(0, 3, RowSource.COMPUTED, layers),
        RowRange(3, 7, RowSource.TAKEN, layers, ChunkOrigin(FIRST.id)),
        RowRange(7, 10, RowSource.COMPUTED, layers),
        RowRange(10, 15, RowSource.TAKEN, layers, ChunkOrigin(SECOND.id, 1), PatchUse(KEY, RANK - 1)),
        RowRange(15, 16, RowSource.COMPUTED, layers),
    )
    job = LinkJob(LinkPlan("test", PROMPT.tokens, len(LAYOUTS), ranges), PROMPT, Resources({KEY: patch(6)}))
    model = Model(tables={"": device_table}, device=META)
    with OneDevice() as seen:
        taken = TakenRows(model, sink, torch.arange(PROMPT.tokens), job)
        for layer in range(len(LAYOUTS)):
            taken.write(layer)
    assert sink.written == 9 * len(LAYOUTS) and seen.moved
