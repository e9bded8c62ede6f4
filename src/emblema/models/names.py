"""What models are called: bundled and pretrained ones by name, others by folder or hub id. Nothing here needs torch."""

import re
from difflib import get_close_matches
from importlib.resources import files
from os.path import exists
from pathlib import Path

from emblema.errors import ModelError

BUNDLED = ("reference", "reference-stream")
"""The bundled models: `reference`, and the same trained on video streams. Weights are stored in half precision."""
PRETRAINED_NAMES = ("smollm2-135m", "gemma3-270m")
"""Small pretrained models that are built from the package index; see `pretrained`."""
_HUB_ID = re.compile(r"(?![.~])[\w.-]+/[\w.-]+")


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled model."""
    return Path(str(files("emblema"))) / "assets" / name


def check_model_name(name: str | Path) -> None:
    """Refuse a name that can be no model's, without a question to a hub.

    Args:
        name: a bundled or pretrained model's, a folder, or a Hugging Face id, which is `OWNER/NAME`.

    Raises:
        ModelError: it is none of these; the message says which names are near.
    """
    text = str(name)
    known = (*BUNDLED, *PRETRAINED_NAMES)
    if text in known or _HUB_ID.fullmatch(text) or exists(text):
        return
    near = get_close_matches(text.lower(), known, n=2)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ModelError(
        f"there is no model {text!r}, and no such folder{meant}: give a bundled or pretrained model "
        f"({', '.join(known)}), the folder of a checkpoint, or a Hugging Face id such as OWNER/NAME."
    )
