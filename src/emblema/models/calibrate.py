"""How each layer of a decoder rotates its rows, measured on the decoder itself.

A forward of one token attends to itself only, so no layer's hidden state depends on where the token is, and the
row it caches at position p is exactly its row at position 0 turned by R(p). One token is therefore run at many
positions, on all axes and on each alone, and for every layer the slot, pairing, width, axis and table column of each
pair are fitted.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from emblema.errors import UnsupportedModelError
from emblema.kv.layout import LayerLayout, Pairing, RotaryBand, Slot
from emblema.models.linear_attention import LINEAR, find_state_mixer, linear_layout
from emblema.models.token_inputs import token_inputs

FIT_POSITIONS = (1, 5, 37, 401, 4099, 65537, 524309, 1000003)
CONVOLUTION = "conv"
"""How configurations call a layer that is a short convolution over the rows before it."""
CHECK_POSITIONS = ((2, 2, 2), (3, 911, 47), (70001, 13, 2203), (29, 31, 600011))


class DecoderTable:
    """One of the decoder's own rotary tables: positions [n] to cosines and sines [n, columns] float32, unscaled."""

    def __init__(self, rotary: nn.Module, axes: int, layer_type: str | None) -> None:
        self.rotary = rotary
        self.axes = axes
        self.layer_type = layer_type

    @property
    def scaling(self) -> float:
        named = f"{self.layer_type}_attention_scaling"
        return float(getattr(self.rotary, named, getattr(self.rotary, "attention_scaling", 1.0)) or 1.0)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        dummy = torch.zeros(1, 1, 1, dtype=torch.float32, device=positions.device)
        ids = positions.reshape(1, -1) if self.axes == 1 else positions.reshape(1, 1, -1).expand(self.axes, 1, -1)
        arguments = (dummy, ids) if self.layer_type is None else (dummy, ids, self.layer_type)
        with torch.no_grad():
            table = self.rotary(*arguments)
        cos, sin = (table.real, table.imag) if isinstance(table, Tensor) else table
        # Older rotary modules hand back one table per axis; with equal positions they are all the same.
        cos, sin = (part.reshape(-1, positions.shape[0], part.shape[-1])[0].float() for part in (cos, sin))
        if cos.device != positions.device:
            # The module is elsewhere than the layers that it is asked for.
            cos, sin = cos.to(positions.device), sin.to(positions.device)
        return cos / self.scaling, sin / self.scaling


@dataclass(frozen=True)
class Calibration:
    """What was measured: a layout per layer, the rotary tables by name, and the largest relative error of the fit."""

    layouts: tuple[LayerLayout, ...]
    tables: dict[str, DecoderTable]
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        return max(self.errors, default=0.0)


def calibrate(
    decoder: nn.Module, layers: Sequence[nn.Module], names: Sequence[str], axes: int, windows: Sequence[int | None]
) -> Calibration:
    """Measure every layer's layout.

    Args:
        decoder: the model's decoder, called as `decoder(inputs_embeds=…, position_ids=…, …)`.
        layers: its layers that keep rows, in order, and `names`: their paths in the model, for messages.
        axes: position axes, 1 or 3.
        windows: each layer's sliding window, copied into its layout.

    Raises:
        UnsupportedModelError: a layer keeps no rows, or no rotation fits its rows to 1e-3; the message names it.
    """
    tables = rotary_tables(decoder, axes)
    fit = [(p,) * axes for p in FIT_POSITIONS]
    if axes > 1:
        fit += [tuple(p * (axis == turned) for axis in range(axes)) for turned in range(axes) for p in FIT_POSITIONS]
    check = [point[:axes] for point in CHECK_POSITIONS]
    points = torch.tensor([(0,) * axes, *fit, *check], dtype=torch.int64)
    layouts, errors = [], []
    types = layer_types(decoder, len(layers))
    cache, dtype = _one_token_rows(decoder, points, axes, types), _embeddings(decoder).dtype
    for index, name in enumerate(names):
        if types[index] == LINEAR:
            layouts.append(linear_layout(find_state_mixer(layers[index]), dtype))
            errors.append(0.0)
            continue
        if types[index] == CONVOLUTION:
            layout, error = _convolution(cache, index, name)
            layouts.append(layout)
            errors.append(error)
            continue
        slots = _slots(cache, index, name)
        preferred = [types[index]] if types[index] in tables else []
        order = preferred + [table for table in tables if table not in preferred]
        band, error = _fit_layer(slots, points, len(fit), {key: tables[key] for key in order}, name)
        keys, values = slots["keys"], slots["values"]
        shape = (int(keys.shape[1]), int(keys.shape[2])), (int(values.shape[1]), int(values.shape[2]))
        layouts.append(LayerLayout(shape[0], shape[1], band, windows[index]))
        errors.append(error)
    return Calibration(tuple(layouts), tables, tuple(errors))


