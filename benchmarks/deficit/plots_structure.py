"""The figures of one model's deficit: Kamera 3, 4, 6 and 8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.deficit.answerlog import MULTI, AnswerLog
from benchmarks.deficit.findings import correlations, setting_of
from benchmarks.deficit.rank import RANKS
from benchmarks.deficit.result import DeficitResult
from benchmarks.deficit.tokens import SHARES
from benchmarks.plots import (
    COLOURS,
    FAINT,
    INK,
    draw_bars,
    draw_legend,
    draw_line,
    make_panels,
    rank_axis,
    save_figure,
    style_panel,
)


def structure(result: DeficitResult, folder: Path) -> Path:
    """Kamera 3: energy by rank, the deficit by depth, and the link's landmark keys."""
    log, layers = result.log, result.model.layers
    figure, (energy, depth, link) = make_panels(
        3, f"{result.model.name}: structure of the conditioning deficit (Kamera 3)"
    )
    shades = [INK, *COLOURS]
    for layer in range(layers):
        rows = [log.estimate(f"energy/{wide_slot(result)}/{layer}/{rank}") for rank in RANKS]
        kept = [(rank, row) for rank, row in zip(RANKS, rows, strict=True) if row is not None]
        if kept:
            draw_line(
                energy,
                [rank for rank, _ in kept],
                [row for _, row in kept],
                f"layer {layer}",
                shades[layer % len(shades)],
            )
    energy.axhline(0.9, color=FAINT, linewidth=0.8, linestyle=":")
    rank_axis(energy, RANKS)
    style_panel(
        energy, "a  share of the deficit's energy by rank", "rank", f"energy, {slot_label(result, wide_slot(result))}"
    )
    draw_legend(energy, loc="lower right")
    for place, name in enumerate(("deficit", "conditioning", "position")):
        for slot, dashed in (("keys", True), ("values", False)):
            rows = [log.estimate(f"{name}/{slot}/{layer}") for layer in range(layers)]
            if all(row is not None for row in rows):
                label = f"{name}, {slot_label(result, slot)}"
                draw_line(depth, range(layers), rows, label, COLOURS[place], dashed=dashed)
    style_panel(depth, "b  relative norm by layer", "layer", "norm / norm of the rows")
    depth.set_xticks(range(layers))
    draw_legend(depth)
    marks = [log.estimate(f"landmarks per key/{layer}") for layer in range(layers)]
    ranks = [log.estimate(f"link rank/{layer}") for layer in range(layers)]
    if all(row is not None for row in (*marks, *ranks)):
        keys = log.estimate("antecedent keys")
        share = 1 if keys is None else keys.value
        draw_line(
            link, range(layers), [_scaled(row, share) for row in marks], "keys with 90 % of the attention", COLOURS[0]
        )
        draw_line(link, range(layers), ranks, "directions with 90 % of its energy", COLOURS[1])
        link.axhline(share, color=FAINT, linewidth=0.8, linestyle=":")
        link.text(0, share, f"{share:.0f} antecedent keys", fontsize=7.5, color=FAINT, va="bottom")
        link.set_ylim(0, share * 1.12)
        link.set_xticks(range(layers))
        draw_legend(link, loc="center right")
    style_panel(link, "c  the link from antecedents to the chunk", "layer", "number")
    return save_figure(figure, folder, f"kamera-3-{result.model.name}")


def cheap_signals(result: DeficitResult, folder: Path) -> Path:
    """Kamera 4: recall of cheap selectors, and what the deficit's size goes with."""
    log = result.log
    figure, (recall, goes) = make_panels(2, f"{result.model.name}: cheap signals for the deficit (Kamera 4)")
    names = [name for name in log.values if name.startswith("recall/")]
    rows = {name.removeprefix("recall/"): row for name in names if (row := log.estimate(name)) is not None}
    order = sorted(rows, key=lambda name: -rows[name].value)
    draw_bars(recall, order, [rows[name] for name in order], COLOURS[0])
    chance = rows.get("chance")
    recall.axvline(0.25, color=FAINT, linewidth=0.8, linestyle=":")
    if chance is not None:
        recall.set_xlim(0, 1)
    style_panel(recall, "a  the quarter of tokens of largest deficit, found", "recall", "", grid="x")
    found = correlations(result)
    if found:
        draw_bars(goes, list(found), [one for one, _ in found.values()], COLOURS[1])
    goes.axvline(0, color=FAINT, linewidth=0.8)
    goes.set_xlim(-1, 1)
    style_panel(goes, "b  rank correlation with the deficit's size", "over chunks", "", grid="x")
    return save_figure(figure, folder, f"kamera-4-{result.model.name}")


