"""Families of models that do not fit, and why."""

REFUSED = {
    "gemma3n": "its tower is one of the package timm, with which it has not been tried",
    "hunyuan_vl": "two of its four axes count from a picture's corner and one the pictures before: they move apart",
    "kimi_linear": "its layers of Kimi delta attention keep a state that each channel of a key decays by itself",
    "llama4": "its rows attend their own stretch of 8,192 positions alone, and stretches do not move with rows",
    "molmo2": "tokens of a picture attend those of all later pictures: its rows depend on what follows",
    "nemotron_h": "its Mamba layers keep a state, and its layers of experts no rows at all",
}
"""Reasons by `config.model_type`. Layers that do not fit are refused by their names in any family."""
