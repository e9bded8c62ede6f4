"""What the store said while one prompt is linked: looked up once and held to the end, so a plan finds what it named."""

from collections.abc import Callable, Iterable, Mapping

from emblema.kv.artifacts import Artifact
from emblema.kv.layout import KVRows, LayerLayout
from emblema.kv.patch import Patch
from emblema.link.assemble import Resources
from emblema.link.policy.policy import PolicyInputs
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.store.keys import PatchKey

POOLED = 32
"""How many items' directions are pooled at most."""


class LinkContext:
    """Look-ups of one link. Patches formed meanwhile are added; the store may evict them, this link still has them.

    Args:
        model: the model's fingerprint.
        layouts: per layer, how rows are kept.
        find_artifact: asks the store for a patch or another artifact.
        find_prefix: asks for the longest exact prefix of a prompt, and its rows.
        rows: canonical rows of the prompt's chunks, by id.
        pool: keys of the patches formed so far, whose directions `basis-M` pools.
        patch_keys: asks for the keys of a chunk's patches.
        policy_inputs: what `auto` decides by.
    """

    def __init__(
        self,
        model: str,
        layouts: tuple[LayerLayout, ...],
        find_artifact: Callable[[PatchKey], Artifact | None],
        find_prefix: Callable[[Prompt], tuple[PrefixMatch, KVRows] | None],
        rows: Mapping[str, KVRows],
        pool: Iterable[PatchKey] = (),
        patch_keys: Callable[[str], Iterable[PatchKey]] = lambda chunk: (),
        policy_inputs: PolicyInputs | None = None,
    ) -> None:
        self._rows, self._pool = rows, tuple(pool)
        self._find_artifact, self._find_prefix = find_artifact, find_prefix
        self._artifacts: dict[PatchKey, Artifact | None] = {}
        self._prefixes: dict[str, KVRows] = {}
        self._match: PrefixMatch | None = None
        self._asked = False
        self._patch_keys: dict[str, tuple[PatchKey, ...]] = {}
        self._find_keys = patch_keys
        self.knowledge = Knowledge(
            model,
            layouts,
            self.artifact,
            self.prefix,
            lambda key: len(self.others(key)),
            self.keys,
            policy_inputs or PolicyInputs(),
        )

    def artifact(self, key: PatchKey) -> Artifact | None:
        """The patch or other artifact of a key, or None."""
        if key not in self._artifacts:
            self._artifacts[key] = self._find_artifact(key)
        return self._artifacts[key]

    def keys(self, chunk: str) -> tuple[PatchKey, ...]:
        """Keys of a chunk's stored patches."""
        if chunk not in self._patch_keys:
            self._patch_keys[chunk] = tuple(self._find_keys(chunk))
        return self._patch_keys[chunk]

    def others(self, key: PatchKey) -> list[Patch]:
        """Patches of other items than a key's, of the same model, the latest first, as many as are pooled at most."""
        found: list[Patch] = []
        for other in reversed(self._pool):
            if other.model == key.model and other.chunk != key.chunk and len(found) < POOLED:
                patch = self.artifact(other)
                found += [patch] if isinstance(patch, Patch) else []
        return found

    def prefix(self, prompt: Prompt) -> PrefixMatch | None:
        """The longest exact prefix of the one prompt under way, or None."""
        if not self._asked:
            found = self._find_prefix(prompt)
            self._asked = True
            if found is not None:
                self._match = found[0]
                self._prefixes[found[0].entry] = found[1]
        return self._match

    def add(self, artifacts: Mapping[PatchKey, Artifact]) -> None:
        """Take in artifacts just formed."""
        self._artifacts.update(artifacts)

    @property
    def resources(self) -> Resources:
        """All that was found, for the executor."""
        artifacts = {key: artifact for key, artifact in self._artifacts.items() if artifact is not None}
        return Resources(artifacts, self._prefixes, self._rows)
