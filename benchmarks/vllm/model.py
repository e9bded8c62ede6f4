"""A model of a wanted size with random weights, for timing: its weights are made up by the server as it starts."""

import json
import shutil
from pathlib import Path

from emblema.models.load import bundled_folder

PROCESSING = (
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)
SHAPES = {
    "137m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
             "num_key_value_heads": 4},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4},
}  # fmt: skip
"""`7b` is the decoder of Qwen2.5-VL-7B; both have the bundled model's small encoder and tokenizer."""


def random_model(folder: Path, shape: str) -> int:
    """Write configuration and processors of a Qwen2.5-VL of a shape; serve it with `--load-format dummy`.

    Returns:
        The decoder's parameters, embeddings included.
    """
    source = bundled_folder("reference")
    config = json.loads((source / "config.json").read_text())
    text, wanted = config["text_config"], SHAPES[shape]
    width = wanted["hidden_size"] // wanted["num_attention_heads"]
    text.update(wanted, layer_types=["full_attention"] * wanted["num_hidden_layers"])
    sections = [width // 8, width // 2 - width // 8 - 3 * width // 16, 3 * width // 16]
    text["rope_parameters"]["mrope_section"] = sections
    config["vision_config"]["out_hidden_size"] = wanted["hidden_size"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in PROCESSING:
        shutil.copy(source / name, folder / name)
    hidden, inner, heads = wanted["hidden_size"], wanted["intermediate_size"], wanted["num_key_value_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * heads * width + 3 * hidden * inner
    return wanted["num_hidden_layers"] * layer + hidden * text["vocab_size"]
