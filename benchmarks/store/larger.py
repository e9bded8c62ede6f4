"""A larger model with random weights, of the bundled model's family: its KV is large enough to matter."""

from typing import Any

import numpy as np
import torch
from PIL import Image

from emblema.models.load import bundled_folder, load_processor

LAYERS, HEADS, HIDDEN, INTERMEDIATE = 14, 12, 768, 2304


def larger_model(seed: int) -> tuple[Any, Any]:
    """A model of the bundled model's family with a hundred million parameters, and the bundled model's processor."""
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    config = AutoConfig.from_pretrained(str(bundled_folder("reference")))
    text, vision = config.text_config, config.vision_config
    text.num_hidden_layers, text.hidden_size, text.intermediate_size = LAYERS, HIDDEN, INTERMEDIATE
    text.num_attention_heads = text.num_key_value_heads = HEADS
    text.layer_types = [text.layer_types[0]] * LAYERS
    eighth = HIDDEN // HEADS // 2 // 8
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [2 * eighth, 3 * eighth, 3 * eighth]}
    vision.out_hidden_size = HIDDEN
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    return model.eval(), load_processor(str(bundled_folder("reference")))


def random_picture(side: int, random: np.random.Generator) -> Image.Image:
    """A picture of coloured squares."""
    squares = random.integers(0, 255, (side // 28, side // 28, 3), dtype=np.uint8)
    return Image.fromarray(squares).resize((side, side), Image.Resampling.NEAREST)
