"""Keys and values of an encoder's layers that attend over a whole picture, by which a part of it is encoded alone."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from emblema.models.attention import attending_by, stock_attend, stock_attention


@dataclass(frozen=True, slots=True, eq=False)
class TowerRows:
    """What the layers that attend over a whole picture were given for its patches.

    Attributes:
        keys, values: of each such layer, [1, heads, patches, width], in the order that the encoder has patches in.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(each.nbytes for each in (*self.keys, *self.values))


class KeptTowerRows:
    """The rows of the latest pictures of all tenants, by owner and id, within bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], TowerRows] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(rows.bytes for rows in self._kept.values())

    def names(self, owner: str) -> list[str]:
        """Return the ids of an owner's pictures."""
        return [name for kept, name in self._kept if kept == owner]

    def note(self, owner: str, id: str, rows: TowerRows, most_bytes: int) -> None:
        """Keep a picture's rows as the latest; those that came first go until no more than so many bytes are kept."""
        self.forget(owner, id)
        self._kept[owner, id] = rows
        while self._kept and self.bytes > most_bytes:
            self._kept.popitem(last=False)

    def find(self, owner: str, id: str) -> TowerRows | None:
        """Return a picture's rows, or None."""
        return self._kept.get((owner, id))

    def forget(self, owner: str, id: str) -> None:
        """Drop a picture's rows."""
        self._kept.pop((owner, id), None)


@contextmanager
def noting_rows(layers: Sequence[nn.Module], most_bytes: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Note what layers that attend over the whole picture are given, in this thread, until the block ends.

    Args:
        layers: their attention modules, in order.
        most_bytes: of all layers; where they would be more, nothing is noted.

    Yields:
        Keys and values of each layer that ran, copied.
    """
    noted: list[tuple[Tensor, Tensor]] = []
    own = {id(layer) for layer in layers}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any, **extra: Any) -> Any:
        if id(module) in own and (key.nbytes + value.nbytes) * len(layers) <= most_bytes:
            noted.append((key.clone(), value.clone()))
        return stock_attend(module, query, key, value, *given, **extra)

    with attending_by(_config(layers), attend):
        yield noted


@contextmanager
def attending_kept(layers: Sequence[nn.Module], kept: TowerRows, patches: Tensor) -> Iterator[None]:
    """Have patches that are encoded alone attend the kept rows of all others, in this thread, until the block ends.

    Args:
        layers: the attention modules of the layers that attend over the whole picture, in order.
        kept: their rows of a picture of the same shape.
        patches: [patches that are encoded] int64, their places among all.
    """
    places = {id(layer): place for place, layer in enumerate(layers)}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any, **extra: Any) -> Any:
        place = places.get(id(module))
        if place is not None:
            key = kept.keys[place].index_copy(2, patches, key)
            value = kept.values[place].index_copy(2, patches, value)
        return stock_attend(module, query, key, value, *given, **extra)

    with attending_by(_config(layers), attend):
        yield


def attends_by_runs(layers: Sequence[nn.Module]) -> bool:
    """Return whether an encoder calls its attention function for each run of patches that attend each other.

    With flash attention it is called once for all windows of a layer, which would be lost here.
    """
    return stock_attention(_config(layers)) in ("sdpa", "eager")


def _config(layers: Sequence[nn.Module]) -> Any:
    config: Any = layers[0].config
    return config


def joined_rows(noted: Sequence[tuple[Tensor, Tensor]], layers: Sequence[nn.Module]) -> TowerRows | None:
    """Return what was noted of a picture; None where that is not one run of each layer."""
    if len(noted) != len(layers) or len({key.shape[2] for key, _ in noted}) != 1:
        return None
    with torch.inference_mode():
        return TowerRows(tuple(key for key, _ in noted), tuple(value for _, value in noted))
