"""vLLM's connector interface for encoder outputs: stored ones take the place of the encoder."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.ec_transfer import get_ec_transfer, has_ec_transfer
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole


@dataclass
class EncoderOutputs(ECConnectorMetadata):
    """A step's message beside the encoder; vLLM needs one, and it says nothing."""


class EmblemaEncoderConnector(ECConnectorBase):
    """Stored encoder outputs, in place of running the encoder; needs `EmblemaConnector`.

    A chunk is stored with its encoder output. The scheduler is told of none and schedules every encoder run: whose
    picture it is, vLLM's interface does not say. The worker leaves the runs out whose outputs are staged for the
    request, and puts them into the runner's encoder cache here.

    Attributes:
        outputs: vLLM's encoder cache, on a worker's side.
    """

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self.outputs: Mapping[str, Tensor] = {}
        self._device = torch.device(vllm_config.device_config.device or "cpu")
        self._handed: dict[str, Tensor] = {}
        self._count = 0

    # scheduler side

    def has_cache_item(self, identifier: str) -> bool:
        return False

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Do nothing: no encoder output is promised."""

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        return EncoderOutputs()

    # worker side

    def hand_over(self, identifier: str, output: Tensor) -> None:
        """Have the runner find an encoder output [media tokens, width] in the step that is about to run."""
        self._handed[identifier] = output

    def take_count(self) -> int:
        """Return how many encoder outputs were handed over since the last call."""
        count, self._count = self._count, 0
        return count

    def start_load_caches(self, encoder_cache: MutableMapping[str, Tensor], **kwargs: Any) -> None:
        self.outputs = encoder_cache
        handed, self._handed = self._handed, {}
        self._count += len(handed)
        for identifier, output in handed.items():
            if identifier not in encoder_cache:
                encoder_cache[identifier] = output.to(self._device)

    def save_caches(self, encoder_cache: Mapping[str, Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Do nothing: an output is stored with its chunk, when that is captured."""


def encoder_connector() -> EmblemaEncoderConnector | None:
    """Return this process's connector; None where the server has none."""
    connector = get_ec_transfer() if has_ec_transfer() else None
    return connector if isinstance(connector, EmblemaEncoderConnector) else None


def encoder_output(identifier: str) -> Tensor | None:
    """Return what vLLM's encoder cache has under a name, [media tokens, width]."""
    connector = encoder_connector()
    return None if connector is None else connector.outputs.get(identifier)


def hand_over(identifier: str, output: Tensor) -> None:
    """Have the runner find an encoder output in the step that is about to run, where the server has a connector."""
    connector = encoder_connector()
    if connector is not None:
        connector.hand_over(identifier, output)
