"""Look-ups in the store while one prompt is linked: each made once and kept, so that a plan finds what it names."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from emblema.kv.artifacts import Artifact
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.link.taken_rows import Resources
from emblema.store.keys import ArtifactKey

POOLED = 32
"""How many items' directions are pooled at most."""


class LinkContext:
    """Look-ups of one link. Artifacts formed meanwhile are added, and kept even if the store evicts them.

    Args:
        stored: look-ups in the store.
        rows: canonical rows of the prompt's chunks, by id.
        pool: keys of the patches formed so far, whose directions `basis-M` pools.
    """

    def __init__(self, stored: Knowledge, rows: Mapping[str, KVRows], pool: Iterable[ArtifactKey] = ()) -> None:
        self._stored, self._rows, self._pool = stored, rows, tuple(pool)
        self._artifacts: dict[ArtifactKey, Artifact | None] = {}
        self._keys: dict[str, tuple[ArtifactKey, ...]] = {}
        self._prefixes: list[PrefixMatch | None] = []

    @property
    def knowledge(self) -> Knowledge:
        """The same look-ups, each made once, for strategies."""
        # Not kept: it holds this, and what is looked up would outlive the link until the next collection of cycles.
        return replace(
            self._stored,
            find_artifact=self.artifact,
            find_prefix=self._prefix,
            others=lambda key: len(self.others(key)),
            artifact_keys=self._artifact_keys,
        )

    def artifact(self, key: ArtifactKey) -> Artifact | None:
        """Return the patch or other artifact of a key, or None."""
        if key not in self._artifacts:
            self._artifacts[key] = self._stored.find_artifact(key)
        return self._artifacts[key]

    def others(self, key: ArtifactKey) -> list[Patch]:
        """Return patches of other items than a key's, of the same model, the latest first, `POOLED` at most."""
        found: list[Patch] = []
        for other in reversed(self._pool):
            if other.model == key.model and other.chunk != key.chunk and len(found) < POOLED:
                patch = self.artifact(other)
                found += [patch] if isinstance(patch, Patch) else []
        return found

    def add(self, artifacts: Mapping[ArtifactKey, Artifact]) -> None:
        """Add artifacts that were just formed."""
        self._artifacts.update(artifacts)

    @property
    def resources(self) -> Resources:
        """All that was found, for the executor."""
        artifacts = {key: artifact for key, artifact in self._artifacts.items() if artifact is not None}
        prefixes = {prefix.entry: prefix.table for prefix in self._prefixes if prefix is not None}
        return Resources(artifacts, prefixes, self._rows)

    def _prefix(self, prompt: Prompt) -> PrefixMatch | None:
        if not self._prefixes:
            self._prefixes.append(self._stored.find_prefix(prompt))
        return self._prefixes[0]

    def _artifact_keys(self, chunk: str) -> tuple[ArtifactKey, ...]:
        if chunk not in self._keys:
            self._keys[chunk] = tuple(self._stored.artifact_keys(chunk))
        return self._keys[chunk]
