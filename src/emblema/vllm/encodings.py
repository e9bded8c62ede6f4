"""What the encoder made of kept pictures, handed to vLLM in place of running it again: an encoder-cache connector.

A chunk is captured with its encoder output. Whether it is there depends on the tenant, whom vLLM's interface does not
name; so the scheduler says for which request it asks. The output itself goes along with the step: what was promised
cannot be lost on the way, as vLLM has no other way to get it by then.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole

Find = Callable[[str, str], Tensor | None]
"""The kept encoder output of a request's picture by vLLM's digest of it."""


@dataclass
class Handed(ECConnectorMetadata):
    """Encoder outputs by vLLM's digest of the picture, for one step."""

    outputs: dict[str, Tensor] = field(default_factory=dict)


class EmblemaEncoderConnector(ECConnectorBase):
    """Encoder outputs from the store; needs `EmblemaConnector` and `LinkingScheduler` beside it.

    Attributes:
        find: set by the scheduler.
        count: told of each output that is handed over.
        asking: id of the request whose pictures are being scheduled.
        outputs: vLLM's encoder cache, on the side of the pages.
    """

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self.find: Find | None = None
        self.count: Callable[[], None] = lambda: None
        self.asking: str | None = None
        self.outputs: Mapping[str, Tensor] = {}
        self._device = torch.device(vllm_config.device_config.device or "cpu")
        self._found: dict[str, Tensor] = {}
        self._handed: dict[str, Tensor] = {}

    # the scheduler's side

    def has_cache_item(self, identifier: str) -> bool:
        if self.find is None or self.asking is None:
            return False
        output = self.find(self.asking, identifier)
        if output is not None:
            self._found[identifier] = output
        return output is not None

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        identifier = request.mm_features[index].identifier
        if identifier in self._found:
            self._handed[identifier] = self._found.pop(identifier)
            self.count()

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        handed, self._handed = self._handed, {}
        self._found.clear()
        return Handed(handed)

    # the pages' side

    def start_load_caches(self, encoder_cache: MutableMapping[str, Tensor], **kwargs: Any) -> None:
        self.outputs = encoder_cache
        message = self._get_connector_metadata()
        for identifier, output in message.outputs.items() if isinstance(message, Handed) else ():
            if identifier not in encoder_cache:
                encoder_cache[identifier] = output.to(self._device)

    def save_caches(self, encoder_cache: Mapping[str, Tensor], mm_hash: str, **kwargs: Any) -> None:
        """An output is kept with its chunk, when that is captured."""
