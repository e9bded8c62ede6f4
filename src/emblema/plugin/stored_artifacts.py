"""What a store has for one plan of a request: patches of the prompt's own, and those put together of pairs."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.pairs import ChunkPairs, met_often, sightings_of
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt, Segment
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.stored import StoreMemory
from emblema.plugin.stored_pairs import StoredPairs
from emblema.session.pair_memory import PairSettings
from emblema.session.pair_sampler import worth_of
from emblema.store.keys import ArtifactKey, ArtifactKind, orbit_key
from emblema.store.store import TenantStore


class StoredArtifacts:
    """The stored artifacts of one plan: the prompt's own patches are looked up together, and each is read once.

    Args:
        prompt: the prompt.
        spec: of the model.
        store: the tenant's.
        memory: of that store.
        held: the prompt's chunks that are stored, and whether any artifact was made of each.
        pairs: reads what is known of pairs; None where nothing is.
    """

    def __init__(
        self,
        prompt: Prompt,
        spec: ModelSpec,
        store: TenantStore,
        memory: StoreMemory,
        held: Mapping[str, bool],
        pairs: StoredPairs | None = None,
    ) -> None:
        self._store, self._held, self._pairs = store, held, pairs
        self._prompt, self._model = prompt, spec.fingerprint
        # By chunk and row, the keys that its patch may have.
        self._keys: dict[tuple[str, int], tuple[ArtifactKey, ...]] = {}
        for segment, chunk, before in chunks_after(prompt):
            if held.get(chunk.id):
                own = ArtifactKey(spec.fingerprint, chunk.id, before)
                self._keys[chunk.id, segment.start] = (own, orbit_key(spec.fingerprint, chunk.id, before))
        self._asked = {key for keys in self._keys.values() for key in keys}
        self._here = memory.held_artifacts(store, self._asked)
        self._read: dict[ArtifactKey, Artifact | None] = {}

    def serve(self, chunk: str, start: int) -> bool:
        """Return whether a chunk has a patch, or an orbit patch, for what is before it at a row."""
        return any(key in self._here for key in self._keys.get((chunk, start), ()))

    def find(self, key: ArtifactKey) -> Artifact | None:
        """Return the artifact of a key; None where it is not stored."""
        if not self._held.get(key.chunk) or (key in self._asked and key not in self._here):
            return None
        if key not in self._read:
            self._read[key] = self._compose(key) if key.kind is ArtifactKind.PAIRS else self._store.find_artifact(key)
        return self._read[key]

    @cached_property
    def _composed(self) -> dict[int, ArtifactKey]:
        """By row, the key of each chunk's patch that is put together."""
        return {
            segment.start: ArtifactKey(self._model, chunk.id, before, ArtifactKind.PAIRS)
            for segment, chunk, before in chunks_after(self._prompt)
            if segment.start
        }

    @cached_property
    def _known(self) -> dict[str, ChunkPairs]:
        """What is known of the chunks' pairs, read once."""
        asked = [key.chunk for key in self._composed.values() if key.antecedents and self._held.get(key.chunk)]
        return {} if self._pairs is None or not asked else self._pairs.find(self._store, asked)

    def _compose(self, key: ArtifactKey) -> Artifact | None:
        known = self._known.get(key.chunk)
        composed = None if self._pairs is None or known is None else self._pairs.compose(self._store, key, known)
        return None if composed is None else composed.patch

    def knows_pairs(self, key: ArtifactKey) -> bool:
        """Return whether a chunk was met often enough with each of its antecedents; see `PolicyInputs`."""
        known = self._known.get(key.chunk)
        return known is not None and met_often(known, key.antecedents, PairSettings().sightings)

    def read_shares(self, policy: Policy) -> dict[int, float]:
        """Return the share of the rows of each chunk that would be read, by where it starts."""
        return {
            start: policy.pair_share if self.knows_pairs(key) else policy.query_share
            for start, key in self._composed.items()
        }

    @property
    def worth(self) -> float:
        """What the prompt would teach of pairs, if its rows were computed; see `worth_of`."""
        keys = [key for key in self._composed.values() if self._pairs is not None and key.antecedents]
        known = self._known
        met = (min(sightings_of(known[key.chunk], key.antecedents)) if key.chunk in known else 0 for key in keys)
        return worth_of(met)


def chunks_after(prompt: Prompt) -> Iterator[tuple[Segment, Chunk, tuple[str, ...]]]:
    """Yield each chunk with its place and the ids of the chunks before it, as `Prompt.antecedents` of all of them."""
    before: tuple[str, ...] = ()
    for segment, chunk in prompt.chunk_segments:
        yield segment, chunk, before
        before = (*before, chunk.id)
