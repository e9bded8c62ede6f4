"""The matrix: every family by name."""

import pytest

from tests.families.kimi import build_kimi_yarn, kimi, kimi_stock
from tests.families.lfm import build_lfm2_vl, build_lfm3_vl, lfm3_stock
from tests.families.llava import (
    build_deepseek_vl,
    build_granite4_vision,
    build_llava,
    build_llava_next,
    build_llava_onevision,
    onevision_stock,
    plain_stock,
)
from tests.families.omni import build_qwen2_5_omni, build_qwen3_omni, omni_stock
from tests.families.parts import Case
from tests.families.qwen import (
    build_ernie4_5_vl,
    build_exaone4_5,
    build_glm4v,
    build_glm4v_moe,
    build_glm46v,
    build_glm_ocr,
    build_paddleocr_vl,
    build_qwen2_5_vl,
    build_qwen2_vl,
    build_qwen3_5,
    build_qwen3_5_moe,
    build_qwen3_vl,
    build_qwen3_vl_moe,
    ernie_stock,
    qwen_stock,
)
from tests.families.tiled import (
    build_aya_vision,
    build_cohere2_vision,
    build_granite_docling,
    build_idefics3,
    build_internvl,
    build_ovis2,
    build_smolvlm,
    idefics_stock,
    internvl_stock,
    ovis2_stock,
)
from tests.families.windowed import (
    build_gemma3,
    build_gemma4,
    build_gemma4_shared,
    build_gemma4_unified,
    build_ministral3,
    build_mistral3,
    build_mistral_small4,
    gemma3_stock,
    gemma4_stock,
    mistral3_stock,
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("llava", build_llava, plain_stock),
        Case("llava_next", build_llava_next, plain_stock),
        Case("llava_onevision", build_llava_onevision, onevision_stock),
        Case("qwen2_vl", build_qwen2_vl, qwen_stock, native_video=True),
        Case("qwen2_5_vl", build_qwen2_5_vl, qwen_stock, native_video=True),
        Case("qwen3_vl", build_qwen3_vl, qwen_stock, native_video=True),
        Case("qwen3_vl_moe", build_qwen3_vl_moe, qwen_stock, native_video=True),
        Case("qwen3_5", build_qwen3_5, qwen_stock, native_video=True),
        Case("qwen3_5_moe", build_qwen3_5_moe, qwen_stock, native_video=True),
        Case("internvl", build_internvl, internvl_stock, sizes=((60, 30), (28, 50))),
        Case("idefics3", build_idefics3, idefics_stock),
        Case("smolvlm", build_smolvlm, idefics_stock),
        Case("deepseek_vl", build_deepseek_vl, plain_stock),
        Case("mistral3", build_mistral3, mistral3_stock),
        Case("ministral3", build_ministral3, mistral3_stock),
        Case("mistral_small4", build_mistral_small4, mistral3_stock),
        Case("gemma3", build_gemma3, gemma3_stock),
        Case("gemma4", build_gemma4, gemma4_stock),
        Case("gemma4_shared", build_gemma4_shared, gemma4_stock),
        Case("gemma4_unified", build_gemma4_unified, gemma4_stock),
        Case("glm4v", build_glm4v, qwen_stock, native_video=True),
        Case("glm4v_moe", build_glm4v_moe, qwen_stock, native_video=True),
        Case("glm46v", build_glm46v, qwen_stock, native_video=True),
        Case("glm_ocr", build_glm_ocr, qwen_stock, native_video=True),
        Case("aya_vision", build_aya_vision, internvl_stock, sizes=((60, 30), (28, 50))),
        Case("cohere2_vision", build_cohere2_vision, internvl_stock, sizes=((60, 30), (28, 50))),
        Case("ovis2", build_ovis2, ovis2_stock, sizes=((60, 30), (28, 50))),
        Case("granite4_vision", build_granite4_vision, plain_stock),
        Case("granite_docling", build_granite_docling, idefics_stock, sizes=((60, 30), (28, 50))),
        Case("paddleocr_vl", build_paddleocr_vl, qwen_stock),
        Case("ernie4_5_vl", build_ernie4_5_vl, ernie_stock),
        Case("exaone4_5", build_exaone4_5, plain_stock, native_video=True),
        Case("kimi_k25", kimi, kimi_stock),
        Case("kimi_k25_yarn", build_kimi_yarn, kimi_stock),
        Case("lfm2_vl", build_lfm2_vl, plain_stock, sizes=((40, 30), (70, 50))),
        Case("lfm3_vl", build_lfm3_vl, lfm3_stock),
        Case("qwen2_5_omni", build_qwen2_5_omni, omni_stock, native_video=True, audio=True),
        Case("qwen3_omni_moe", build_qwen3_omni, omni_stock, native_video=True, audio=True),
    )
}

TYPICAL = ("llava", "qwen2_5_vl", "qwen3_vl", "gemma3", "kimi_k25", "lfm3_vl", "qwen3_5")
"""One axis, M-RoPE, features at several layers, windows with rows that see each other; latents, convolutions, states.
"""
NAMES = [name if name in TYPICAL else pytest.param(name, marks=pytest.mark.nightly) for name in CASES]
"""Every family, for what does not ask the family's own code: those that are like another are nightly."""
