"""The tokenizer of a bundled model as SGLang's chat route needs it.

The route decodes a prompt's tokens and looks for a picture's markers with nothing between them; the bundled tokenizers
decode with a blank between any two tokens. The model's own folder stays as it is, and with it its fingerprint.
"""

import json
import shutil
from pathlib import Path

from emblema.models.names import bundled_folder

WEIGHTS = "*.safetensors"
DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"Regex": r"^(?!<\|(image_pad|video_pad|vision_end)\|>)"}, "content": " "},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
"""A blank between any two tokens, but for a picture's markers: all other text is decoded as the model's own tokenizer
decodes it."""


def write_tokenizer(model: str, folder: Path) -> None:
    """Write a bundled model's folder without its weights, with a tokenizer that leaves markers together.

    Args:
        model: its name.
        folder: where to; what is there is written over.
    """
    shutil.copytree(bundled_folder(model), folder, ignore=shutil.ignore_patterns(WEIGHTS), dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"decoder": DECODER}), encoding="utf-8")
