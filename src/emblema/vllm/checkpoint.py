"""A bundled model as vLLM reads it: some keep their weights under names that vLLM does not know."""

import os
import shutil
import tempfile
from pathlib import Path

from emblema.errors import UnsupportedModelError
from emblema.models.load import BUNDLED, bundled_folder

RENAMED = {"reference-mha": ("vision_tower.", "vision_tower.vision_model.")}
"""Beginnings of weights' names: the bundled ones, and those of the published checkpoints, which vLLM reads."""
UNSERVED = {"reference-mla": "vLLM has no implementation of it"}


def servable(model: str, cache: Path | None = None) -> str:
    """What vLLM is given for a model: a bundled one's folder, or the name itself.

    Args:
        cache: where renamed copies are kept; the user's cache by default.

    Raises:
        UnsupportedModelError: it is a bundled model that vLLM cannot serve.
    """
    if model in UNSERVED:
        raise UnsupportedModelError(f"{model} cannot be served by vLLM: {UNSERVED[model]}; choose another model")
    if model not in BUNDLED:
        return model
    source = bundled_folder(model)
    if model not in RENAMED:
        return str(source)
    size = (source / "model.safetensors").stat()
    home = cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "emblema" / "served"
    folder = home / f"{model}-{size.st_size}-{size.st_mtime_ns}"
    if not folder.exists():
        _copy(source, folder, *RENAMED[model])
    return str(folder)


def _copy(source: Path, folder: Path, before: str, after: str) -> None:
    """Written beside its place and moved there whole: two servers may start at once."""
    from safetensors.torch import load_file, save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    try:
        for path in source.iterdir():
            if path.suffix != ".safetensors":
                shutil.copy(path, made / path.name)
        weights = load_file(source / "model.safetensors")
        named = {after + key.removeprefix(before) if key.startswith(before) else key: weights[key] for key in weights}
        save_file(named, made / "model.safetensors", {"format": "pt"})
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
