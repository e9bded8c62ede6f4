"""The figures: Kamera's 3, 4, 5, 6, 8, 9 and 12, and MPIC's 4 and 8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, AnswerRow
from benchmarks.deficit.findings import correlations, setting_of, slot_label
from benchmarks.deficit.measure import DeficitResult
from benchmarks.deficit.rank import RANKS
from benchmarks.deficit.rows import SHIFTS
from benchmarks.deficit.tokens import CELLS, SHARES
from benchmarks.intervals import Interval
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

FLOOR = 1e-9
"""Nats under which a logarithmic axis shows nothing."""


def structure(result: DeficitResult, folder: Path) -> Path:
    """Draw Kamera 3: energy by rank, the deficit by depth, and the link's landmark keys."""
    log, layers = result.log, result.model.layers
    figure, (energy, depth, link) = make_panels(
        3, f"{result.model.name}: structure of the conditioning deficit (Kamera 3)"
    )
    shades = [INK, *COLOURS]
    for layer in range(layers):
        rows = [log.estimate(f"energy/{wide_slot(result)}/{layer}/{rank}") for rank in RANKS]
        _draw_known(energy, RANKS, rows, f"layer {layer}", shades[layer % len(shades)])
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
    """Draw Kamera 4: recall of cheap selectors, and what the deficit's size goes with."""
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
        draw_bars(goes, list(found), [interval for interval, _ in found.values()], COLOURS[1])
    goes.axvline(0, color=FAINT, linewidth=0.8)
    goes.set_xlim(-1, 1)
    style_panel(goes, "b  rank correlation with the deficit's size", "over chunks", "", grid="x")
    return save_figure(figure, folder, f"kamera-4-{result.model.name}")


def wrong_axes(result: DeficitResult, folder: Path) -> Path:
    """Draw Kamera 6: tokens, depth and heads, each against what a thin patch recovers."""
    log, layers, setting = result.log, result.model.layers, setting_of(result)
    figure, (token, depth, head) = make_panels(3, f"{result.model.name}: tokens, layers, heads (Kamera 6), {setting}")

    def recovered(axes: Any, across: Sequence[float], names: Sequence[str], label: str, colour: str) -> None:
        rows = [log.row(name, setting, MULTI) for name in names]
        _draw_known(axes, across, [row and row.eta for row in rows], label, colour)

    for place, (label, name) in enumerate((("largest deficit", "oracle tokens"), ("first", "first tokens"))):
        recovered(token, SHARES, [f"{name}/{share}" for share in SHARES], label, COLOURS[place])
    for name, shade in (("rank/4", COLOURS[2]), ("rank/16", INK)):
        row = log.row(name, setting, MULTI)
        if row is not None:
            token.axhline(row.eta.value, color=shade, linewidth=1, linestyle="--", label=f"patch, rank {name[5:]}")
    style_panel(token, "a  true rows for some tokens", "percent of the tokens", "eta")
    draw_legend(token, loc="lower right")
    every = list(range(layers))
    recovered(depth, every, [f"only layer/{layer}" for layer in every], "patch in this layer only", COLOURS[0])
    counts = list(range(1, layers))
    recovered(depth, counts, [f"deepest/{layers - layer}" for layer in counts], "patch from here on", COLOURS[1])
    explained = [log.estimate(f"injected/{layer}") for layer in every]
    _draw_known(depth, every, explained, "last deficit explained, injected here", COLOURS[2])
    depth.set_xticks(every)
    depth.set_ylim(-0.5, 1.1)
    style_panel(depth, "b  one layer, or all from a layer on", "layer", "eta, or share explained")
    draw_legend(depth, loc="lower right")
    recovered(head, CELLS, [f"oracle heads/{share}" for share in CELLS], "eta with the largest cells", COLOURS[0])
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
    """Draw Kamera 8: one plane a layer, features by tokens."""
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


def wide_slot(result: DeficitResult) -> str:
    """Return the slot that holds content: values, or the latent."""
    return "keys" if result.model.kind == "latent" else "values"


def _scaled(row: Any, by: float) -> Any:
    return Interval(row.value * by, row.low * by, row.high * by)


def _draw_known(axes: Any, across: Sequence[float], rows: Sequence[Any], label: str, colour: str) -> None:
    """Draw the estimates that there are."""
    kept = [(at, row) for at, row in zip(across, rows, strict=True) if row is not None]
    if kept:
        draw_line(axes, [at for at, _ in kept], [row for _, row in kept], label, colour)


