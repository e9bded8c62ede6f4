"""The families of models that work, found by the configuration's `model_type`."""

from typing import Any

from emblema.errors import UnsupportedModelError
from emblema.models.families.base import Family
from emblema.models.families.refused import REFUSED


def families() -> tuple[Family, ...]:
    """Return an object per family; they hold no state."""
    from emblema.models.families.cohere import AyaVision, Cohere2Vision
    from emblema.models.families.exaone import Exaone
    from emblema.models.families.gemma3 import Gemma3
    from emblema.models.families.gemma4 import Gemma4, Gemma4Unified
    from emblema.models.families.glm4v import Glm4v
    from emblema.models.families.granite import Granite4Vision
    from emblema.models.families.idefics3 import GraniteDocling, Idefics3
    from emblema.models.families.internvl import InternVL
    from emblema.models.families.kimi import Kimi
    from emblema.models.families.lfm import Lfm2VL, Lfm3VL
    from emblema.models.families.llava import Llava
    from emblema.models.families.llava_next import LlavaNext, LlavaOnevision
    from emblema.models.families.mistral3 import Mistral3
    from emblema.models.families.omni import Omni, Qwen3Omni
    from emblema.models.families.ovis2 import Ovis2
    from emblema.models.families.paddleocr import Ernie, PaddleOCR
    from emblema.models.families.qwen_vl import Qwen3VL, Qwen35VL, QwenVL

    return (
        QwenVL(),
        Qwen3VL(),
        Qwen35VL(),
        Glm4v(),
        Llava(),
        LlavaNext(),
        LlavaOnevision(),
        InternVL(),
        Idefics3(),
        Mistral3(),
        Gemma3(),
        Gemma4(),
        Gemma4Unified(),
        Kimi(),
        Lfm2VL(),
        Lfm3VL(),
        AyaVision(),
        Cohere2Vision(),
        Ovis2(),
        PaddleOCR(),
        Ernie(),
        Exaone(),
        GraniteDocling(),
        Granite4Vision(),
        Omni(),
        Qwen3Omni(),
    )


def family_of(config: Any) -> Family:
    """Return the family that serves a model's configuration."""
    kind = getattr(config, "model_type", "")
    for family in families():
        if kind in family.model_types:
            return family
    if kind in REFUSED:
        raise UnsupportedModelError(f"Models of type {kind!r} are not served: {REFUSED[kind]}.")
    names = ", ".join(family.name for family in families())
    raise UnsupportedModelError(f"Models of type {kind!r} are not among the families that work: {names}.")
