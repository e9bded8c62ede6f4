"""The bundled models, one recipe a family, found by name."""

from training.families.base import Recipe
from training.families.kimi_k25 import Latent
from training.families.llava_next import MultiHead
from training.families.qwen2_5_vl import Reference
from training.families.qwen3_5 import Hybrid
from training.families.qwen3_vl import Deepstack

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (Reference(), Deepstack(), MultiHead(), Latent())}
HYBRID = Hybrid()
"""Trained in another way (`training.hybrids`), as masks hide no rows from a state."""

__all__ = ["HYBRID", "RECIPES", "Recipe"]
