"""The same model twice: on the device under test, and on the CPU."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from emblema import Engine
from emblema.kv.device import default_device
from tests.families import CASES, picture

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "gemma3", "kimi_k25")
"""M-RoPE, features added at several layers, windows with rows that see each other, latents."""


@dataclass(frozen=True)
class Twins:
    """Engines on equal weights."""

    device: Engine
    cpu: Engine

    def __iter__(self) -> Any:
        return iter((self.device, self.cpu))


@cache
def twins(name: str) -> Twins:
    """Engines of one family, a new store each."""
    made = []
    for place in (default_device(), torch.device("cpu")):
        model, bundle = CASES[name].build(0)
        made.append(Engine(model.to(place), bundle))
    return Twins(*made)


def pictures(name: str, count: int, seed: int = 0) -> list[Any]:
    """Pictures of the family's sizes."""
    return [picture(*CASES[name].sizes[index % 2], seed=seed + index) for index in range(count)]
