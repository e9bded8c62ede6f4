"""What an adapter proves about its model before it is trusted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from emblema.errors import UnsupportedModelError
from emblema.kv.chunk import Encoded
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import deficit, form_patch
from emblema.kv.rotation import place, relocate, unplace
from emblema.models.adapter import Adapter
from emblema.models.tables import KVTable
from emblema.models.token_inputs import token_inputs

SHIFTS = (40, 1000, 4096)

Prefilled = Callable[[int], tuple[KVRows, Tensor]]
"""Returns rows and final hidden states of the passage, prefilled alone from a position."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was measured, the bound, and the layer it was worst at, if it belongs to one."""

    name: str
    measured: float
    bound: float
    where: str = ""

    @property
    def passed(self) -> bool:
        return self.measured <= self.bound


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """All checks of one model."""

    family: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = [
            f"{check.name:<28} {check.measured:.2e} (bound {check.bound:.0e}) {'ok' if check.passed else 'FAILED'}"
            f"{' ' + check.where if check.where else ''}"
            for check in self.checks
        ]
        return "\n".join([self.family, *lines])


def selfcheck(adapter: Adapter, tokens: int = 24) -> SelfCheck:
    """Check calibration, relocation, select-all and full-rank patching on the model itself, with random text.

    Raises:
        UnsupportedModelError: a check failed; the message names the check, the figure and the layer.
    """
    full = adapter.dtype == torch.float32
    calibration, encoded = adapter.calibration, probe(adapter, tokens)
    prefilled = cache(lambda start: adapter.prefill(encoded, start))
    checks = [
        Check("calibration", calibration.error, 1e-3 if full else 2e-2, _worst(adapter, calibration.errors)),
        _select_all(adapter, encoded, prefilled, 1e-4 if full else 1e-1),
        *_relocations(adapter, encoded, prefilled, 1e-4 if full else 2e-2, 1e-2 if full else 1e-1),
        _full_rank(adapter, encoded, prefilled, 1e-4 if full else 1e-1),
        *_state_maps(adapter, encoded, prefilled, 1e-4 if full else 2e-2, 1e-2 if full else 1e-1),
    ]
    report = SelfCheck(adapter.family, tuple(checks))
    for check in checks:
        if not check.passed:
            raise UnsupportedModelError(
                f"{adapter.family} failed its self-check {check.name!r}: {check.measured:.2e}, allowed "
                f"{check.bound:.0e}{' at ' + check.where if check.where else ''}. Its chunks cannot be relocated."
            )
    return report


def probe(adapter: Adapter, tokens: int, seed: int = 7) -> Encoded:
    """Return a passage of random tokens as a chunk."""
    generator = torch.Generator().manual_seed(seed)
    limit = min(adapter.vocab_size, adapter.decoder.get_input_embeddings().num_embeddings)
    return adapter.encode_text(torch.randint(0, limit, (tokens,), generator=generator))


def _worst(adapter: Adapter, errors: tuple[float, ...]) -> str:
    return adapter.names[max(range(len(errors)), key=errors.__getitem__)]


def _select_all(adapter: Adapter, encoded: Encoded, prefilled: Prefilled, bound: float) -> Check:
    """Compare every row through the adapter with the decoder's own forward, its own masks and cache."""
    _, hidden = prefilled(0)
    with torch.inference_mode():
        given = token_inputs(adapter.decoder, encoded.token_ids[None].to(adapter.device))
        stock = adapter.decoder(inputs_embeds=encoded.embeds[None], use_cache=False, **given).last_hidden_state[0]
        left, right = adapter.logits(hidden), adapter.logits(stock)
    measure = _difference if adapter.dtype == torch.float32 else _median_difference
    return Check("select-all", measure(left[None], right[None]), bound)


def _relocations(adapter: Adapter, encoded: Encoded, prefilled: Prefilled, first: float, deeper: float) -> list[Check]:
    """Canonical rows turned to a later place against a prefill at that place.

    The first layer has seen no attention, so it must agree to rounding. Deeper layers carry the model's own rounding
    of angles at the far place; they agree in the median token unless a layer uses position in some other way (query
    scaling, absolute embeddings), which then shows from the layer after it.
    """
    rows, _ = prefilled(0)
    checks = []
    for shift in SHIFTS:
        if shift + encoded.span > adapter.context_length:
            continue
        moved = shifted(adapter, rows, encoded, shift)
        native, _ = prefilled(shift)
        start = max(_difference(moved[0].keys, native[0].keys), _difference(moved[0].values, native[0].values))
        checks.append(Check(f"relocation by {shift}", start, first, f"{adapter.names[0]}.self_attn"))
        errors = [
            max(_median_difference(a.keys, b.keys), _median_difference(a.values, b.values))
            for a, b in zip(moved, native, strict=True)
        ]
        worst = max(range(len(errors)), key=errors.__getitem__)
        where = f"{adapter.names[max(0, worst - 1)]}.self_attn or the layer after it"
        checks.append(Check(f"relocation by {shift}, deeper", errors[worst], deeper, where))
    return checks


