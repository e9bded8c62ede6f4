"""Load vLLM's general plugins when pytest starts, as each process of an engine does: `pytest -p loaded_plugins`."""

import os


def pytest_configure() -> None:
    """Load them, and look whether ours is among them where it should be.

    Raises:
        RuntimeError: it is there though no plugin is wanted, or is not there.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    wanted, there = os.environ.get("VLLM_PLUGINS") is None, "EmblemaConnector" in KVConnectorFactory._registry
    if wanted != there:
        raise RuntimeError(f"the plugin is wanted: {wanted}, loaded: {there}")
