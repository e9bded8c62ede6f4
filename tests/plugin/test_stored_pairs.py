"""Pairs as a folder has them: what another process wrote is seen, and what it deleted is gone with all it taught."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emblema.kv.pairs import ChunkPairs, PairBasis, PairSighting, learn, make_basis, width_of
from emblema.plugin import stored_pairs
from emblema.plugin.request_plan import ChunkStubs, build_prompt
from emblema.plugin.stored_pairs import StoredPairs, TenantPairs, unfit_for_pairs
from emblema.session.pair_bases import FOLDER, KeptBasis, PairBases
from emblema.store import Store
from emblema.store.keys import ArtifactKey, ArtifactKind
from tests.vllm.requests import SPEC, TOKENS, put, request

NAMES = "abc"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A worker's and a planner's, on one folder that has three pictures."""
    with Store(tmp_path) as one, Store(tmp_path) as other:
        put(one, request(*NAMES))
        one.flush()
        yield one, other


def chunks() -> list[str]:
    return [chunk.id for _, chunk in build_prompt(request(*NAMES), ChunkStubs(SPEC)).chunk_segments]


def basis(seed: int = 0) -> PairBasis:
    generator = torch.Generator().manual_seed(seed)
    return make_basis(torch.randn(40, width_of(SPEC.layouts), generator=generator), 8)


def learnt(own: PairBasis, times: int = 1) -> ChunkPairs:
    """What `c` takes from `a` and, in other prompts, from `b`, at its first ten rows."""
    first, second, third = chunks()
    pairs = ChunkPairs.empty(TOKENS, own)
    for name in (first, second) * times:
        ones = torch.ones(1, 10)
        coefficients = torch.full((10, own.rank), 1.0 + (name == second))
        pairs = learn(
            pairs, PairSighting((name,), torch.arange(10), coefficients, ones, ones, frozenset((name, third)))
        )
    return pairs


def keep(store: Store, pairs: ChunkPairs, own: PairBasis) -> None:
    tenant = store.tenant()
    assert store.disk is not None
    PairBases(store.disk.path / FOLDER).save(tenant.owner, SPEC.fingerprint, KeptBasis(own, 1))
    assert tenant.put_artifact(ArtifactKey(SPEC.fingerprint, chunks()[2], kind=ArtifactKind.PAIR), pairs)
    store.flush()


def key(*before: str) -> ArtifactKey:
    return ArtifactKey(SPEC.fingerprint, chunks()[2], before, ArtifactKind.PAIRS)


def test_what_another_process_writes_is_seen(stores: tuple[Store, Store]) -> None:
    one, other = stores
    own, reader, third = basis(), StoredPairs(other, SPEC), chunks()[2]
    assert reader.find(other.tenant(), chunks()) == {}
    keep(one, learnt(own), own)
    found = reader.find(other.tenant(), chunks())
    assert list(found) == [third] and found[third].prompts.tolist() == [1, 1]
    keep(one, learnt(own, times=3), own)
    assert reader.find(other.tenant(), chunks())[third].prompts.tolist() == [3, 3]
    assert reader.find(other.tenant(b"another"), chunks()) == {}


def test_a_patch_is_put_together_from_the_antecedents_that_are_there(stores: tuple[Store, Store]) -> None:
    one, other = stores
    own, (first, second, third) = basis(), chunks()
    keep(one, learnt(own), own)
    reader, tenant = StoredPairs(other, SPEC), other.tenant()
    pairs = reader.find(tenant, [third])[third]
    for name, size in ((first, 1.0), (second, 2.0)):
        made = reader.compose(tenant, key(name), pairs)
        assert made is not None and made.witnesses == {name, third} and made.known == 10 / TOKENS
        layer = made.patch.layers[0]
        assert layer is not None and torch.allclose(layer.keys.left[:10], torch.full((10, 8), size), atol=0.02)
    assert reader.compose(tenant, key("e" * 64), pairs) is None
    assert reader.compose(tenant, replace(key(first), model="0" * 64), pairs) is None


def test_a_deletion_by_another_process_takes_all_that_the_chunk_taught(stores: tuple[Store, Store]) -> None:
    one, other = stores
    own, (first, second, third) = basis(), chunks()
    keep(one, learnt(own), own)
    reader = StoredPairs(one, SPEC)
    view = TenantPairs(reader, one.tenant)
    before = view.deletions
    assert reader.find(one.tenant(), [third])
    other.tenant().delete(first)
    assert reader.find(one.tenant(), [third]) == {}, "the file was learnt from both"
    assert view.deletions != before and view.deleted(chunks()) == {first}
    # What a worker still had in memory is not written again, nor served where it was written in between.
    stored = ArtifactKey(SPEC.fingerprint, third, kind=ArtifactKind.PAIR)
    assert not view.put_artifact(stored, learnt(own)) and view.read_artifact(stored) is None
    one.tenant().put_artifact(stored, learnt(own))
    one.flush()
    left = reader.find(one.tenant(), [third])[third]
    assert left.antecedents == (second,) and first not in left.sources


def test_pairs_on_another_basis_are_turned_or_left_alone(stores: tuple[Store, Store]) -> None:
    one, other = stores
    old, new, (first, _, third) = basis(), basis(1), chunks()
    keep(one, learnt(old), old)
    reader, tenant = StoredPairs(other, SPEC), other.tenant()
    pairs = reader.find(tenant, [third])[third]
    assert one.disk is not None
    kept = PairBases(one.disk.path / FOLDER)
    kept.save(tenant.owner, SPEC.fingerprint, KeptBasis(new, 2, old.id, old.directions @ new.directions.T))
    assert StoredPairs(other, SPEC).compose(tenant, key(first), pairs) is not None
    kept.save(tenant.owner, SPEC.fingerprint, KeptBasis(new, 3))
    assert StoredPairs(other, SPEC).compose(tenant, key(first), pairs) is None
    # A reader that knows the old basis goes on with it.
    assert reader.compose(tenant, key(first), pairs) is None
    keep(one, learnt(new), new)
    assert reader.compose(tenant, key(first), reader.find(tenant, [third])[third]) is not None


def test_what_is_remembered_is_bounded(stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = stores
    own, third = basis(), chunks()[2]
    keep(one, learnt(own), own)
    monkeypatch.setattr(stored_pairs, "MOST_BYTES", 1)
    reader = StoredPairs(other, SPEC)
    for _ in range(3):
        assert third in reader.find(other.tenant(), chunks())
        assert len(reader._read) == 1


def test_nothing_is_kept_where_heads_are_split(stores: tuple[Store, Store]) -> None:
    one, other = stores
    keep(one, learnt(basis()), basis())
    split = replace(SPEC, shards=2)
    assert unfit_for_pairs(SPEC) is None and "heads are split" in (unfit_for_pairs(split) or "")
    assert StoredPairs(other, split).find(other.tenant(), chunks()) == {}
