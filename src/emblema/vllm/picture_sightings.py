"""How often pictures are shown, by tenant: so many prompts share what it costs to prefill one alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from emblema.latest import LatestDict

FADING = 0.98
"""What a prompt still counts when the next one comes."""
UNSEEN = 8.0
"""Pictures that are taken to have been shown once before a tenant's first prompt."""
MOST_TENANTS, MOST_PICTURES = 64, 1024
"""Of the latest: tenants, and pictures of each."""


@dataclass(slots=True)
class TenantSightings:
    """What a tenant showed lately: pictures of its prompts, and how many of these were new."""

    shown: float = UNSEEN
    new: float = UNSEEN
    known: LatestDict[str, None] = field(default_factory=lambda: LatestDict(MOST_PICTURES))


class PictureSightings:
    """Counts of pictures in prompts; for one thread."""

    def __init__(self) -> None:
        self._tenants: LatestDict[bytes, TenantSightings] = LatestDict(MOST_TENANTS)

    def observe(self, salt: bytes, chunks: Iterable[str]) -> None:
        """Add the chunks of a prompt.

        Args:
            salt: of the tenant's store.
            chunks: their ids.
        """
        tenant = self._tenants.latest(salt, TenantSightings)
        names = set(chunks)
        tenant.shown = FADING * tenant.shown + len(names)
        tenant.new = FADING * tenant.new + len(names - tenant.known.keys())
        for name in sorted(names):
            tenant.known[name] = None

    def mean(self, salt: bytes) -> float:
        """Return how many prompts show a picture of a tenant, on average; 1 at least."""
        tenant = self._tenants.get(salt)
        return 1.0 if tenant is None else max(1.0, tenant.shown / max(1.0, tenant.new))
