"""How often rows of prompts are found again in vLLM's prefix cache, by tenant: what a prompt's pages are worth.

A linked prompt leaves no pages that later prompts find. So what the cache has of a prompt that begins like a linked one
is not what it would have: the rows with which an earlier prompt began count as found, if that one was linked.
"""

from dataclasses import dataclass, field

from emblema.latest import LatestDict
from emblema.link.policy.expectations import openings_of
from emblema.link.prompt import Prompt

FADING = 0.98
"""What a prompt still counts when the next one comes."""
UNSEEN_ROWS = 1024
"""Rows that are taken to have been computed, and found again once, before a tenant's first prompt."""
MOST_TENANTS, MOST_OPENINGS = 64, 4096
"""Of the latest: tenants, and beginnings of prompts of each."""


@dataclass(slots=True)
class TenantReuse:
    """Rows of a tenant's latest prompts, and beginnings of prompts: whether the last one that had it was linked."""

    found: float = float(UNSEEN_ROWS)
    computed: float = float(UNSEEN_ROWS)
    openings: LatestDict[bytes, bool] = field(default_factory=lambda: LatestDict(MOST_OPENINGS))


class PromptReuse:
    """Counts of rows that were found again, or would have been. One thread writes, any may read.

    Args:
        shared: whether vLLM's prefix cache is on.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._tenants: LatestDict[bytes, TenantReuse] = LatestDict(MOST_TENANTS)

    def observe(self, salt: bytes, prompt: Prompt, ready: int, linked: bool) -> None:
        """Add a prompt.

        Args:
            salt: of the tenant's store.
            prompt: the prompt.
            ready: its rows that the prefix cache has.
            linked: whether rows of it are taken, so that it leaves no pages to others.
        """
        tenant = self._tenants.latest(salt, TenantReuse)
        found, known = ready, tenant.openings
        for (segment, _), opening in zip(prompt.chunk_segments, openings_of(prompt), strict=True):
            if known.get(opening):
                found = max(found, segment.stop)
            known[opening] = linked
        tenant.found = FADING * tenant.found + found
        tenant.computed = FADING * tenant.computed + prompt.tokens - found

    def uses(self, salt: bytes) -> float:
        """Return how often a computed row of a tenant is found again, as its prompts were lately."""
        tenant = self._tenants.get(salt)
        if not self._shared:
            return 0.0
        return 1.0 if tenant is None else tenant.found / max(1.0, tenant.computed)
