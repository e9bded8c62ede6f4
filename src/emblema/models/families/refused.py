"""Families of models that do not fit, and why."""

REFUSED = {
    "gemma3n": "its last layers keep no rows of their own, and every layer embeds the ids of tokens",
    "hunyuan_vl": "its positions have four axes",
    "llama4": "its rows attend their own stretch of 8,192 positions alone, and stretches do not move with rows",
    "molmo2": "tokens of a picture attend those of all later pictures: its rows depend on what follows",
}
"""Reasons by `config.model_type`. Layers that do not fit are refused by their names in any family."""
