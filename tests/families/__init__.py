"""Tiny random models of every family, their processors, and stock inputs for the joint forward."""

from tests.families.cases import CASES, NAMES
from tests.families.kimi import MLA
from tests.families.llava import CLIP, LLAMA, SIGLIP
from tests.families.parts import VOCAB, Bundle, picture, sharpen, token, tokenizer, typed, words
from tests.families.qwen import QWEN3_VISION, QWEN_TOKENS, qwen_images
from tests.families.running import Loaded, compose, joint, loaded, run_all, stock_logits
from tests.families.torchvision import require_torchvision

__all__ = [
    "Bundle",
    "CASES",
    "CLIP",
    "LLAMA",
    "Loaded",
    "MLA",
    "NAMES",
    "QWEN3_VISION",
    "QWEN_TOKENS",
    "SIGLIP",
    "VOCAB",
    "compose",
    "joint",
    "loaded",
    "picture",
    "qwen_images",
    "require_torchvision",
    "run_all",
    "sharpen",
    "stock_logits",
    "token",
    "tokenizer",
    "typed",
    "words",
]
