"""Tenants, their files, caches and collections, beside vLLM's engine."""

from prometheus_client import REGISTRY, CollectorRegistry

from emblema.plugin.engine_host import EngineHost
from emblema.serve.settings import ServeSettings
from emblema.vllm.collections import StoredCollections
from emblema.vllm.dialect import VLLM
from emblema.vllm.metrics import SharedNames


class VllmHost(EngineHost):
    """What the routes need, beside vLLM's engine.

    Args:
        settings: of the server.
        own_key: whether vLLM itself asks for a key.
        registry: of vLLM's metrics.
        shards: workers that the model's heads are split over.

    Raises:
        EmblemaError: others would be let in without a key, or two kinds of keys would be asked for.
    """

    collections: StoredCollections

    def __init__(
        self, settings: ServeSettings, own_key: bool, registry: CollectorRegistry = REGISTRY, shards: int = 1
    ) -> None:
        super().__init__(settings, VLLM, own_key, registry, shards)
        registry.register(SharedNames(registry))
        self.collections = StoredCollections(settings.folder, self.picture)
