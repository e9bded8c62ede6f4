"""The small models that tests and benchmarks run on, one for each kind of KV, besides those in the package.

`reference-lists` is no model of its own: `delta` adds it to `reference`.
"""

from pathlib import Path

from emblema.models.load import BUNDLED, bundled_folder

NAMES = (*BUNDLED, "reference-deepstack", "reference-mha", "reference-mla")
"""M-RoPE and its training on streams; deepstack and shared heads; one key a head; latents and experts."""


def model_folder(name: str) -> Path:
    """Return the folder of one of `NAMES`."""
    return bundled_folder(name) if name in BUNDLED else Path(__file__).parent / name


def model_source(name: str) -> str:
    """Return what a model is loaded from: the folder of one of `NAMES`, else the name as it is."""
    return str(model_folder(name)) if name in NAMES else name
