"""What embedded engines measured of lanes on the same folder, by tenant: read where requests are planned."""

import time
from collections import OrderedDict
from dataclasses import replace

from emblema.link.lanes import Lane, LaneVerdict
from emblema.link.policy.fidelity import FidelityLog, MeasuredLanes
from emblema.link.policy.policy import Policy
from emblema.session.fidelity_logs import FidelityLogs
from emblema.store import Store

REFRESH_SECONDS = 1.0
"""How long a tenant's measurements are taken to be what other processes have written."""
MOST_TENANTS = 1024
"""Tenants whose measurements are in memory, at most: clients choose their names."""


class LaneMeasurements:
    """The measurements of a store's tenants; for the thread that reads the store.

    Args:
        store: the store.
        model: fingerprint of the model in whose name lanes were measured.
    """

    def __init__(self, store: Store, model: str) -> None:
        self._store, self._model, self._logs = store, model, FidelityLogs.of_store(store)
        # By owner, when measurements were read.
        self._read: OrderedDict[str, float] = OrderedDict()

    def of(self, salt: bytes) -> MeasuredLanes:
        """Return what was measured of a tenant's lanes.

        An answer over patches is not held back in a serving engine until it is known how sure it is: a lane is closed
        whose certificate asks for a margin.
        """
        log, model = self._log_of(salt), self._model
        measured = log.measured(model)

        def verdict(kind: str, lane: Lane, bounds: Policy) -> LaneVerdict:
            known, own = measured.verdict(kind, lane, bounds), [(kind, lane)]
            if lane is Lane.PATCH and log.is_certified(model, own) and log.least_margin(model, own, bounds) > 0:
                return LaneVerdict(False, f"not all answers keep the bound; {known.reason}")
            return known

        return replace(measured, verdict=verdict)

    def _log_of(self, salt: bytes) -> FidelityLog:
        owner, now = self._store.tenant(salt).owner, time.monotonic()
        log = self._logs.of(owner)
        if now - self._read.setdefault(owner, now) >= REFRESH_SECONDS:
            self._logs.refresh(owner)
            self._read[owner] = now
        self._read.move_to_end(owner)
        while len(self._read) > MOST_TENANTS:
            self._logs.forget(self._read.popitem(last=False)[0])
        return log
