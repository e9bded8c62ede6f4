"""The same model twice: on the device under test, and on the CPU."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.kv.device import default_device
from tests.families import CASES, picture, words

FAMILIES = (
    "gemma3",
    "kimi_k25",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("qwen2_5_vl", "qwen3_vl")),
)
"""Windows with rows that see each other, latents, M-RoPE, features added at several layers."""
QUESTION = tuple(words(5, 3).tolist())


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


def logits_after_a_slide(engine: Engine, name: str) -> Tensor:
    """Logits of a question about a window of three pictures of which the first has left."""
    window = engine.window(template=False)
    for each in pictures(name, 3):
        window.append(each)
    window.prefill(QUESTION, "patch-4")
    window.slide(1)
    return window.prefill(QUESTION, "patch-4").logits
