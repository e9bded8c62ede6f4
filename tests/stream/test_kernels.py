"""Compiled loops of the search choose what NumPy's operations choose."""

import re
import sys
from pathlib import Path
from typing import Any

import numba
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.method import Query, VisibleRange
from emblema.stream.mosaic import compiled, compiling, kernels
from emblema.stream.mosaic.compiled import COLUMNS, LoopKernels
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.kernel_loading import load_kernels
from emblema.stream.mosaic.kernels import ArrayKernels, Asked, Marks
from emblema.stream.mosaic.orders import Numbers, Scores
from emblema.stream.mosaic.postings import PAGE, Postings
from emblema.stream.mosaic.retrieval import choose_frames
from emblema.stream.mosaic.tiles import LANES, MOST
from emblema.stream.settings import StreamSettings, change_settings

SEEDS = st.integers(0, 10_000)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 3 * COLUMNS))
ARRAYS, LOOPS = ArrayKernels(), LoopKernels()
NO_ENTRIES = numpy.zeros((0, 0), numpy.int64)


def drawn(seed: int, shape: tuple[int, ...], coarse: bool) -> Scores:
    """Return numbers; coarse ones are often equal."""
    found = 4 * numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)
    return numpy.round(found) if coarse else found


def some_entries(seed: int, heads: int, count: int) -> Numbers:
    """Return entries of heads, each has one or more and then none."""
    made = numpy.random.default_rng(seed)
    entries = numpy.sort(made.integers(0, 3 * count, (heads, count)), 1)
    entries[numpy.arange(count) >= made.integers(1, count + 1, (heads, 1))] = -1
    return entries


def hidden(logits: Scores, entries: Numbers) -> Scores:
    """Return logits, -inf where there is no entry."""
    return numpy.where(entries[:, None] < 0, numpy.float32(-numpy.inf), logits) if len(entries) else logits.copy()


@given(SEEDS, SHAPES, st.booleans(), st.booleans())
def test_sums_of_exponentials_are_the_same_but_for_rounding(
    seed: int, shape: tuple[int, int, int], coarse: bool, several: bool
) -> None:
    logits = 10 * drawn(seed, shape, coarse)
    entries = some_entries(seed, shape[0], shape[2]) if several else NO_ENTRIES
    shown = hidden(logits, entries)
    assert_allclose(compiled.log_sum(logits, entries), kernels.log_sum(shown), rtol=2e-6, atol=2e-6)
    assert_array_equal(logits, shown)


@given(SEEDS, SHAPES, st.booleans(), st.integers(0, 40), st.integers(1, 3 * COLUMNS))
def test_the_same_codes_are_visited(
    seed: int, shape: tuple[int, int, int], coarse: bool, spare: int, wanted: int
) -> None:
    heads, queries, codes = shape
    made = numpy.random.default_rng(seed)
    products = drawn(seed, shape, coarse)
    lengths = made.integers(1, 4, (heads, queries)).astype(numpy.float32)
    reach = numpy.abs(drawn(seed + 1, (heads, codes + spare), coarse))
    counts = made.integers(0, 9, reach.shape).astype(numpy.float32)
    reach[counts == 0] = -1e30
    counts[:, 0] = 1
    found = [own.visit(products.copy(), lengths, reach, counts, min(wanted, codes)) for own in (ARRAYS, LOOPS)]
    assert_array_equal(found[0][1], found[1][1])
    assert_allclose(found[0][0], found[1][0], rtol=2e-6, atol=2e-6)


@given(SEEDS, SHAPES, st.integers(1, 4), st.integers(0, 300), st.integers(0, 600), st.sampled_from(["i2", "i4"]))
def test_the_same_keys_are_collected_in_the_same_order(
    seed: int, shape: tuple[int, int, int], shown: int, begin: int, end: int, kind: str
) -> None:
    heads, _, codes = shape
    made = numpy.random.default_rng(seed)
    pages = made.integers(-1, 500, (heads * codes, PAGE)).astype(kind)
    own = made.integers(-1, len(pages), (heads, codes + 5, shown)).astype(numpy.int32)
    seen = made.random((heads, codes)) < 0.3
    seen[:, 0] = True
    found = [each.collect(seen, own, pages, begin, end) for each in (ARRAYS, LOOPS)]
    assert_array_equal(found[0], found[1])


@given(SEEDS, st.integers(1, 3), st.integers(1, 40), st.integers(1, 70))
def test_the_same_keys_are_gathered(seed: int, heads: int, width: int, count: int) -> None:
    made = numpy.random.default_rng(seed)
    keys = made.integers(-127, 128, (50 * heads, width)).astype(numpy.int8)
    scales = torch.rand(len(keys), generator=torch.Generator().manual_seed(seed)).bfloat16().view(torch.int16).numpy()
    entries = some_entries(seed, heads, count) % 50
    found = [own.gather(keys, scales, entries) for own in (ARRAYS, LOOPS)]
    assert found[1].shape == (heads, count, width)
    assert_array_equal(found[0][entries >= 0], found[1][entries >= 0])


