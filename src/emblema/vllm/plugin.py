"""What vLLM calls in each of its processes when it loads its plugins."""

import logging
from contextlib import suppress

_log = logging.getLogger(__name__)


def register() -> None:
    """Make the connectors known by their names; they are imported only where a server asks for them.

    A server of another vLLM that asks for none goes on without a word of this plugin but one line in its log.
    """
    try:
        from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError as error:
        _log.warning("emblema: this vLLM has no place for the plugin's connectors (%s)", error)
        return
    # A process may load its plugins more than once.
    with suppress(ValueError):
        KVConnectorFactory.register_connector("EmblemaConnector", "emblema.vllm", "EmblemaConnector")
    with suppress(ValueError):
        ECConnectorFactory.register_connector("EmblemaEncoderConnector", "emblema.vllm", "EmblemaEncoderConnector")
