"""What a decoder of transformers asks of its `past_key_values`, for tables that keep the rows of all layers alike."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from emblema.kv.layout import LayerLayout


class DecoderCache(Cache):
    """Rows of every layer, [sequences, heads, rows, width], and transformers' questions about them.

    A table of it says in `attended` how many rows a forward attends, and writes in `update`.

    Args:
        layouts: of the layers' rows.
        dtype: of the rows.
        device: of what is noted about the rows.
        devices: of each layer's rows; None where that is `device` for all.

    Attributes:
        elsewhere: the devices of layers beside `device`, each once.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        dtype: torch.dtype,
        device: torch.device | str,
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        super().__init__(layers=[])
        self.layouts = tuple(layouts)
        self.dtype, self.device = dtype, torch.device(device)
        self.devices = (self.device,) * len(self.layouts) if devices is None else tuple(devices)
        self.elsewhere = tuple(place for place in dict.fromkeys(self.devices) if place != self.device)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def attended(self) -> int:
        """Rows that a forward attends, those that it writes included."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Bytes held, unused ones included."""
        return sum(keys.nbytes + values.nbytes for keys, values in zip(self._keys, self._values, strict=True))

    def _grow(self, sequences: int, rows: int) -> None:
        """Make room for so many sequences and rows, no fewer than before; what is held is copied."""
        # Ordinary tensors even when called inside inference mode, so that any later caller may write in place.
        with torch.inference_mode(False), torch.no_grad():

            def empty(slot: tuple[int, int], device: torch.device) -> Tensor:
                return torch.zeros(sequences, slot[0], rows, slot[1], dtype=self.dtype, device=device)

            keys = [empty(layout.keys, device) for layout, device in zip(self.layouts, self.devices, strict=True)]
            values = [empty(layout.values, device) for layout, device in zip(self.layouts, self.devices, strict=True)]
            for old, new in ((self._keys, keys), (self._values, values)):
                for before, after in zip(old, new, strict=False):
                    after[: before.shape[0], :, : before.shape[2]] = before
        self._keys, self._values = keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.attended

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Return how many rows are attended, and their offset, whichever argument this release passes."""
        return self.attended, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.layouts)
