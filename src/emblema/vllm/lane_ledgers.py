"""What was measured of lanes, by tenant: read where requests are planned, and added to where prompts were compared."""

import time
from collections import OrderedDict

from emblema.link.lanes import Lane
from emblema.link.policy.certificate import Sample
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.policy import Policy
from emblema.session.fidelity_logs import FidelityLogs
from emblema.store import Store
from emblema.vllm.step_metadata import ShadowOutcome

REFRESH_SECONDS = 1.0
"""How long a tenant's measurements are taken to be what other processes have written too."""
MOST_TENANTS = 1024
"""Tenants whose measurements are in memory, at most: clients choose their names."""


class LaneLedgers:
    """The measurements of a store's tenants, shared by all servers on its folder; for the thread that reads the store.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._logs = store, FidelityLogs.of_store(store)
        self._read: OrderedDict[str, float] = OrderedDict()

    def of(self, salt: bytes) -> FidelityLog:
        """Return a tenant's measurements, with those of other servers."""
        owner, now = self._store.tenant(salt).owner, time.monotonic()
        log = self._logs.of(owner)
        if now - self._read.setdefault(owner, now) >= REFRESH_SECONDS:
            self._logs.refresh(owner)
            self._read[owner] = now
        self._read.move_to_end(owner)
        while len(self._read) > MOST_TENANTS:
            self._logs.forget(self._read.popitem(last=False)[0])
        return log

    def is_certified(self, salt: bytes, model: str, lanes: frozenset[tuple[str, Lane]]) -> bool:
        """Return whether all of a tenant's lanes have a certificate, as far as is known here; any thread may ask."""
        return self._logs.of(self._store.tenant(salt).owner).is_certified(model, lanes)

    def record(
        self,
        salt: bytes,
        model: str,
        lanes: frozenset[tuple[str, Lane]],
        outcome: ShadowOutcome,
        policy: Policy,
        accepted: bool = True,
    ) -> None:
        """Add what a comparison showed to a tenant's measurements.

        Args:
            salt: of the tenant's store.
            model: fingerprint.
            lanes: kinds and lanes that it judges.
            outcome: what it showed.
            policy: bounds that it is judged by.
            accepted: whether the answer stood, or would have in a trial.
        """
        owner = self._store.tenant(salt).owner
        log = self._logs.of(owner)
        self._logs.refresh(owner)
        for kind, lane in sorted(lanes):
            log.record(model, kind, lane, Sample(outcome.kl, outcome.agrees, outcome.margin), policy, accepted=accepted)
        self._logs.save(owner)