def layer_types(decoder: Any, count: int) -> list[str]:
    """Return each layer's attention type as the decoder's config names it (`full_attention` where it does not)."""
    types = getattr(decoder.config, "layer_types", None)
    return list(types) if types else ["full_attention"] * count


def rotary_module(decoder: nn.Module) -> Any:
    """Return the decoder's rotary module, wherever it keeps it."""
    for name in ("rotary_emb", "rotary_pos_emb", "rotary"):
        if isinstance(module := getattr(decoder, name, None), nn.Module):
            return module
    for name, module in decoder.named_modules():
        if name.endswith("rotary_emb"):
            return module
    raise UnsupportedModelError(f"{type(decoder).__name__} has no rotary module, so its keys cannot be relocated.")


def cache_argument(module: Any) -> str:
    """Return by which name the forward of a decoder or of a layer takes its cache: transformers 5.23 renamed it."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def rotary_tables(decoder: Any, axes: int) -> dict[str, DecoderTable]:
    """Return the decoder's rotary tables by name: one called `default`, or one per layer type."""
    rotary = rotary_module(decoder)
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        return {name: DecoderTable(rotary, axes, name) for name in dict.fromkeys(decoder.config.layer_types)}
    return {"default": DecoderTable(rotary, axes, None)}


def _embeddings(decoder: Any) -> Tensor:
    weights: Tensor = decoder.get_input_embeddings().weight
    return weights


def _one_token_rows(decoder: Any, points: Tensor, axes: int, types: Sequence[str]) -> DynamicCache:
    weight = _embeddings(decoder)
    device, dtype = weight.device, weight.dtype
    generator = torch.Generator().manual_seed(20260)
    token = torch.randn(weight.shape[1], generator=generator)
    spread = float(weight.detach()[: min(1024, weight.shape[0])].float().std())
    count = points.shape[0]
    embeds = (token * spread).to(device=device, dtype=dtype).expand(count, 1, -1).contiguous()
    positions = points.to(device)
    ids = positions if axes == 1 else positions.transpose(0, 1).unsqueeze(-1)
    mask: Any = torch.zeros(count, 1, 1, 1, dtype=dtype, device=device)
    cache = DynamicCache()
    if {CONVOLUTION, LINEAR} & set(types):
        cache = DynamicCache(config=decoder.config)
        mask = {kind: None if kind in (CONVOLUTION, LINEAR) else mask for kind in types}
    arguments: dict[str, Any] = {"inputs_embeds": embeds, "position_ids": ids, cache_argument(decoder): cache}
    with torch.inference_mode():
        arguments |= token_inputs(decoder, torch.zeros(count, 1, dtype=torch.int64, device=device))
        decoder(**arguments, attention_mask=mask, use_cache=True)
    return cache


