"""Mean keys and values of clusters on the device, in four and eight bits around the layer's own centre.

What is retrieved by and what is attended are approximations of members anyhow; the exact means stay on the host. The
centre is what all keys of a layer have in common, in many models much more than what tells them apart; it is taken out
before rounding. Each head of a part, and each head of the values, has a scale of its own.
"""

import torch
from torch import Tensor

KEY_MOST, VALUE_MOST, SCALES = 7, 127, torch.bfloat16
UPWARD = 1 + 2**-7
"""What a scale may lose where it is rounded, so that no entry leaves its bits."""


class Short:
    """Rows of parts x heads x width keys, and of heads x width values.

    Args:
        parts: of a frame.
        keys: heads and width of the keys that queries meet.
        values: heads and width of what is kept beside them; (0, 0) for nothing.
    """

    def __init__(self, parts: int, keys: tuple[int, int], values: tuple[int, int], device: torch.device) -> None:
        self.parts, self.heads, self.width = parts, *keys
        self._matched = parts * self.heads * self.width
        self._keys = torch.zeros(0, parts, self.heads, -(-self.width // 2), dtype=torch.uint8, device=device)
        self._values = torch.zeros(0, *values, dtype=torch.int8, device=device)
        self._key_scales = torch.zeros(0, parts, self.heads, dtype=SCALES, device=device)
        self._value_scales = torch.zeros(0, values[0], dtype=SCALES, device=device)
        self._key_centre, self._value_centre = torch.zeros(keys, device=device), torch.zeros(values, device=device)

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self._keys.device

    @property
    def bytes(self) -> int:
        """Bytes, room for rows to come included."""
        return sum(held.nbytes for held in (*self._rows, self._key_centre, self._value_centre))

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        return self._keys, self._values, self._key_scales, self._value_scales

    def centre(self, mean: Tensor) -> None:
        """Set the centre, [parts x heads x width + values]; rows that were set before mean something else then."""
        self._key_centre = self._key_part(mean.to(self.device)).mean(0)
        self._value_centre = mean[self._matched :].to(self.device).view_as(self._value_centre)

    def set(self, slot: int, mean: Tensor) -> None:
        """Set a row to a mean [parts x heads x width + values]."""
        mean = mean.to(self.device)
        keys, self._key_scales[slot] = _rounded(self._key_part(mean) - self._key_centre, KEY_MOST)
        self._keys[slot] = _packed(keys)
        values = mean[self._matched :].view_as(self._value_centre)
        self._values[slot], self._value_scales[slot] = _rounded(values - self._value_centre, VALUE_MOST)

    def _key_part(self, mean: Tensor) -> Tensor:
        return mean[: self._matched].view(self.parts, self.heads, self.width)

    def move(self, source: int, target: int) -> None:
        """One row takes another's place."""
        for held in self._rows:
            held[target] = held[source]

    def reserve(self, more: int) -> None:
        """Make room for more rows."""
        self._keys, self._values, self._key_scales, self._value_scales = (
            torch.cat((held, held.new_zeros(more, *held.shape[1:]))) for held in self._rows
        )

    def keys(self, count: int) -> Tensor:
        """[heads, count, width] float32: the mean key of all parts of the first rows."""
        keys = _unpacked(self._keys[:count], self.width)
        means = (keys * self._key_scales[:count, ..., None].float()).mean(1) + self._key_centre
        return means.transpose(0, 1)

    def values(self, count: int) -> Tensor:
        """[heads, count, width] float32."""
        means = self._values[:count] * self._value_scales[:count, ..., None].float() + self._value_centre
        return means.transpose(0, 1)

    def logits(self, states: Tensor, count: int) -> Tensor:
        """[query heads, rows, count, parts]: products of queries with the first rows' parts.

        Those with the centre are left out: they are the same for all, and no share depends on them.

        Args:
            states: [query heads, rows, width], each run of query heads sharing a key head.
        """
        heads, rows, width = states.shape
        packed = self._keys[:count].permute(2, 0, 1, 3).flatten(1, 2)
        keys = _unpacked(packed, width).float()
        found = states.reshape(self.heads, -1, width) @ keys.transpose(1, 2)
        scales = self._key_scales[:count].permute(2, 0, 1)[:, None].float()
        found = found.reshape(self.heads, -1, count, self.parts) * scales
        return found.reshape(heads, rows, count, self.parts)


def _rounded(vectors: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Vectors [..., width] in whole numbers from -most to most, and a scale for each."""
    if not vectors.numel():
        return vectors.to(torch.int8), vectors.new_zeros(vectors.shape[:-1], dtype=SCALES)
    scales = (vectors.abs().amax(-1).clamp_min(1e-12) * UPWARD / most).to(SCALES)
    return (vectors / scales[..., None].float()).round().to(torch.int8), scales


def _packed(numbers: Tensor) -> Tensor:
    """Numbers [..., width] from -7 to 7, two in a byte: the first half of the width low, the second half high."""
    half = -(-numbers.shape[-1] // 2)
    lifted = (numbers + KEY_MOST + 1).to(torch.uint8)
    high = torch.nn.functional.pad(lifted[..., half:], (0, 2 * half - numbers.shape[-1]))
    return lifted[..., :half] | high << 4


def _unpacked(packed: Tensor, width: int) -> Tensor:
    """Numbers [..., width] int8."""
    numbers = torch.cat((packed & 15, packed >> 4), dim=-1)
    return numbers[..., :width].to(torch.int8) - (KEY_MOST + 1)
