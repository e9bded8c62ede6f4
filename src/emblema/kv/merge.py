"""The log-sum-exp merge of two attention states: reading a chunk apart loses nothing (Kamera section 2)."""

import torch
from torch import Tensor


def merge_states(output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint key sets from attention over each.

    Args:
        output_a, output_b: [..., width] attention outputs.
        lse_a, lse_b: [...] log-sum-exp of the scores behind them; minus infinity where a set is empty.

    Returns:
        The merged output and its log-sum-exp, float32. Where both sets are empty the output is zero.
    """
    lse_a, lse_b = lse_a.float(), lse_b.float()
    top = torch.maximum(lse_a, lse_b)
    safe = torch.where(top.isinf(), torch.zeros_like(top), top)
    weight_a, weight_b = torch.exp(lse_a - safe), torch.exp(lse_b - safe)
    total = weight_a + weight_b
    merged = weight_a.unsqueeze(-1) * output_a.float() + weight_b.unsqueeze(-1) * output_b.float()
    merged = torch.where(
        total.unsqueeze(-1) > 0, merged / total.clamp_min(1e-38).unsqueeze(-1), torch.zeros_like(merged)
    )
    return merged, safe + torch.log(total)
