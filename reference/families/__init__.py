"""The bundled models, one recipe a family, found by name."""

from reference.families.base import Recipe
from reference.families.kimi_k25 import Latent
from reference.families.llava_next import MultiHead
from reference.families.qwen2_5_vl import Reference
from reference.families.qwen3_vl import Deepstack

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (Reference(), Deepstack(), MultiHead(), Latent())}

__all__ = ["RECIPES", "Recipe"]
