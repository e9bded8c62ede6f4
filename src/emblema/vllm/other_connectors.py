"""Our connector among others of a server, inside vLLM's `MultiConnector`."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorMetadata

from emblema.errors import EmblemaError
from emblema.vllm.connectors import EmblemaConnector, StepMessage

OWN, MULTI = "EmblemaConnector", "MultiConnector"
BESIDE = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""Connectors that name what they keep as vLLM's prefix cache names pages, so that rows which are not exact have names
of their own there too. Others name it by token ids, which are the same."""


def check_transfer(transfer: Any) -> None:
    """Refuse connectors of a server (vLLM's `KVTransferConfig`) with which nothing would be linked, or too much.

    Raises:
        EmblemaError: ours is not among them or not the first, one of the others has not been tried with it, or a lost
            row would fail its request.
    """
    found = None if transfer is None else transfer.kv_connector
    names = [found]
    if found == MULTI:
        names = [each.get("kv_connector") for each in transfer.kv_connector_extra_config.get("connectors", ())]
    if not names or names[0] != OWN:
        raise EmblemaError(
            f"EmblemaWorker needs {OWN} as the server's connector, or as the first one inside {MULTI}: pages are named "
            f"by it before others look at them. The server has {', '.join(map(str, names))}. Leave out "
            f"--worker-cls, or give {OWN}."
        )
    other = next((name for name in names[1:] if name not in BESIDE), None)
    if other is not None:
        raise EmblemaError(
            f"{OWN} does not work beside {other}, which could give rows that are not exact to other requests: take "
            f"it out of {MULTI}. {' and '.join(BESIDE)} work."
        )
    if transfer.kv_load_failure_policy != "recompute":
        raise EmblemaError('a lost chunk is computed again: set "kv_load_failure_policy": "recompute".')


def own_connector(connector: Any) -> EmblemaConnector | None:
    """Return our connector, which a server's is or has inside; None where it is another."""
    inside = connector.sub_connectors if isinstance(connector, MultiConnector) else [connector]
    return next((each for each in inside if isinstance(each, EmblemaConnector)), None)


def own_message(metadata: Any) -> StepMessage | None:
    """Return what our connector says of a step (vLLM's `kv_connector_metadata`); None where it says nothing."""
    inside = metadata.metadata if isinstance(metadata, MultiKVConnectorMetadata) else (metadata,)
    return next((each for each in inside if isinstance(each, StepMessage)), None)
