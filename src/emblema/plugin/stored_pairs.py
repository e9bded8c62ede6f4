"""Pairs as a store's folder has them by now: workers write them, the scheduler's side plans by them.

What another process wrote is seen, and what was learnt where a chunk was that another process deleted is not.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from emblema.kv.artifacts import Artifact
from emblema.kv.pairs import ChunkPairs, Composed, compose_pairs, width_of, without
from emblema.plugin.model_spec import ModelSpec
from emblema.session.pair_bases import FOLDER, KeptBasis, PairBases
from emblema.store import Store
from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.store.store import TenantStore

MOST_BYTES = 128 * 2**20
"""Bytes of pairs that are remembered; all are forgotten where there would be more."""
MOST_BASES = 16
NOT_SPLIT = "the model's heads are split over workers, each of which sees only its own heads' attention"


def unfit_for_pairs(spec: ModelSpec) -> str | None:
    """Return why no pairs are kept of a model; None if they are."""
    return NOT_SPLIT if spec.shards > 1 else None


class StoredPairs:
    """Reads pairs of one model; for one thread.

    Args:
        store: on the folder that all sides share.
        spec: of the model; patches are composed for its device.
    """

    def __init__(self, store: Store, spec: ModelSpec) -> None:
        self._store, self._spec = store, spec
        self.bases = PairBases(None if store.disk is None else store.disk.path / FOLDER)
        # By owner and chunk: when a file was written and how large it is, and what it holds.
        self._read: dict[tuple[str, str], tuple[tuple[float, int], ChunkPairs]] = {}
        # What was found since the folder changed last.
        self._version: object = None
        self._found: dict[tuple[str, str], ChunkPairs | None] = {}
        self._unknown: set[tuple[str, str]] = set()
        self._kept: OrderedDict[str, tuple[KeptBasis, tuple[tuple[Tensor, Tensor], ...]]] = OrderedDict()

    def key(self, chunk: str) -> ArtifactKey:
        """Return the key of a chunk's pairs."""
        return ArtifactKey(self._spec.fingerprint, chunk, kind=ArtifactKind.PAIR)

    def find(self, tenant: TenantStore, chunks: Iterable[str]) -> dict[str, ChunkPairs]:
        """Return what is known of some chunks, without all that was learnt where a chunk was that is gone."""
        if unfit_for_pairs(self._spec) is not None:
            return {}
        asked = list(dict.fromkeys(chunks))
        version = self._store.version
        if version is None or version != self._version:
            self._version = version
            self._found.clear()
            self._unknown.clear()
        unknown = [chunk for chunk in asked if (tenant.owner, chunk) not in self._found]
        if unknown and sum(pairs.bytes for _, pairs in self._read.values()) > MOST_BYTES:
            self._read.clear()
            self._found.clear()
            unknown = asked
        if unknown:
            found = self._look_up(tenant, unknown)
            self._found |= {(tenant.owner, chunk): found.get(chunk) for chunk in unknown}
        answers = ((chunk, self._found[tenant.owner, chunk]) for chunk in asked)
        return {chunk: pairs for chunk, pairs in answers if pairs is not None}

    def compose(self, tenant: TenantStore, key: ArtifactKey, pairs: ChunkPairs) -> Composed | None:
        """Return the patch of a chunk after those of some antecedents that are known; None where none is.

        Args:
            tenant: the tenant's store.
            key: of the kind PAIRS, with the antecedents that are there.
            pairs: what is known of the chunk.
        """
        kept = self._basis_of(tenant.owner, pairs)
        if kept is None or key.model != self._spec.fingerprint:
            return None
        basis, right = kept
        held = basis.hold(pairs)
        return None if held is None else compose_pairs(held, key.antecedents, right)

    def gone(self, tenant: TenantStore, chunks: Iterable[str]) -> frozenset[str]:
        """Return those of some chunks that the folder has no more; without a folder, those that were deleted."""
        names = frozenset(chunks)
        if tenant.disk is None or not names:
            return tenant.deleted(names)
        entries = tenant.disk.entries_of(sorted(names))
        return names - {entry.id for entry in entries if entry.owner == tenant.owner}

    def _look_up(self, tenant: TenantStore, chunks: Sequence[str]) -> dict[str, ChunkPairs]:
        found = {chunk: pairs for chunk in chunks if (pairs := self._read_pairs(tenant, chunk)) is not None}
        gone = self.gone(tenant, {name for chunk, pairs in found.items() for name in (chunk, *pairs.sources)})
        for chunk, pairs in found.items():
            for name in pairs.sources & gone:
                found[chunk] = pairs = without(pairs, name)
        return {chunk: pairs for chunk, pairs in found.items() if chunk not in gone}

    def _read_pairs(self, tenant: TenantStore, chunk: str) -> ChunkPairs | None:
        """Return a chunk's pairs as they are stored, read again where they were written again."""
        key, name = self.key(chunk), (tenant.owner, chunk)
        stamp = tenant.written(key)
        if stamp is None:
            self._read.pop(name, None)
            return None
        if name not in self._read or self._read[name][0] != stamp:
            found = tenant.read_artifact(key)
            if not isinstance(found, ChunkPairs):
                return None
            self._read[name] = stamp, found
        return self._read[name][1]

    def _basis_of(self, owner: str, pairs: ChunkPairs) -> tuple[KeptBasis, tuple[tuple[Tensor, Tensor], ...]] | None:
        """Return the basis that pairs are on, or can be turned to, with its factors; None where it is not known."""
        kept = self._kept.get(owner)
        if kept is None or kept[0].hold(pairs) is None:
            if (owner, pairs.basis) in self._unknown:
                return None
            basis = self.bases.load(owner, self._spec.fingerprint, width_of(self._spec.layouts))
            if basis is None or basis.hold(pairs) is None:
                self._unknown.add((owner, pairs.basis))
                return None
            right = basis.basis.right_factors(self._spec.layouts, self._spec.dtype)
            # Patches on one basis share its tensors, so that they are added by one product.
            kept = self._kept[owner] = basis, right
        self._kept.move_to_end(owner)
        while len(self._kept) > MOST_BASES:
            self._kept.popitem(last=False)
        return kept


class TenantPairs:
    """One tenant's pairs, as a `PairStore`: what is gone from the folder counts as deleted.

    Args:
        pairs: reads them.
        tenant: returns the tenant's store.
    """

    def __init__(self, pairs: StoredPairs, tenant: Callable[[], TenantStore]) -> None:
        self._pairs, self._tenant = pairs, tenant

    @property
    def deletions(self) -> object:
        version = self._tenant().parent.version
        # Another value each time where it is not known.
        return object() if version is None else version

    def deleted(self, chunks: Iterable[str]) -> frozenset[str]:
        return self._pairs.gone(self._tenant(), chunks)

    def written(self, key: ArtifactKey) -> object:
        return self._tenant().written(key)

    def read_artifact(self, key: ArtifactKey) -> Artifact | None:
        return self._pairs.find(self._tenant(), [key.chunk]).get(key.chunk)

    def flush(self) -> None:
        self._tenant().flush()

    def put_artifact(self, key: ArtifactKey, artifact: Artifact) -> bool:
        """Keep pairs, unless a chunk is gone that they were learnt from; returns whether they were kept."""
        if isinstance(artifact, ChunkPairs) and self.deleted((key.chunk, *artifact.sources)):
            return False
        return self._tenant().put_artifact(key, artifact)