def wrong_axes(result: DeficitResult, folder: Path) -> Path:
    """Kamera 6: tokens, depth and heads, each against what a thin patch recovers."""
    log, layers, setting = result.log, result.model.layers, setting_of(result)
    figure, (token, depth, head) = make_panels(3, f"{result.model.name}: tokens, layers, heads (Kamera 6), {setting}")
    for place, (label, name) in enumerate((("largest deficit", "oracle tokens"), ("first", "first tokens"))):
        _recoveries(token, log, setting, [f"{name}/{share}" for share in SHARES], SHARES, label, COLOURS[place])
    for name, shade in (("rank/4", COLOURS[2]), ("rank/16", INK)):
        row = log.row(name, setting, MULTI)
        if row is not None:
            token.axhline(row.eta.value, color=shade, linewidth=1, linestyle="--", label=f"patch, rank {name[5:]}")
    style_panel(token, "a  true rows for some tokens", "percent of the tokens", "eta")
    draw_legend(token, loc="lower right")
    every = list(range(layers))
    _recoveries(
        depth,
        log,
        setting,
        [f"only layer/{layer}" for layer in every],
        every,
        "patch in this layer only",
        COLOURS[0],
    )
    counts = list(range(1, layers))
    _recoveries(
        depth,
        log,
        setting,
        [f"deepest/{layers - layer}" for layer in counts],
        counts,
        "patch from here on",
        COLOURS[1],
    )
    explained = [(layer, one) for layer in every if (one := log.estimate(f"injected/{layer}")) is not None]
    if explained:
        draw_line(
            depth,
            [layer for layer, _ in explained],
            [one for _, one in explained],
            "last deficit explained, injected here",
            COLOURS[2],
        )
    depth.set_xticks(every)
    depth.set_ylim(-0.5, 1.1)
    style_panel(depth, "b  one layer, or all from a layer on", "layer", "eta, or share explained")
    draw_legend(depth, loc="lower right")
    shares = [10, 25, 50, 75]
    _recoveries(
        head,
        log,
        setting,
        [f"oracle heads/{share}" for share in shares],
        shares,
        "eta with the largest cells",
        COLOURS[0],
    )
    needed = log.estimate("energy share/heads")
    if needed is not None:
        head.axvline(needed.value * 100, color=COLOURS[1], linewidth=1)
        head.axvspan(needed.low * 100, needed.high * 100, color=COLOURS[1], alpha=0.15, linewidth=0)
        head.text(needed.value * 100 + 1.5, 0.1, "90 % of\nthe energy", fontsize=7.5, color=COLOURS[1])
    head.set_xlim(0, 100)
    head.set_ylim(0, 1.08)
    style_panel(head, "c  true rows for some (layer, slot, head) cells", "percent of the cells", "eta")
    draw_legend(head, loc="lower right")
    return save_figure(figure, folder, f"kamera-6-{result.model.name}")


def planes(result: DeficitResult, folder: Path) -> Path | None:
    """Kamera 8: one plane a layer, features by tokens."""
    found = result.examples.planes
    if found is None:
        return None
    shown = _some(list(range(len(found))), 6)
    figure, axes = make_panels(
        len(shown), f"{result.model.name}: the deficit of one chunk, layer by layer (Kamera 8)", width=2.9
    )
    top = float(np.quantile(found, 0.995)) or 1.0
    picture = None
    for panel, layer in zip(axes, shown, strict=True):
        picture = panel.imshow(found[layer], aspect="auto", cmap="magma", vmin=0, vmax=top, interpolation="nearest")
        style_panel(panel, f"layer {layer}", "token", "keys, then values" if layer == shown[0] else "", grid="")
        panel.set_yticks([])
    figure.colorbar(picture, ax=axes[-1], label="|deficit| / RMS of the rows")
    return save_figure(figure, folder, f"kamera-8-{result.model.name}")


def slot_label(result: DeficitResult, slot: str) -> str:
    """What a slot is called, by the kind of cache."""
    latent = result.model.kind == "latent"
    return {"keys": "latent" if latent else "keys", "values": "rotary key" if latent else "values"}[slot]


def wide_slot(result: DeficitResult) -> str:
    """The slot that holds content: values, or the latent."""
    return "keys" if result.model.kind == "latent" else "values"


def _scaled(row: Any, by: float) -> Any:
    from emblema.eval.metrics import Interval

    return Interval(row.value * by, row.low * by, row.high * by)


def _recoveries(
    axes: Any, log: AnswerLog, setting: str, names: Sequence[str], across: Sequence[float], label: str, colour: str
) -> None:
    rows = [(at, row.eta) for at, name in zip(across, names, strict=True) if (row := log.row(name, setting, MULTI))]
    if rows:
        draw_line(axes, [at for at, _ in rows], [row for _, row in rows], label, colour)


def _some(places: list[int], most: int) -> list[int]:
    return places if len(places) <= most else [places[int(at)] for at in np.linspace(0, len(places) - 1, most)]
