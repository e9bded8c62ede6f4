"""Attention of few queries over latents (MLA) as a table keeps them: queries go to the latents, not latents to heads.

DeepSeek-V2 (section 2.1.2) notes that the projection of latents to keys can be absorbed into the queries, and that to
values into the output.
"""

from typing import Any

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows

SCORES = 1 << 23
"""Scores held at once."""


def latent_weight(module: Any) -> Tensor | None:
    """Return the weight [heads, plain + values, rank] that takes a layer's latents to heads; None where it has none."""
    weight = getattr(getattr(module, "kv_b_proj", None), "weight", None)
    if weight is None or not weight.is_floating_point() or getattr(module.kv_b_proj, "bias", None) is not None:
        return None
    found: Tensor = weight
    heads = getattr(module, "num_heads", 0)
    plain, values = getattr(module, "qk_nope_head_dim", 0), getattr(module, "v_head_dim", 0)
    if not heads or found.dim() != 2 or found.shape[0] != heads * (plain + values):
        return None
    return found.view(heads, plain + values, -1)


def absorbed_pays(module: Any, queries: int, rows: int) -> bool:
    """Return whether fewer products are needed over the latents of so many rows than over heads made of them."""
    weight = latent_weight(module)
    if weight is None:
        return False
    heads, features, rank = weight.shape
    turned = int(module.qk_rope_head_dim)
    absorbed = queries * heads * (rows * (2 * rank + turned) + features * rank)
    expanded = queries * heads * rows * (features + turned) + (rows + queries) * heads * features * rank
    return absorbed < expanded


def attend_latents(module: Any, query: Tensor, rows: LayerRows, scale: float, mask: Tensor | None) -> Tensor:
    """Return attention [heads, queries, value width] over rows as the table keeps them, in float32 inside.

    Args:
        module: the layer's attention.
        query: [heads, queries, width]: features that meet the latents, then those that are rotated.
        rows: latents [1, rows, rank] and rotary keys [1, rows, rotated].
        scale: of the scores.
        mask: [queries, rows], added to the scores; None where all is seen.
    """
    weight = latent_weight(module)
    if weight is None:
        raise TypeError(f"{type(module).__name__} keeps no weight that takes latents to heads")
    plain = int(module.qk_nope_head_dim)
    up, down = weight[:, :plain].float(), weight[:, plain:].float()
    latents, turned = rows.keys[0].float(), rows.values[0].float()
    heads, count, _ = query.shape
    parts: list[Tensor] = []
    for part in query.split(max(1, SCORES // (heads * len(latents))), dim=1):
        own = part.float() * scale
        carried = (own[..., :plain] @ up).flatten(0, 1)
        scores = torch.addmm(own[..., plain:].flatten(0, 1) @ turned.T, carried, latents.T).view(
            heads, part.shape[1], -1
        )
        if mask is not None:
            done = sum(each.shape[1] for each in parts)
            scores += mask[done : done + part.shape[1]]
        attended = (torch.softmax(scores, dim=-1).flatten(0, 1) @ latents).view(heads, part.shape[1], -1)
        parts.append((attended @ down.transpose(1, 2)).to(query.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
