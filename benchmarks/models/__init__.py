"""The small models that tests and benchmarks run on, one for each kind of KV, besides those in the package."""

import os
import shutil
import tempfile
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


def served_folder(cache: Path | None = None) -> Path:
    """Return a copy of `reference-mha` whose weights have the names of published checkpoints, which alone vLLM reads.

    Args:
        cache: where the copy is kept; the user's cache by default.
    """
    source = model_folder("reference-mha")
    size = (source / "model.safetensors").stat()
    home = cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "emblema" / "served"
    folder = home / f"reference-mha-{size.st_size}-{size.st_mtime_ns}"
    if not folder.exists():
        _copy_renamed(source, folder, "vision_tower.", "vision_tower.vision_model.")
    return folder


def _copy_renamed(source: Path, folder: Path, before: str, after: str) -> None:
    """Copy a model with another beginning of its weights' names. Two processes may copy at once."""
    from safetensors.torch import load_file, save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    try:
        for path in source.iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, copy / path.name)
        weights = load_file(source / "model.safetensors")
        named = {after + key.removeprefix(before) if key.startswith(before) else key: weights[key] for key in weights}
        save_file(named, copy / "model.safetensors", {"format": "pt"})
        copy.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(copy, ignore_errors=True)
