"""Tiny models whose layers are shared out over the device under test and the CPU, as `device_map` does it."""

from functools import cache
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from emblema import Engine
from emblema.kv.device import default_device
from emblema.models.structure import decoder_layers, find_decoder
from tests.device.twins import Twins
from tests.families import CASES

HOMES = ("device", pytest.param("cpu", marks=pytest.mark.nightly))
"""Where embeddings and the first layers are; the other layers, the norm and the rotary table are on the other one."""


def shared_out(model: Any, home: torch.device, other: torch.device, first: int) -> Any:
    """Share a model out: so many first layers at home."""
    decoder = find_decoder(model)
    _, names = decoder_layers(model, decoder)
    root = names[0].removesuffix(".layers.0")
    places = {name: home for name, _ in model.named_children() if name != "model"}
    places |= {f"model.{name}": home for name, _ in model.model.named_children() if f"model.{name}" != root}
    places |= {f"{root}.embed_tokens": home, f"{root}.norm": other, f"{root}.rotary_emb": other}
    places |= {name: home if index < first else other for index, name in enumerate(names)}
    named = {name: str(place) for name, place in places.items()}
    # The CPU is a device like the other: accelerate offloads what is on it unless it is the main one.
    return dispatch_model(model, named, main_device="cpu", skip_keys=model._skip_keys_device_placement)


def places_of(home: str) -> tuple[torch.device, torch.device]:
    """Return where home is, and the other device."""
    both = (torch.device("cpu"), default_device())
    return both if home == "cpu" else both[::-1]


def sharded(name: str, home: str, first: int = 1) -> tuple[Any, Any]:
    """A family's model, shared out, and its processor."""
    model, bundle = CASES[name].build(0)
    return shared_out(model, *places_of(home), first), bundle


@cache
def sharded_twins(name: str, home: str) -> Twins:
    """Engines of one family, a new store each: shared out, and on the CPU."""
    model, bundle = CASES[name].build(0)
    return Twins(Engine(*sharded(name, home)), Engine(model, bundle))
