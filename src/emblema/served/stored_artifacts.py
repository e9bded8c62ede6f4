"""What a store has for one plan of a request."""

from collections.abc import Iterator, Mapping

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.link.prompt import Prompt, Segment
from emblema.served.model_spec import ModelSpec
from emblema.served.stored import StoreMemory
from emblema.store.store import TenantStore


class StoredArtifacts:
    """The stored artifacts of one plan: the prompt's own patches are looked up together, and each is read once.

    Args:
        prompt: the prompt.
        spec: of the model.
        store: the tenant's.
        memory: of that store.
        held: the prompt's chunks that are stored, and whether any artifact was made of each.
    """

    def __init__(
        self,
        prompt: Prompt,
        spec: ModelSpec,
        store: TenantStore,
        memory: StoreMemory,
        held: Mapping[str, bool],
    ) -> None:
        self._store, self._held = store, held
        # The keys that its chunks' patches may have.
        self._asked = {
            ArtifactKey(spec.fingerprint, chunk.id, before)
            for _, chunk, before in chunks_after(prompt)
            if held.get(chunk.id)
        }
        self._look_up = lambda: memory.held_artifacts(store, self._asked)
        self._here: frozenset[ArtifactKey] | None = None
        self._read: dict[ArtifactKey, Patch | None] = {}

    def find(self, key: ArtifactKey) -> Patch | None:
        """Return the artifact of a key; None where it is not stored."""
        if not self._held.get(key.chunk):
            return None
        if self._here is None:
            self._here = self._look_up()
        if key in self._asked and key not in self._here:
            return None
        if key not in self._read:
            self._read[key] = self._store.find_patch(key)
        return self._read[key]


def chunks_after(prompt: Prompt) -> Iterator[tuple[Segment, Chunk, tuple[str, ...]]]:
    """Yield each chunk with its place and the ids of the chunks before it, as `Prompt.antecedents` of all of them."""
    before: tuple[str, ...] = ()
    for segment, chunk in prompt.chunk_segments:
        yield segment, chunk, before
        before = (*before, chunk.id)
