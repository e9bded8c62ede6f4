"""How often pictures are shown, by tenant: so many prompts share what it costs to prefill one alone."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    known: OrderedDict[str, None] = field(default_factory=OrderedDict)


class PictureSightings:
    """Counts of pictures in prompts; for one thread."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[bytes, TenantSightings] = OrderedDict()

    def observe(self, salt: bytes, chunks: Iterable[str]) -> None:
        """Add the chunks of a prompt.

        Args:
            salt: of the tenant's store.
            chunks: their ids.
        """
        tenant = self._tenants.setdefault(salt, TenantSightings())
        self._tenants.move_to_end(salt)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        names = set(chunks)
        tenant.shown = FADING * tenant.shown + len(names)
        tenant.new = FADING * tenant.new + len(names - tenant.known.keys())
        for name in sorted(names):
            tenant.known[name] = None
            tenant.known.move_to_end(name)
        while len(tenant.known) > MOST_PICTURES:
            tenant.known.popitem(last=False)

    def mean(self, salt: bytes) -> float:
        """Return how many prompts show a picture of a tenant, on average; 1 at least."""
        tenant = self._tenants.get(salt)
        return 1.0 if tenant is None else max(1.0, tenant.shown / max(1.0, tenant.new))