WIDTHS = st.sampled_from([5, LANES, 12, 3 * LANES, 64])
QUERIES = st.sampled_from([1, 7, LANES, LANES + 3, MOST, MOST + 1])


@given(SEEDS, st.integers(1, 3), QUERIES, WIDTHS, st.integers(1, 70))
def test_products_with_keys_are_the_same_but_for_rounding(
    seed: int, heads: int, queries: int, width: int, count: int
) -> None:
    made = numpy.random.default_rng(seed)
    keys = made.integers(-127, 128, (50 * heads, width)).astype(numpy.int8)
    scales = torch.rand(len(keys), generator=torch.Generator().manual_seed(seed)).bfloat16().view(torch.int16).numpy()
    entries = some_entries(seed, heads, count) % 50
    # Rows of a longer array do not follow one another.
    states = drawn(seed, (heads, 2 * queries, width), False)[:, ::2]
    found = [own.compare(states, keys, scales, entries).transpose(0, 2, 1) for own in (ARRAYS, LOOPS)]
    assert found[1].shape == (heads, count, queries)
    assert_allclose(found[0][entries >= 0], found[1][entries >= 0], rtol=1e-5, atol=1e-3)


@given(SEEDS, st.integers(1, 3), QUERIES, WIDTHS, st.integers(1, 70), st.sampled_from([1e-6, 1.0, 1e3]))
def test_products_with_means_are_the_same_but_for_rounding(
    seed: int, heads: int, queries: int, width: int, codes: int, size: float
) -> None:
    means = (size * drawn(seed + 1, (heads, codes + 3, width), False)).astype(numpy.float16)
    states = drawn(seed, (heads, queries, width), False)
    states[0, 0] = 0
    found, lengths = zip(*(own.products(states, means, codes) for own in (ARRAYS, LOOPS)), strict=True)
    assert found[1].shape == (heads, queries, codes)
    assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-4 * size)
    assert_allclose(lengths[0], lengths[1], rtol=1e-6)


def test_every_half_is_read_as_it_is() -> None:
    bits = numpy.arange(2**16, dtype=numpy.uint16).view(numpy.float16)
    every = bits[numpy.isfinite(bits)]
    means = numpy.zeros((1, len(every), LANES), numpy.float16)
    means[0, :, 3] = every
    states = numpy.zeros((1, 2, LANES), numpy.float32)
    states[0, 1, 3] = 1
    found = LOOPS.products(states, means, len(every))[0]
    assert not found[0, 0].any()
    assert_array_equal(found[0, 1], every.astype(numpy.float32))


@given(SEEDS, SHAPES, st.booleans(), st.booleans(), st.integers(1, 3), st.integers(1, 90), st.booleans())
def test_the_same_lines_are_chosen_given_the_same_sums(
    seed: int, shape: tuple[int, int, int], coarse: bool, several: bool, groups: int, budget: int, known: bool
) -> None:
    heads, rows, count = shape
    made = numpy.random.default_rng(seed)
    logits = drawn(seed, (heads, 2 * rows, count), coarse)
    entries = some_entries(seed, heads, count) if several else None
    sums = kernels.log_sum(hidden(logits, NO_ENTRIES if entries is None else entries))
    least = sums + drawn(seed + 1, sums.shape, coarse) if known else None
    asked = Asked(made.integers(0, groups, rows), groups, budget, True)
    found = [own.choose(logits.copy(), least, entries, 3, asked) for own in (ARRAYS, SameSums())]
    assert [own.tolist() for own in found[0]] == [own.tolist() for own in found[1]]
    for own in found[0]:
        assert len(set(own.tolist())) == len(own) <= budget


def test_keys_that_are_not_placed_are_chosen_by_their_attention_alone() -> None:
    logits, sums = (
        numpy.array([[[9.0, 8.0, 1.0], [1.0, 2.0, 7.0]]], numpy.float32),
        numpy.full((1, 2), 9.5, numpy.float32),
    )
    for placed, lines in ((True, [0, 2]), (False, [0, 1])):
        asked = Asked(numpy.zeros(2, numpy.int64), 1, 2, placed)
        assert [own.choose(logits.copy(), sums, None, 1, asked)[0].tolist() for own in (ARRAYS, LOOPS)] == 2 * [lines]


