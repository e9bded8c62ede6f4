"""Checkpoints with quantised weights, made of small ones; and the numbers that their weights stand for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP, ZERO = 32, 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
UNQUANTISED = ["re:.*visual.*", "lm_head"]
INT8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
    "ignore": UNQUANTISED, "config_groups": {"group_0": {
        "targets": ["Linear"], "format": "int-quantized",
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
        "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
    }},
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False}
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": ["visual"],
}  # fmt: skip
Quantised = tuple[dict[str, Tensor], Tensor]
"""Tensors by the end of their names, and the weight that they stand for."""


def _int8(weight: Tensor) -> Quantised:
    scale = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
    codes = (weight / scale).round().clamp(-127, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, codes * scale


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes of 4 bits [in, out], their scales [groups, out] in half precision, and the weight [out, in]."""
    rows = weight.t().reshape(-1, GROUP, len(weight))
    scale = (rows.abs().amax(1) / 7).clamp(min=1e-4).half()
    codes = (rows / scale.float()[:, None]).round().clamp(-8, 7)
    return (codes + ZERO).flatten(0, 1).int(), scale, (codes * scale.float()[:, None]).flatten(0, 1).t().contiguous()


def _packed(codes: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Return codes [rows, columns] with eight of a row in one number of 32 bits."""
    eights = codes.view(len(codes), -1, 8)[..., list(order)].long()
    whole = (eights << (4 * torch.arange(8))).sum(-1)
    return torch.where(whole >= 2**31, whole - 2**32, whole).int()


def _gptq(weight: Tensor) -> Quantised:
    codes, scale, meant = _grouped(weight)
    zeros = torch.full_like(scale, ZERO - 1, dtype=torch.int32)
    groups = (torch.arange(len(codes)) // GROUP).int()
    packed = _packed(codes.t().contiguous()).t().contiguous()
    return {"qweight": packed, "scales": scale, "qzeros": _packed(zeros), "g_idx": groups}, meant


def _awq(weight: Tensor) -> Quantised:
    codes, scale, meant = _grouped(weight)
    zeros = torch.full_like(scale, ZERO, dtype=torch.int32)
    return {"qweight": _packed(codes, AWQ_ORDER), "scales": scale, "qzeros": _packed(zeros, AWQ_ORDER)}, meant


KINDS: dict[str, tuple[dict[str, object], Callable[[Tensor], Quantised]]] = {
    "int8": (INT8, _int8), "gptq": (GPTQ, _gptq), "awq": (AWQ, _awq),
}  # fmt: skip


def quantise(source: Path, kind: str, folder: Path) -> tuple[Path, Path]:
    """Return a checkpoint with the decoder's weights quantised, and one with the numbers that these stand for.

    Args:
        source: a checkpoint of one file.
        kind: one of `KINDS`.
        folder: a new one, which gets both.
    """
    described, quantised = KINDS[kind]
    coded, meant = folder / "coded", folder / "meant"
    weights = load_file(source / "model.safetensors")
    made, numbers = dict(weights), dict(weights)
    for name, weight in weights.items():
        stem, _, last = name.rpartition(".")
        if last != "weight" or not stem.endswith("_proj") or "visual" in stem:
            continue
        del made[name]
        parts, numbers[name] = quantised(weight)
        made |= {f"{stem}.{end}": part.contiguous() for end, part in parts.items()}
    for place, tensors in ((coded, made), (meant, numbers)):
        shutil.copytree(source, place)
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    return coded, meant
