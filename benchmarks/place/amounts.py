"""What many pictures take: bytes by tier and replicas, from measured sizes and the skew of traffic."""

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place.costs import RESULTS

TOKENS = 1_024
"""Of a picture."""
ROW_BYTES = 57_344
"""Of a token of Qwen2.5-VL-7B in bfloat16: 28 layers, 4 key-value heads of 128."""
EMBED_BYTES = 7_168
"""Of a token's embedding there: 3,584 numbers of 2 bytes."""
MEDIA_BYTES = 500_000
"""Of a photograph of a megapixel as JPEG; assumed."""
DEVICE_BYTES = 40 * 10**9
"""Of a replica's device memory that is left for rows."""
HOT, WARM = 0.8, 0.95
"""Shares of what is shown that device memory, and then embeddings on disk too, are to answer."""
SKEW = 0.9


@dataclass(frozen=True, slots=True)
class Amounts:
    """What so many pictures take where the hot ones are kept as rows, the warm ones as embeddings, and all as media.

    Attributes:
        hot, warm: pictures that are answered from device, and beyond those from embeddings.
        rows, embeddings, media, index: bytes of each.
        all_rows: bytes if every picture were kept as rows.
        replicas: that hold the hot ones.
        router: bytes of a router that remembers the hot ones.
    """

    pictures: int
    hot: int
    warm: int
    rows: int
    embeddings: int
    media: int
    index: int
    all_rows: int
    replicas: int
    router: int


def amounts_of(pictures: int, digest_bytes: float, folder: Path = RESULTS) -> Amounts:
    """Return what pictures take, by the measured bytes of the store's index and of the router's table."""
    entries = json.loads((folder / "store.json").read_text(encoding="utf-8"))["index"][-1]
    index = entries["bytes"] / entries["entries"]
    hot = most_shown(pictures, HOT, SKEW)
    warm = most_shown(pictures, WARM, SKEW) - hot
    rows = hot * TOKENS * ROW_BYTES
    return Amounts(
        pictures, hot, warm, rows, (hot + warm) * TOKENS * EMBED_BYTES, pictures * MEDIA_BYTES, round(pictures * index),
        pictures * TOKENS * ROW_BYTES, -(-rows // DEVICE_BYTES), round(hot * digest_bytes),
    )  # fmt: skip


def most_shown(pictures: int, share: float, skew: float) -> int:
    """Return how many pictures get a share of all showings under a Zipf law with an exponent below 1.

    The sum of `rank ** -skew` to `n` is `n ** (1 - skew) / (1 - skew)` less a constant, the zeta function's value.
    """
    constant = _zeta(skew)
    total = pictures ** (1 - skew) / (1 - skew) + constant
    return min(pictures, max(1, round(((share * total - constant) * (1 - skew)) ** (1 / (1 - skew)))))


def _zeta(skew: float, terms: int = 100_000) -> float:
    return sum(rank**-skew for rank in range(1, terms + 1)) - terms ** (1 - skew) / (1 - skew)
