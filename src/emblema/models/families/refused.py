"""Families of models that do not fit, and why."""

REFUSED = {
    "gemma3n": "its tower is one of the package timm, with which it has not been tried",
    "glm5_next": "its indexer keeps keys that are pooled by sixteen from the prompt's first token on",
    "hunyuan_vl": "two of its four axes count from a picture's corner and one the pictures before: they move apart",
    "inkling2": "its layers keep inputs of four convolutions each, one of them after the attention",
    "kimi_linear": "its layers of Kimi delta attention keep a state that each channel of a key decays by itself",
    "llama4": "its rows attend their own stretch of 8,192 positions alone, and stretches do not move with rows",
    "minicpmv4_6": "its decoder is Qwen3.5's; its pictures, which are cut into slices, have not been tried",
    "minicpmv4_7": "the slices of a picture share one canvas of positions",
    "molmo2": "tokens of a picture attend those of all later pictures: its rows depend on what follows",
    "nemotron_h": "its Mamba layers keep a state, and its layers of experts no rows at all",
    "nemotron_h_omni": "its Mamba layers keep a state, and its layers of experts no rows at all",
    "qwen4_exp": "its indexer keeps averages of blocks of keys, and its embeddings depend on the two tokens before",
}
"""Reasons by `config.model_type`. Layers that do not fit are refused by their names in any family."""