def _convolution(cache: DynamicCache, index: int, name: str) -> tuple[LayerLayout, float]:
    """Return the layout of a convolution's inputs, and how far they change with position."""
    states = getattr(cache.layers[index], "conv_states", None) if index < len(cache.layers) else None
    if not states or states[0] is None or states[0].dim() != 3:
        raise UnsupportedModelError(f"{name} keeps no inputs of its convolution, so it cannot be relocated.")
    inputs = states[0][..., -1].double().cpu()
    error = _relative(inputs[1:] - inputs[:1], inputs[0])
    if error > (1e-3 if _is_full_precision(inputs) else 2e-2):
        raise UnsupportedModelError(f"{name} changes its convolution's inputs with position; it cannot be relocated.")
    channels, taps = int(states[0].shape[1]), int(states[0].shape[2])
    return LayerLayout((1, channels // 2), (1, channels - channels // 2), None, taps=taps), error


def _slots(cache: DynamicCache, index: int, name: str) -> dict[Slot, Tensor]:
    layer: Any = cache.layers[index] if index < len(cache.layers) else None
    if layer is None or getattr(layer, "keys", None) is None or layer.keys.dim() != 4 or layer.keys.shape[2] != 1:
        raise UnsupportedModelError(f"{name} keeps no row of its own for every token, so it cannot be relocated.")
    return {"keys": layer.keys[:, :, 0].double().cpu(), "values": layer.values[:, :, 0].double().cpu()}


def _fit_layer(
    slots: dict[Slot, Tensor], points: Tensor, fitted: int, tables: dict[str, DecoderTable], name: str
) -> tuple[RotaryBand | None, float]:
    tolerance = 1e-3 if slots["keys"].dtype == torch.float64 and _is_full_precision(slots["keys"]) else 2e-2
    moved: list[Slot] = []
    for slot, rows in slots.items():
        if float((rows[1:] - rows[:1]).abs().max()) > tolerance * float(rows[0].abs().max()):
            moved.append(slot)
    if not moved:
        return None, max(_relative(rows[1:] - rows[:1], rows[0]) for rows in slots.values())
    if len(moved) > 1:
        raise UnsupportedModelError(f"{name} turns both of its cached slots with position; it cannot be relocated.")
    best: tuple[float, RotaryBand | None] = (float("inf"), None)
    for key, table in tables.items():
        for band, cos, sin in _candidates(slots[moved[0]], moved[0], points, fitted, key, table):
            error = _band_error(slots[moved[0]], band, points, cos, sin)
            if error < best[0]:
                best = (error, band)
            if error < tolerance:
                return band, error
    raise UnsupportedModelError(
        f"{name} changes its {moved[0]} with position in a way that no rotary layout explains "
        f"(best relative error {best[0]:.1e}, allowed {tolerance:.0e}); it cannot be relocated."
    )


def _is_full_precision(rows: Tensor) -> bool:
    """Return whether rows carry more than bfloat16 or float16 digits."""
    return not (torch.equal(rows, rows.bfloat16().double()) or torch.equal(rows, rows.half().double()))


def _relative(difference: Tensor, rows: Tensor) -> float:
    return float(difference.abs().max() / rows.abs().max().clamp_min(1e-30))


def _table_at(table: DecoderTable, points: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [points, axes, columns] float64 of a table at the probe positions."""
    device = next(iter(table.rotary.buffers()), torch.empty(0)).device
    cos, sin = table(points.reshape(-1).to(device))
    shape = (*points.shape, cos.shape[-1])
    return cos.double().cpu().reshape(shape), sin.double().cpu().reshape(shape)


def _columns(cos: Tensor, sin: Tensor) -> list[int]:
    """Return one column per frequency: tables often hold each twice, side by side or half against half."""
    count = cos.shape[-1]
    half = count // 2
    both = torch.stack((cos, sin))
    if count % 2 == 0 and torch.equal(both[..., :half], both[..., half:]):
        return list(range(half))
    if count % 2 == 0 and torch.equal(both[..., 0::2], both[..., 1::2]):
        return list(range(0, count, 2))
    return list(range(count))


def _candidates(
    rows: Tensor, slot: Slot, points: Tensor, fitted: int, name: str, table: DecoderTable
) -> Iterator[tuple[RotaryBand, Tensor, Tensor]]:
    """Yield the bands that may be, one after another: what each explains best is searched for, and takes long."""
    cos, sin = _table_at(table, points)
    columns = _columns(cos, sin)
    width, features = 2 * len(columns), rows.shape[-1]
    if width > features:
        columns, width = columns[: features // 2], features // 2 * 2
    pairings: tuple[Pairing, ...] = ("half", "pairs")
    for start in dict.fromkeys((0, features - width)):
        for pairing in pairings:
            band = RotaryBand(slot, pairing, start, width, name, (0,) * (width // 2), tuple(columns))
            yield _assign(rows, band, points, fitted, cos, sin, columns), cos, sin


def _pairs(rows: Tensor, band: RotaryBand) -> Tensor:
    """Rotated pairs of rows [probes, heads, width] as complex numbers [probes, heads, pairs]."""
    turned = rows[..., band.start : band.start + band.width]
    half = band.width // 2
    if band.pairing == "half":
        return torch.complex(turned[..., :half].contiguous(), turned[..., half:].contiguous())
    return torch.complex(turned[..., 0::2].contiguous(), turned[..., 1::2].contiguous())


def _assign(
    rows: Tensor, band: RotaryBand, points: Tensor, fitted: int, cos: Tensor, sin: Tensor, columns: list[int]
) -> RotaryBand:
    """Return the axis and column that explain each pair best; its own column where that explains it."""
    pairs = _pairs(rows, band)
    origin, seen = pairs[0], pairs[1 : 1 + fitted]
    turns = torch.complex(cos, sin)[1 : 1 + fitted]
    axes, chosen = [], []
    norm = float(pairs.abs().square().mean())
    for pair, own in enumerate(columns):
        best = (float("inf"), 0, own)
        for column in (own, *(other for other in columns if other != own)):
            for axis in range(points.shape[1]):
                predicted = origin[None, :, pair] * turns[:, axis, column][:, None]
                error = float((predicted - seen[:, :, pair]).abs().square().mean())
                if error < best[0]:
                    best = (error, axis, column)
            if column == own and best[0] < 1e-5 * norm:
                break
        axes.append(best[1])
        chosen.append(best[2])
    return RotaryBand(band.slot, band.pairing, band.start, band.width, band.table, tuple(axes), tuple(chosen))


def _band_error(rows: Tensor, band: RotaryBand, points: Tensor, cos: Tensor, sin: Tensor) -> float:
    """Largest error of the band's prediction at every probe, the unfitted ones included, over the largest row entry."""
    pairs = _pairs(rows, band)
    index = torch.arange(band.width // 2)
    turns = torch.complex(cos, sin)[:, torch.tensor(band.axes), torch.tensor(band.frequencies)][:, None, index]
    wrong = (pairs[:1] * turns - pairs).abs().max() / rows.abs().max()
    still = rows.clone()
    still[..., band.start : band.start + band.width] = 0
    return max(float(wrong), _relative(still - still[:1], rows))
