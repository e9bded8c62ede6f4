"""Ray Serve's router of requests, by media. An exception in a router hangs its request, so none leaves this one."""

import logging
import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from emblema.serve.ray.placement import RoutedRequest, SetAffinity

_LOG = logging.getLogger("emblema.serve.ray")
ROUTED = "routed"
"""Name of the argument of a replica's method in which a request's media are."""
MEDIA = "media"
"""Name of the number of media that a replica holds, in what it tells routers; it is told once its memory is full."""


class MediaAffinityRouter(RequestRouter):
    """Names replicas for a request by its media; the two least busy of a draw where that fails.

    Ray asks the replicas in the order in which they are named until one accepts.
    """

    placement: SetAffinity[str]
    failures: int
    _named: dict[str, ReplicaID]

    def initialize_state(self, **options: Any) -> None:
        """Take what `RequestRouterConfig(request_router_kwargs=…)` says: options of `SetAffinity`."""
        self.failures, self._named = 0, {}
        self.placement = SetAffinity(**options)
        self._set_replicas()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._set_replicas()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._set_replicas()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        try:
            named = self.placement.rank(routed(pending_request), self._load)
            chosen = [[by_id[name]] for name in named if name in by_id]
        except Exception as error:
            chosen = []
            self._note(error)
        # The policy's replicas may all be full or just gone: two others are asked after them.
        others = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        return [*chosen, others]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        try:
            self.placement.note(routed(pending_request), replica_id.unique_id)
        except Exception as error:
            self._note(error)

    def _set_replicas(self) -> None:
        # Ray updates replicas before it has given this router its options.
        if hasattr(self, "placement"):
            try:
                self._named = {replica.unique_id: replica for replica in self.curr_replicas}
                self.placement.set_replicas(list(self._named))
                self._bound()
            except Exception as error:
                self._note(error)

    def _bound(self) -> None:
        """Take how many media each replica holds, which replicas tell from time to time."""
        for identity, replica in self.curr_replicas.items():
            media = (replica.routing_stats or {}).get(MEDIA)
            if isinstance(media, int) and media > 0:
                self.placement.places.bound(identity.unique_id, media)

    def _load(self, name: str) -> float:
        replica = self._named.get(name)
        return float(self.replica_queue_len_cache.get(replica) or 0) if replica is not None else 0.0

    def _note(self, error: Exception) -> None:
        """Count a failure; log the first and every thousandth."""
        if self.failures % 1_000 == 0:
            _LOG.exception("the router fell back to two choices", exc_info=error)
        self.failures += 1


def routed(pending_request: PendingRequest | None) -> RoutedRequest:
    """Return what is known of a request that waits."""
    found = None if pending_request is None else pending_request.kwargs.get(ROUTED)
    return found if isinstance(found, RoutedRequest) else RoutedRequest()
