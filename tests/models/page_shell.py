"""A LLaVA model with the tower that reads pages and next to no language model."""

from collections.abc import Mapping
from functools import cache

import torch
from PIL import Image
from transformers import CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from emblema.eval.pages import PAGE_TOKENS, TILE
from emblema.models.page_tower import (
    MEAN,
    PROJECTOR_ACTIVATION,
    SPREAD,
    page_weights,
    set_page_tower,
    vision_settings,
)

SIDE = 8 * TILE
CHANNELS = 576
IMAGE = 1


def shell_of(weights: Mapping[str, torch.Tensor]) -> LlavaForConditionalGeneration:
    """Return a model with these weights of the tower and random embeddings."""
    text = LlamaConfig(
        vocab_size=int(weights["ids"].max()) + 1, hidden_size=CHANNELS, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    vision = CLIPVisionConfig(image_size=SIDE, patch_size=TILE, **vision_settings(CHANNELS, weights))
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=PAGE_TOKENS,
        vision_feature_select_strategy="default", vision_feature_layer=-1, tie_word_embeddings=True,
        projector_hidden_act=PROJECTOR_ACTIVATION,
    )  # fmt: skip
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        shell = LlavaForConditionalGeneration(config).eval()
        torch.nn.init.normal_(shell.get_input_embeddings().weight, std=0.14)
    set_page_tower(shell, weights)
    return shell


@cache
def bundled_shell() -> LlavaForConditionalGeneration:
    """Return a model with the bundled tower."""
    return shell_of(page_weights())


@torch.inference_mode()
def rows_of(shell: LlavaForConditionalGeneration, page: Image.Image) -> torch.Tensor:
    """Return the rows [PAGE_TOKENS, CHANNELS] that a model sees in place of a page."""
    prepare = CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE},
        image_mean=[MEAN] * 3, image_std=[SPREAD] * 3,
    )  # fmt: skip
    found = shell.get_image_features(pixel_values=prepare(page, return_tensors="pt")["pixel_values"])
    features = getattr(found, "pooler_output", found)
    return torch.cat(list(features)).view(PAGE_TOKENS, CHANNELS)
