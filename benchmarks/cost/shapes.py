"""Models of known shapes with random weights, made on the device that they are measured on."""

import json
from pathlib import Path

import torch
from torch import nn

from emblema.errors import ModelError
from emblema.models.load import load_model

REFERENCE = "reference"
FOLDER = Path(__file__).parent / "shapes"
DTYPES = ("float32", "bfloat16", "float16")


def shape_names() -> tuple[str, ...]:
    """Return the shapes that can be measured: the bundled model, and those of files."""
    return (REFERENCE, *sorted(path.stem for path in FOLDER.glob("*.json")))


def check_choice(shape: str, device: str, dtype: str | None) -> str:
    """Check what a user chose, and return the dtype's name: float32 on a CPU and bfloat16 elsewhere by default.

    Raises:
        ModelError: there is no such shape, device or dtype.
    """
    if shape not in shape_names():
        raise ModelError(f"--shape {shape!r}: choose of {', '.join(shape_names())}")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ModelError(f"--device {device!r}: it cannot be used here; give cpu, or one that torch finds") from error
    chosen = ("float32" if place.type == "cpu" else "bfloat16") if dtype is None else dtype
    if chosen not in DTYPES:
        raise ModelError(f"--dtype {dtype!r}: choose of {', '.join(DTYPES)}")
    return chosen


def make_model(name: str, device: torch.device, dtype: torch.dtype, seed: int) -> nn.Module:
    """Return a model of a shape, for inference: the bundled one, or one of random weights.

    `kimi-k2.5-slice` has four of the model's 61 layers and 32 of its 384 experts in each.
    """
    import transformers
    from transformers import CONFIG_MAPPING

    if name == REFERENCE:
        return load_model(name, device=device, dtype=dtype)[0]
    written = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    config = CONFIG_MAPPING[written["model_type"]].from_dict(written)
    kind = getattr(transformers, written["architectures"][0])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        model: nn.Module = kind._from_config(config, dtype=dtype)
    return model.eval()
