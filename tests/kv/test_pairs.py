"""The algebra of pairs: what is learnt, which antecedent a row takes, what goes, and how many bytes are kept."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.kv.layout import LayerLayout
from emblema.kv.pairs import (
    ID_BYTES,
    MOST_ANTECEDENTS,
    MOST_AVERAGED,
    MOST_SIGHTINGS,
    MOST_WITNESSES,
    ChunkPairs,
    PairBasis,
    PairSighting,
    bounded,
    compose_pairs,
    learn,
    make_basis,
    sightings_of,
    turned,
    width_of,
    without,
)

LAYOUTS = (LayerLayout((2, 3), (2, 2), None), LayerLayout((1, 4), (1, 2), None))
WIDTH = width_of(LAYOUTS)
ROWS = 5
EXACT = PairBasis(torch.eye(WIDTH), exact=True)
RIGHT = EXACT.right_factors(LAYOUTS, torch.float32)


def seen(
    names: str, mass: torch.Tensor, differences: torch.Tensor, rows: list[int] | None = None, more: str = ""
) -> PairSighting:
    """A sighting after chunks of one-letter names, whose alone shares are the masses."""
    places = torch.arange(ROWS) if rows is None else torch.tensor(rows)
    return PairSighting(tuple(names), places, differences, mass, mass.clamp(0, 1), frozenset(names + more + "C"))


def dense(pairs: ChunkPairs, names: str, basis: PairBasis = EXACT) -> torch.Tensor:
    """The differences that a composed patch adds, [rows, G]."""
    composed = compose_pairs(pairs, tuple(names), basis.right_factors(LAYOUTS, torch.float32))
    assert composed is not None
    return torch.cat(
        [slot.left @ slot.right for layer in composed.patch.layers for slot in (layer.keys, layer.values)], dim=1
    )


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_antecedent_comes_back_as_it_was() -> None:
    differences = numbers(ROWS, WIDTH)
    pairs = learn(ChunkPairs.empty(ROWS, EXACT), seen("A", torch.full((1, ROWS), 0.3), differences))
    assert torch.equal(dense(pairs, "A"), differences)
    assert compose_pairs(pairs, ("B",), RIGHT) is None, "nothing is known of another antecedent"
    assert sightings_of(pairs, ["A", "B"]) == [1, 0]


def test_rows_take_the_known_antecedent_with_the_largest_share() -> None:
    pairs = ChunkPairs.empty(ROWS, EXACT)
    differences = {name: numbers(ROWS, WIDTH, seed=index) for index, name in enumerate("AB")}
    shares = {"A": torch.tensor([[0.9, 0.8, 0.1, 0.2, 0.5]]), "B": torch.tensor([[0.1, 0.2, 0.9, 0.8, 0.6]])}
    for name in "AB":
        pairs = learn(pairs, seen(name, shares[name], differences[name]))
    expected = torch.where(shares["A"][0, :, None] > shares["B"][0, :, None], differences["A"], differences["B"])
    assert torch.equal(dense(pairs, "AB"), expected)
    assert torch.equal(dense(pairs, "BA"), expected) and torch.equal(dense(pairs, "A"), differences["A"])


def test_a_row_without_an_entry_of_the_winner_takes_the_best_known_and_is_blind_without_any() -> None:
    share = torch.full((1, 2), 0.2)
    pairs = learn(ChunkPairs.empty(ROWS, EXACT), seen("A", share, numbers(2, WIDTH), rows=[1, 3]))
    # B is attended more, but what it gave was never seen by itself.
    both = torch.tensor([[0.2, 0.2], [0.2, 0.2], [0.2, 0.2]])
    pairs = learn(pairs, seen("BDE", both * torch.tensor([[3], [1], [1]]), numbers(2, WIDTH), rows=[1, 3]), purity=0.9)
    composed = compose_pairs(pairs, ("A", "B"), RIGHT)
    assert composed is not None and composed.known == 2 / ROWS
    found = dense(pairs, "AB")
    assert torch.equal(found[[1, 3]], numbers(2, WIDTH)) and not found[[0, 2, 4]].any()


def test_differences_are_credited_to_the_antecedent_attended_most_and_only_where_it_dominates() -> None:
    mass = torch.tensor([[0.5, 0.3, 0.2, 0.3, 0.0], [0.1, 0.4, 0.2, 0.0, 0.6], [0.1, 0.2, 0.2, 0.1, 0.0]])
    pairs = learn(ChunkPairs.empty(ROWS, EXACT), seen("ABD", mass, numbers(ROWS, WIDTH)), purity=0.5)
    credited = {(pairs.antecedents[place // ROWS], place % ROWS) for place in pairs.places.tolist()}
    assert credited == {("A", 0), ("A", 3), ("B", 4)}, "rows 1 and 2 attend none half of the time"
    assert torch.allclose(pairs.shares.float() / 255, mass, atol=1 / 255), "losers' shares are kept too"


def test_differences_are_averaged_until_there_are_enough() -> None:
    pairs, mass = ChunkPairs.empty(ROWS, EXACT), torch.full((1, ROWS), 0.4)
    for index in range(MOST_AVERAGED + 3):
        pairs = learn(pairs, seen("A", mass, torch.full((ROWS, WIDTH), float(index))))
    assert torch.allclose(dense(pairs, "A"), torch.full((ROWS, WIDTH), sum(range(MOST_AVERAGED)) / MOST_AVERAGED))
    assert pairs.counts.tolist() == [MOST_AVERAGED] * ROWS
    assert pairs.sighted.tolist() == [[MOST_AVERAGED + 3] * ROWS]


def test_half_of_the_attention_is_enough_to_be_credited_and_less_is_not() -> None:
    mass = torch.tensor([[0.5, 0.25, 0.5, 0.49, 1.0], [0.25, 0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.5, 0.26, 0.0]])
    pairs = learn(ChunkPairs.empty(ROWS, EXACT), seen("ABD", mass, numbers(ROWS, WIDTH)))
    assert pairs.places.tolist() == [0, 4, ROWS + 1]


def test_a_row_with_an_entry_takes_it_however_small_its_share() -> None:
    nothing = torch.zeros(1, 2)
    pairs = learn(ChunkPairs.empty(ROWS, EXACT), seen("B", nothing, numbers(2, WIDTH), rows=[0, 1]))
    pairs = learn(pairs, seen("A", nothing, numbers(2, WIDTH, seed=1), rows=[3, 4]))
    composed = compose_pairs(pairs, ("A", "B"), RIGHT)
    assert composed is not None and composed.known == 4 / ROWS
    assert torch.equal(dense(pairs, "AB")[[0, 1, 3, 4]], torch.cat((numbers(2, WIDTH), numbers(2, WIDTH, seed=1))))
    assert composed.witnesses == {"A", "B", "C"}


def test_a_share_is_the_mean_of_its_sightings_and_later_ones_still_count() -> None:
    pairs = ChunkPairs.empty(ROWS, EXACT)
    for share in (0.2, 0.6, 0.4):
        pairs = learn(pairs, seen("A", torch.full((1, ROWS), share), numbers(ROWS, WIDTH)))
    assert torch.allclose(pairs.shares / 255, torch.tensor(0.4), atol=1.5 / 255) and pairs.sighted.tolist() == [
        [3] * ROWS
    ]
    for _ in range(MOST_SIGHTINGS):
        pairs = learn(pairs, seen("A", torch.zeros(1, ROWS), numbers(ROWS, WIDTH)))
    assert pairs.sighted.tolist() == [[MOST_SIGHTINGS] * ROWS] and int(pairs.prompts[0]) == MOST_SIGHTINGS + 3
    before = pairs.shares.float()
    pairs = learn(pairs, seen("A", torch.ones(1, ROWS), numbers(ROWS, WIDTH)))
    grown = before + (255 - before) / (MOST_SIGHTINGS + 1)
    assert torch.allclose(pairs.shares.float(), grown, atol=0.51)


@given(st.integers(0, 10_000))
def test_coefficients_of_one_byte_are_within_a_254th_of_the_largest(seed: int) -> None:
    basis = make_basis(numbers(40, WIDTH, seed=seed), WIDTH)
    differences = numbers(ROWS, WIDTH, seed=seed + 1) * 10 ** float(numbers(1, seed=seed))
    sighting = seen("A", torch.full((1, ROWS), 0.5), basis.coefficients(differences))
    pairs = learn(ChunkPairs.empty(ROWS, basis), sighting)
    assert pairs.coefficients.dtype is torch.int8
    bound = basis.coefficients(differences).abs().amax(dim=1, keepdim=True) / 254 * WIDTH**0.5
    assert ((dense(pairs, "A", basis) - differences).norm(dim=1, keepdim=True) <= bound * 1.01 + 1e-6).all()


@given(st.integers(0, 10_000))
def test_pairs_go_with_any_witness(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    pairs = ChunkPairs.empty(ROWS, EXACT)
    for _ in range(6):
        names = "".join(chr(97 + int(index)) for index in torch.randperm(6, generator=chance)[:2])
        mass = torch.rand(2, ROWS, generator=chance)
        pairs = learn(pairs, seen(names, mass, torch.rand(ROWS, WIDTH, generator=chance)))
    for gone in "abcdef":
        left = without(pairs, gone)
        assert gone not in left.sources
        kept = [name for name, known in zip(pairs.antecedents, pairs.witnesses, strict=True) if gone not in known]
        assert list(left.antecedents) == [name for name in kept if name != gone]
        for name in left.antecedents:
            both = (compose_pairs(pairs, (name,), RIGHT), compose_pairs(left, (name,), RIGHT))
            assert (both[0] is None) == (both[1] is None)
            assert both[0] is None or torch.equal(dense(pairs, name), dense(left, name))
    assert without(pairs, "C").antecedents == ()


def test_a_pair_is_learnt_from_a_bounded_number_of_chunks() -> None:
    pairs, mass = ChunkPairs.empty(ROWS, EXACT), torch.full((1, ROWS), 0.5)
    for index in range(MOST_WITNESSES + 10):
        pairs = learn(pairs, replace(seen("A", mass, numbers(ROWS, WIDTH)), witnesses=frozenset({"A", f"w{index}"})))
    assert len(pairs.witnesses[0]) == MOST_WITNESSES and int(pairs.prompts[0]) == MOST_WITNESSES - 1


@pytest.mark.parametrize("antecedents", [3, MOST_ANTECEDENTS, 40])
@pytest.mark.parametrize("most", [10, 300, 2000, 100_000])
def test_bytes_and_entries_a_row_are_bounded(antecedents: int, most: int) -> None:
    basis = make_basis(numbers(40, WIDTH), 8)
    pairs = ChunkPairs.empty(ROWS, basis)
    for index in range(antecedents):
        mass = torch.full((1, ROWS), (index + 1) / (antecedents + 1))
        sighting = PairSighting(
            (f"a{index}",), torch.arange(ROWS), numbers(ROWS, 8), mass, mass, frozenset({f"a{index}"})
        )
        pairs = learn(pairs, sighting)
    kept = bounded(pairs, most)
    entries = torch.zeros(ROWS, dtype=torch.int64).index_add_(
        0, kept.places.long() % ROWS, torch.ones(len(kept.places), dtype=torch.int64)
    )
    assert int(entries.max()) <= MOST_ANTECEDENTS
    assert kept.bytes <= most or len(kept.places) == 0
    # Half of the bytes at most are for what each antecedent takes however few its entries.
    assert len(kept.antecedents) <= max(1, most // 2 // (2 * ROWS + ID_BYTES))
    if len(kept.antecedents):
        assert f"a{antecedents - 1}" in kept.antecedents, "what is attended most stays"
    if antecedents <= MOST_ANTECEDENTS and len(kept.places) < len(kept.antecedents) * ROWS:
        assert kept.bytes + 8 + 4 + 4 + 1 > most, "another entry, its place, scale and count, would have had no room"
    assert bool((kept.places[1:] > kept.places[:-1]).all())
    if most == 100_000:
        best = {f"a{index}" for index in range(antecedents)[-MOST_ANTECEDENTS:]}
        assert {kept.antecedents[place // ROWS] for place in kept.places.tolist()} == best
        assert entries.tolist() == [len(best)] * ROWS, "there is room, so each row keeps its best"


def test_another_basis_takes_over_what_it_can_hold() -> None:
    first, second = make_basis(numbers(40, WIDTH), WIDTH), make_basis(numbers(40, WIDTH, seed=5), WIDTH)
    differences = numbers(ROWS, WIDTH, seed=9)
    sighting = seen("A", torch.full((1, ROWS), 0.5), first.coefficients(differences))
    pairs = learn(learn(learn(ChunkPairs.empty(ROWS, first), sighting), sighting), sighting)
    assert pairs.counts.tolist() == [3] * ROWS
    other = turned(pairs, first.directions @ second.directions.T, second.id)
    assert other.basis == second.id != first.id
    assert torch.allclose(dense(other, "A", second), differences, atol=0.1)
    assert other.counts.tolist() == [1] * ROWS
    assert sightings_of(other, ["A"]) == [3] and torch.equal(other.shares, pairs.shares)


@given(st.integers(0, 10_000))
def test_what_is_cut_is_worth_least(seed: int) -> None:
    """An entry is worth its share times how often its antecedent was met."""
    chance = torch.Generator().manual_seed(seed)
    pairs = ChunkPairs.empty(ROWS, EXACT)
    for name in "aabcc":
        pairs = learn(pairs, seen(name, torch.rand(1, ROWS, generator=chance), numbers(ROWS, WIDTH)))
    worth = {
        place: int(pairs.prompts[place // ROWS]) * int(pairs.shares[place // ROWS, place % ROWS])
        for place in pairs.places.tolist()
    }
    entry = WIDTH * 4 + 4 + 4 + 1
    kept = set(bounded(pairs, pairs.bytes - 6 * entry).places.tolist())
    assert len(kept) == len(worth) - 6
    assert min(worth[place] for place in kept) >= max(worth[place] for place in worth if place not in kept)
    assert bounded(pairs, pairs.bytes) is pairs
