"""Granite 4 Vision: LLaVA-NeXT's tiles, each made smaller, whose features enter before several decoder layers."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from emblema.models.families.base import Features, Prepared, feature_path, joined
from emblema.models.families.llava_next import LlavaNext, unpadded


class Granite4Vision(LlavaNext):
    """Granite 4 Vision."""

    name = "Granite 4 Vision"
    model_types = ("granite4_vision",)
    notes = "tiles with newline embeddings; features enter before several layers"
    logits_scaling = True

    def count(self, config: Any, height: int, width: int) -> int:
        vision = config.vision_config
        side = int(vision.image_size // vision.patch_size * Fraction(config.downsample_rate))
        rows, columns = unpadded(config, side, height, width)
        return side * side + rows * columns + rows

    def layers(self, config: Any) -> list[int]:
        """Return the decoder layers but the first before which features enter, each once."""
        layers = [*(layer for _, layer in config.deepstack_layer_map), *config.spatial_target_layers]
        return [layer for layer in dict.fromkeys(int(layer) for layer in layers) if layer > 0]

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        output = feature_path(model, "image")(**prepared.features)
        entering = {int(layer): joined(features) for layer, features in output.deepstack_features}
        config: Any = model.config
        deepstack = tuple(entering[layer] for layer in self.layers(config))
        # Media tokens have no embedding of their own: what enters before the first layer is theirs.
        first = entering.get(0, torch.zeros_like(next(iter(entering.values()))))
        return Features(first / config.text_config.embedding_multiplier, deepstack)

    def decoder_arguments(self, config: Any, visual: Tensor, deepstack: Sequence[Tensor]) -> dict[str, Any]:
        if not deepstack or not bool(visual.any()):
            return {}
        entering = dict(zip(self.layers(config), deepstack, strict=True))
        return {"vision_mask": visual[None, :, None], "deepstack_features": entering}