class SameSums(LoopKernels):
    """Compiled kernels, but for products and sums of exponentials."""

    products, compare, search = ArrayKernels.products, ArrayKernels.compare, ArrayKernels.search

    def choose(
        self, logits: Scores, known: Scores | None, entries: Numbers | None, parts: int, asked: Asked
    ) -> list[Numbers]:
        every = NO_ENTRIES if entries is None else entries
        shown = hidden(logits, every)
        mass = kernels.log_sum(shown)
        mass = mass if known is None else numpy.maximum(mass, known)
        found = compiled.first_lines(shown, mass, every, parts, asked.groups, asked.count, asked.budget)
        return [own[own >= 0] for own in found]

    def visit(
        self, products: Scores, lengths: Scores, reach: Scores, counts: Scores, wanted: int
    ) -> tuple[Scores, Marks]:
        mass = kernels.log_sum(products, counts[:, : products.shape[2]])
        return mass, super().visit(products, lengths, reach, counts, wanted)[1]


@pytest.mark.slow
@given(SEEDS, st.integers(1, 12), st.integers(60, 400), st.integers(1, 3), st.booleans(), st.booleans())
def test_frames_are_the_same_to_the_last_tie_given_the_same_sums(
    seed: int, rows: int, frames: int, parts: int, coarse: bool, span: bool
) -> None:
    made = torch.Generator().manual_seed(seed)
    keys = 3 * torch.randn(frames, parts, 2, 8, generator=made)
    states = torch.randn(4, rows, 8, generator=made)
    if coarse:
        keys, states = keys.round(), states.round()
    query = Query(states, torch.zeros(rows, dtype=torch.int64), 1, 2, "question")
    settings = change_settings(StreamSettings(), {"budget": 5, "pool": 2.0})
    visible = VisibleRange(10, 50, 50) if span else VisibleRange(0, 9999, 9999)
    found: list[list[int]] = []
    for own in (ARRAYS, SameSums(), LOOPS):
        held = FrameKeys(parts, 2, 8, own)
        postings = Postings(held)
        for start in range(0, frames, 20):
            block = keys[start : start + 20]
            held.add(range(start, start + len(block)), block)
            postings.add(range(start, start + len(block)))
        found.append(choose_frames(held, postings, query, visible, settings, ForgottenFrames())[0].tolist())
    assert found[0] == found[1] and len(found[2]) == 5
    # Two frames of almost the same attention may change places.
    assert coarse or len(set(found[0]) - set(found[2])) <= 1


@pytest.mark.slow
@given(SEEDS, st.integers(1, 12), st.integers(1, 2), st.sampled_from([8, 12]), st.booleans(), st.booleans())
def test_a_search_is_all_of_its_steps(
    seed: int, rows: int, groups: int, width: int, coarse: bool, placed: bool
) -> None:
    made = torch.Generator().manual_seed(seed)
    keys = 3 * torch.randn(120, 2, 2, width, generator=made)
    states = torch.randn(2, 2 * rows, width, generator=made)
    if coarse:
        keys, states = keys.round(), states.round()
    held = FrameKeys(2, 2, width, LOOPS)
    postings = Postings(held)
    held.add(range(120), keys)
    for start in range(0, 120, 20):
        postings.add(range(start, start + 20))
    asked = Asked(numpy.arange(rows) % groups, groups, 7, placed)
    entries, mass = postings.find(states, 0, 120, 30)
    steps = LOOPS.choose(held.logits(states, entries).numpy(), mass, entries, 2, asked)
    found = postings.search(states, 30, asked)
    assert [own.tolist() for own in found] == [own.tolist() for own in steps]
    assert all(len(own) == 7 for own in found[: min(rows, groups)])


def double(number: Any) -> Any:
    return 2 * number


def test_nothing_is_kept_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: Any) -> Any:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(compiling, "SourcesCache", refuse)
    made = compiling.compiled("f4(f4)")(double)
    assert made(2) == 4 and made.stats.cache_path is None


def test_code_is_compiled_again_where_a_source_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    hits = []
    for digest in ("one", "one", "other"):
        monkeypatch.setattr(compiling, "sources_digest", lambda digest=digest: digest)
        hits.append(sum(compiling.compiled("f4(f4)")(double).stats.cache_hits.values()))
    assert hits == [0, 1, 0]


def test_all_that_is_compiled_is_a_source() -> None:
    folder = Path(compiling.__file__).parent
    asking = [file for file in folder.glob("*.py") if "emblema.stream.mosaic.compiling import" in file.read_text()]
    taken = re.findall(r"from emblema\.stream\.mosaic\.(\w+) import", "".join(file.read_text() for file in asking))
    names = {file.name for file in asking} | {f"{name}.py" for name in taken}
    assert names - {"orders.py"} == set(compiling.SOURCES)


@pytest.mark.parametrize("there", [True, False])
def test_without_numba_arrays_are_used(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.setitem(sys.modules, "emblema.stream.mosaic.compiled", None)
    load_kernels.cache_clear()
    try:
        # They are loaded with the memory of a stream, before a question.
        assert type(FrameKeys(1, 1, 8).kernels) is (LoopKernels if there else ArrayKernels)
    finally:
        load_kernels.cache_clear()
