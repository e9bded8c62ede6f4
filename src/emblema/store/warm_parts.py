"""What a store has of parts of a prompt that were made ready before they are asked about."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmParts:
    """What the store has of parts in an order.

    Attributes:
        tokens: rows of their chunks.
        pieces: bytes of their chunks and patches, by the ids that the store pins them by.
    """

    tokens: int
    pieces: Mapping[str, int]
