"""The small models that tests and benchmarks run on, one for each kind of KV, besides those in the package.

`reference-lists` is no model of its own: `delta` adds it to `reference`.
"""

from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.names import BUNDLED, bundled_folder

NAMES = (*BUNDLED, "reference-deepstack", "reference-mla", "reference-hybrid")
"""M-RoPE and its training on streams; deepstack and shared heads; latents and experts; states in most layers."""
ON_DEMAND = ("reference-mha",)
"""Models whose weights are trained when they are wanted: their folders hold all but those."""


def model_folder(name: str) -> Path:
    """Return the folder of one of `NAMES` or `ON_DEMAND`."""
    return bundled_folder(name) if name in BUNDLED else Path(__file__).parent / name


def model_source(name: str) -> str:
    """Return what a model is loaded from: the folder of one of `NAMES` or `ON_DEMAND`, else the name as it is.

    Raises:
        EmblemaError: it is one of `ON_DEMAND` and has not been trained here.
    """
    if name in ON_DEMAND and not (model_folder(name) / "model.safetensors").is_file():
        raise EmblemaError(f"{name}: it is trained on demand; run `make reference MODEL={name}` first")
    return str(model_folder(name)) if name in (*NAMES, *ON_DEMAND) else name