def shifted(adapter: Adapter, rows: KVRows, encoded: Encoded, shift: int) -> KVRows:
    """Canonical rows relocated by `shift` positions."""
    source = adapter.phases(encoded.positions)
    target = adapter.phases(encoded.positions + shift)
    return tuple(relocate(layer, layout, source, target) for layer, layout in zip(rows, adapter.layouts, strict=True))


def _full_rank(adapter: Adapter, encoded: Encoded, prefilled: Prefilled, bound: float) -> Check:
    """Check a full-rank patch against a prefill.

    The second half of a passage follows the first. Its canonical rows and the whole deficit are formed at one place and
    set at another, and compared with a prefill of everything at that other place.
    """
    half = encoded.tokens // 2
    front, back = (adapter.encode_text(ids) for ids in (encoded.token_ids[:half], encoded.token_ids[half:]))
    together, _ = prefilled(0)
    elsewhere, _ = prefilled(SHIFTS[0])
    alone, _ = adapter.prefill(back)
    here = adapter.phases(back.positions + front.span)
    home = adapter.phases(back.positions)
    there = adapter.phases(back.positions + front.span + SHIFTS[0])
    errors = []
    for index, layout in enumerate(adapter.layouts):
        canonical = unplace(alone[index], layout, home)
        missing = deficit(unplace(together[index].slice(half, encoded.tokens), layout, here), canonical)
        patch = form_patch([missing], back.tokens, torch.float32).layers[0]
        if patch is None:
            continue
        patched = place(patch.apply(canonical), layout, there, adapter.dtype)
        native = elsewhere[index].slice(half, encoded.tokens)
        errors.append(_rows_error(patched, native, adapter.dtype))
    worst = max(range(len(errors)), key=errors.__getitem__)
    return Check("full-rank patch", errors[worst], bound, f"{adapter.names[worst]}.self_attn")


def _state_maps(adapter: Adapter, encoded: Encoded, prefilled: Prefilled, bound: float, moved: float) -> list[Check]:
    """Check that what rows do to a layer's state is a map, whatever the state and wherever the rows are.

    The map is made by the layer's own forward from the states 0 and I. It must give what that makes of a third state,
    be the map of the rows' second half after that of their first half, and be the same for rows prefilled elsewhere.
    """
    layers = [index for index, layout in enumerate(adapter.layouts) if layout.kind == "linear"]
    if not layers:
        return []
    here, there = (_with_rows(adapter, encoded, prefilled(start)[0]) for start in (0, SHIFTS[0]))
    errors: dict[str, list[float]] = {"state is affine": [], "state maps compose": [], "state maps move": []}
    generator = torch.Generator().manual_seed(7)
    for index in layers:
        edge, stop = adapter.layouts[index].edge, encoded.tokens
        with torch.inference_mode():
            scan = adapter.state_scan(here)
            whole, first, second = (
                scan.make_map(index, *rows) for rows in ((edge, stop), (edge, stop // 2), (stop // 2, stop))
            )
            state = torch.randn(whole.own.shape, generator=generator).to(whole.own.device)[None]
            state *= whole.own.float().std()
            ends = scan.run_from(index, edge, stop, state)
            elsewhere = adapter.state_scan(there).make_map(index, edge, stop)
        errors["state is affine"].append(_difference(whole.apply(state), ends))
        errors["state maps compose"].append(_difference(second.after(first).apply(state), ends))
        errors["state maps move"].append(_difference(elsewhere.apply(state), ends))
    checks = []
    for name, found in errors.items():
        worst = max(range(len(found)), key=found.__getitem__)
        most = moved if name == "state maps move" else bound
        checks.append(Check(name, found[worst], most, adapter.names[layers[worst]]))
    return checks


def _with_rows(adapter: Adapter, encoded: Encoded, rows: KVRows) -> KVTable:
    """Return a table of a passage's rows."""
    table = adapter.table(encoded.tokens)
    table.allocate(torch.arange(encoded.tokens, device=adapter.device))
    for layer, own in enumerate(rows):
        table.write(layer, slice(0, encoded.tokens), own)
    return table


def _rows_error(left: LayerRows, right: LayerRows, dtype: torch.dtype) -> float:
    """Largest relative difference. In half precision, where rounding alone moves deep layers and flips an expert here
    and there, the relative norm of the median token."""
    measure = _difference if dtype == torch.float32 else _median_difference
    return max(measure(left.keys, right.keys), measure(left.values, right.values))


def _median_difference(left: Tensor, right: Tensor) -> float:
    wrong = (left.float() - right.float()).norm(dim=(0, 2)) / right.float().norm(dim=(0, 2)).clamp_min(1e-30)
    return float(wrong.median())


def _difference(left: Tensor, right: Tensor) -> float:
    """Largest difference over the largest entry."""
    scale = right.float().abs().max().clamp_min(1e-30)
    return float((left.float() - right.float()).abs().max() / scale)
