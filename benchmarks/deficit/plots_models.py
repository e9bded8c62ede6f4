"""The figures that set models side by side, Kamera 5, 9 and 12, and MPIC's 4 and 8."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, MULTI, AnswerRow
from benchmarks.deficit.findings import setting_of
from benchmarks.deficit.result import DeficitResult
from benchmarks.deficit.ulp import SHIFTS
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


def kl_by_rank(results: Sequence[DeficitResult], folder: Path) -> Path:
    """Kamera 5: the KL left over by rank, one line a model."""
    figure, (left, share) = make_panels(2, "One rank for every model? KL by rank of the patch (Kamera 5)")
    for place, result in enumerate(one for one in results if one.binds):
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
    """Kamera 9: the deficit's rank over its tokens, and the recovery by rank; models that do not bind among them."""
    figure, (size, low, recovery) = make_panels(3, "Across models (Kamera 9)")
    names = [result.model.name for result in results]
    blinds = [result.log.row(BLIND, setting_of(result), MULTI) for result in results]
    shades = [COLOURS[place % len(COLOURS)] for place in range(len(results))]
    draw_bars(size, names, [row.kl for row in blinds if row is not None], shades)
    style_panel(size, "a  KL of blind reuse", "nats", "", grid="x")
    for place, slot in enumerate(("keys", "values")):
        sizes = [result.log.estimate(f"e90 per token/{slot}/largest") for result in results]
        kept = [(at, one) for at, one in enumerate(sizes) if one is not None]
        low.barh([at + 0.2 * (2 * place - 1) for at, _ in kept], [one.value for _, one in kept], height=0.36,
                 color=COLOURS[place], label=f"{slot} (MLA: {('latent', 'rotary key')[place]})",
                 xerr=[[one.value - one.low for _, one in kept], [one.high - one.value for _, one in kept]],
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
    """Kamera 12: errors in ULP, relocation alone at far places, and accuracy beside agreement."""
    figure, (error, far, right) = make_panels(3, "Down to rounding (Kamera 12)")
    ways = ("raw", "relocated", "patched 16", "patched 64", "patched full")
    shown = [result for result in results if result.binds]
    for place, result in enumerate(shown):
        rows = [(at, one) for at, way in enumerate(ways) if (one := result.log.estimate(f"ulp/{way}/keys")) is not None]
        draw_line(
            error, [at for at, _ in rows], [one for _, one in rows], result.model.name, COLOURS[place % 8], floor=1e-3
        )
        moved = [(shift, one) for shift in SHIFTS if (one := result.log.estimate(f"relocation/{shift}")) is not None]
        label = f"{result.model.name}: {result.model.rotary}"
        draw_line(far, [shift for shift, _ in moved], [one for _, one in moved], label, COLOURS[place % 8])
        setting = setting_of(result)
        for at, name in enumerate((FULL, BLIND, "rank/4", "rank/16", "rank/64")):
            row = result.log.row(name, setting, MULTI)
            if row is None or row.accuracy is None:
                continue
            across = at + 0.8 * (place + 0.5) / len(shown) - 0.4
            low, high = row.accuracy.value - row.accuracy.low, row.accuracy.high - row.accuracy.value
            right.bar(across, row.accuracy.value, width=0.8 / len(shown), color=COLOURS[place % 8],
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


def attention(result: DeficitResult, folder: Path) -> Path | None:
    """MPIC 4: the attention of the first output token, as a distribution and summed along the picture."""
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
    """MPIC 8: in how many layers each token's keys are among those that moved most, mean over chunks."""
    if not result.examples.moved:
        return None
    longest = max(len(one) for one in result.examples.moved)
    kept = [one for one in result.examples.moved if len(one) == longest]
    figure, (axes,) = make_panels(1, f"{result.model.name}: keys that move most (MPIC 8)", width=7.5)
    axes.bar(range(longest), np.mean(kept, axis=0), color=COLOURS[0], width=0.9)
    style_panel(
        axes, f"share of layers in which a token's keys are among the top 4 %, {len(kept)} chunks", "token", "share"
    )
    return save_figure(figure, folder, f"mpic-8-{result.model.name}")


def _ranks(result: DeficitResult) -> tuple[list[float], list[AnswerRow]]:
    """Ranks with their rows, blind reuse at a half and full rank at the tokens' number."""
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
