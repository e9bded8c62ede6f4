"""What vLLM calls in each of its processes when it loads its plugins."""

from contextlib import suppress


def register() -> None:
    """Make the connector known by its name; it is imported only where a server asks for it."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # A process may load its plugins more than once.
    with suppress(ValueError):
        KVConnectorFactory.register_connector("EmblemaConnector", "emblema.vllm.connector", "EmblemaConnector")