def _some(places: list[int], most: int) -> list[int]:
    return places if len(places) <= most else [places[int(at)] for at in np.linspace(0, len(places) - 1, most)]


def kl_by_rank(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Draw Kamera 5: the KL left over by rank, one line a model."""
    figure, (left, share) = make_panels(2, "One rank for every model? KL by rank of the patch (Kamera 5)")
    for place, result in enumerate(result for result in results if result.binds):
        ranks, rows = _ranks(result)
        if not rows:
            continue
        model = result.model
        label = f"{model.name}: {model.kind}, width {sum(model.widths)}, {'MoE' if model.experts else 'dense'}"
        draw_line(left, ranks, [row.kl for row in rows], label, COLOURS[place % len(COLOURS)], floor=FLOOR)
        draw_line(share, ranks, [row.eta for row in rows], label, COLOURS[place % len(COLOURS)])
    every = sorted({rank for result in results for rank in _ranks(result)[0]})
    for axes in (left, share):
        rank_axis(axes, every)
    left.set_yscale("log")
    style_panel(left, "a  KL from re-prefill", "rank; the last is full", "nats")
    style_panel(share, "b  share of blind reuse's KL closed", "rank", "eta")
    share.set_ylim(-0.1, 1.1)
    draw_legend(share, loc="lower right")
    return save_figure(figure, folder, "kamera-5")


def across_models(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Draw Kamera 9: the deficit's rank over its tokens, and recovery by rank, with models that do not bind."""
    figure, (size, low, recovery) = make_panels(3, "Across models (Kamera 9)")
    names = [result.model.name for result in results]
    blinds = [result.log.row(BLIND, setting_of(result), MULTI) for result in results]
    shades = [COLOURS[place % len(COLOURS)] for place in range(len(results))]
    draw_bars(size, names, [row.kl for row in blinds if row is not None], shades)
    style_panel(size, "a  KL of blind reuse", "nats", "", grid="x")
    for place, slot in enumerate(("keys", "values")):
        sizes = [result.log.estimate(f"e90 per token/{slot}/largest") for result in results]
        kept = [(at, size) for at, size in enumerate(sizes) if size is not None]
        low.barh([at + 0.2 * (2 * place - 1) for at, _ in kept], [size.value for _, size in kept], height=0.36,
                 color=COLOURS[place], label=f"{slot} (MLA: {('latent', 'rotary key')[place]})",
                 xerr=[[size.value - size.low for _, size in kept], [size.high - size.value for _, size in kept]],
                 error_kw={"linewidth": 1})  # fmt: skip
    low.set_yticks(range(len(names)), names)
    low.set_ylim(len(names) - 0.5, -0.5)
    style_panel(low, "b  e90 over tokens, the largest of any layer", "", "", grid="x")
    low.set_xlim(0, low.get_xlim()[1] * 1.1)
    draw_legend(low, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    for place, result in enumerate(results):
        ranks, rows = _ranks(result)
        if rows:
            draw_line(
                recovery, ranks, [row.eta for row in rows], result.model.name, shades[place], dashed=not result.binds
            )
    rank_axis(recovery, sorted({rank for result in results for rank in _ranks(result)[0]}))
    recovery.set_ylim(-0.5, 1.1)
    style_panel(recovery, "c  recovery by rank", "rank", "eta")
    draw_legend(recovery, loc="lower right")
    return save_figure(figure, folder, "kamera-9")


def rounding(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Draw Kamera 12: errors in ULP, relocation alone at far places, and accuracy beside agreement."""
    figure, (error, far, right) = make_panels(3, "Down to rounding (Kamera 12)")
    ways = ("raw", "relocated", "patched 16", "patched 64", "patched full")
    shown = [result for result in results if result.binds]
    for place, result in enumerate(shown):
        log, colour = result.log, COLOURS[place % len(COLOURS)]
        errors = [log.estimate(f"ulp/{way}/keys") for way in ways]
        kept = [(at, found) for at, found in enumerate(errors) if found is not None]
        draw_line(error, [at for at, _ in kept], [found for _, found in kept], result.model.name, colour, floor=1e-3)
        moved = [log.estimate(f"relocation/{shift}") for shift in SHIFTS]
        _draw_known(far, SHIFTS, moved, f"{result.model.name}: {result.model.rotary}", colour)
        setting = setting_of(result)
        for at, name in enumerate((FULL, BLIND, "rank/4", "rank/16", "rank/64")):
            row = log.row(name, setting, MULTI)
            if row is None or row.accuracy is None:
                continue
            across = at + 0.8 * (place + 0.5) / len(shown) - 0.4
            low, high = row.accuracy.value - row.accuracy.low, row.accuracy.high - row.accuracy.value
            right.bar(across, row.accuracy.value, width=0.8 / len(shown), color=colour,
                      yerr=[[low], [high]], error_kw={"linewidth": 1})  # fmt: skip
            right.text(across, 1.03, f"{row.agreement.value:.2f}", fontsize=6.5, ha="center", color=FAINT)
    error.set_yscale("log")
    error.set_xticks(range(len(ways)), ways, rotation=20)
    error.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
    style_panel(error, "a  keys against re-prefill's (MLA: the latent)", "", "RMS error, bf16 ULP")
    draw_legend(error, loc="lower left")
    far.set_xscale("log", base=4)
    far.set_ylim(0, None)
    far.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
    style_panel(far, "b  relocation alone, largest error", "positions moved", "bf16 ULP")
    draw_legend(far, loc="lower right")
    right.set_xticks(range(5), ("re-prefill", "blind", "rank 4", "rank 16", "rank 64"))
    right.set_ylim(0, 1.1)
    style_panel(right, "c  accuracy; above: agreement with re-prefill", "", "accuracy")
    return save_figure(figure, folder, "kamera-12")


def draw_attention(result: DeficitResult, folder: Path) -> Path | None:
    """Draw MPIC 4: the attention of the first output token, as a distribution and summed along the picture."""
    found = result.examples.attention
    if found is None or not len(found):
        return None
    figure, (spread, summed) = make_panels(
        2, f"{result.model.name}: attention of the first output token to one chunk (MPIC 4)"
    )
    for layer, row in enumerate(found):
        own = np.sort(np.diff(np.concatenate([[0.0], row])))
        shade = ([INK, *COLOURS])[layer % 9]
        spread.plot(np.maximum(own, 1e-8), np.arange(1, len(own) + 1) / len(own), color=shade, label=f"layer {layer}")
        summed.plot(np.arange(1, len(row) + 1), row, color=shade, label=f"layer {layer}")
    spread.axvline(1e-3, color=FAINT, linewidth=0.8, linestyle=":")
    spread.set_xscale("log")
    style_panel(spread, "a  tokens by their share of the picture's attention", "share", "tokens up to this share")
    summed.plot([1, found.shape[1]], [1 / found.shape[1], 1], color=FAINT, linewidth=0.8, linestyle=":")
    style_panel(summed, "b  attention summed along the picture", "token", "sum")
    draw_legend(summed, loc="lower right")
    return save_figure(figure, folder, f"mpic-4-{result.model.name}")


def moved_tokens(result: DeficitResult, folder: Path) -> Path | None:
    """Draw MPIC 8: in how many layers each token's keys are among those that moved most, mean over chunks."""
    if not result.examples.moved:
        return None
    longest = max(map(len, result.examples.moved))
    kept = [shares for shares in result.examples.moved if len(shares) == longest]
    figure, (axes,) = make_panels(1, f"{result.model.name}: keys that move most (MPIC 8)", width=7.5)
    axes.bar(range(longest), np.mean(kept, axis=0), color=COLOURS[0], width=0.9)
    style_panel(
        axes, f"share of layers in which a token's keys are among the top 4 %, {len(kept)} chunks", "token", "share"
    )
    return save_figure(figure, folder, f"mpic-8-{result.model.name}")


def _ranks(result: DeficitResult) -> tuple[list[float], list[AnswerRow]]:
    """Return ranks with their rows, blind reuse at a half and full rank at the tokens' number."""
    setting = setting_of(result)
    rows = [(0.5, result.log.row(BLIND, setting, MULTI))]
    for name in result.log.names(setting, MULTI):
        if name.startswith("rank/"):
            code = name.removeprefix("rank/")
            full = result.log.estimate("tokens")
            at = float(code) if code != "full" else min(full.value if full else 1.0, max(result.model.widths))
            rows.append((at, result.log.row(name, setting, MULTI)))
    kept = [(at, row) for at, row in rows if row is not None]
    return [at for at, _ in kept], [row for _, row in kept]


def draw(results: Sequence[DeficitResult], folder: Path) -> list[Path]:
    """Draw every plot that there are figures for; returns their paths."""
    drawn: list[Path | None] = [kl_by_rank(results, folder), across_models(results, folder), rounding(results, folder)]
    for result in results:
        if result.binds:
            for plot in (structure, cheap_signals, wrong_axes, planes, draw_attention, moved_tokens):
                drawn.append(plot(result, folder))
    return [path for path in drawn if path is not None]
