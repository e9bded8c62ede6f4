"""Look-ups in the store while one prompt is linked: each made once and kept, so that a plan finds what it names."""

from collections.abc import Mapping
from dataclasses import replace

from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.link.taken_rows import Resources


class LinkContext:
    """Look-ups of one link. Patches formed meanwhile are added, and kept even if the store evicts them.

    Args:
        stored: look-ups in the store.
        rows: canonical rows of the prompt's chunks, by id.
        patches: that the prompt brings along, and the store does not have.
    """

    def __init__(
        self, stored: Knowledge, rows: Mapping[str, KVRows], patches: Mapping[ArtifactKey, Patch] | None = None
    ) -> None:
        self._stored, self._rows = stored, rows
        self._patches: dict[ArtifactKey, Patch | None] = dict(patches or {})
        self._prefixes: list[PrefixMatch | None] = []

    @property
    def knowledge(self) -> Knowledge:
        """The same look-ups, each made once, for strategies."""
        # Not kept: it holds this, and what is looked up would outlive the link until the next collection of cycles.
        return replace(self._stored, find_patch=self.patch, find_prefix=self._prefix)

    def patch(self, key: ArtifactKey) -> Patch | None:
        """Return the patch of a key, or None."""
        if key not in self._patches:
            self._patches[key] = self._stored.find_patch(key)
        return self._patches[key]

    def add(self, patches: Mapping[ArtifactKey, Patch]) -> None:
        """Add patches that were just formed."""
        self._patches.update(patches)

    @property
    def resources(self) -> Resources:
        """All that was found, for the executor."""
        patches = {key: patch for key, patch in self._patches.items() if patch is not None}
        prefixes = {prefix.entry: prefix.table for prefix in self._prefixes if prefix is not None}
        return Resources(patches, prefixes, self._rows)

    def _prefix(self, prompt: Prompt) -> PrefixMatch | None:
        if not self._prefixes:
            self._prefixes.append(self._stored.find_prefix(prompt))
        return self._prefixes[0]
