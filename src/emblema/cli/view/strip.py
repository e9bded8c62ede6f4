"""What was retrieved for each question as one picture: thumbnails, and where in the stream they lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from emblema.cli.view import wording
from emblema.cli.view.colours import colour
from emblema.cli.view.glance import Answer, Stretch, clock, span, stretches
from emblema.cli.view.thumbnails import SIDE, Thumbnails

TILES = 10
"""Thumbnails of an answer, at most."""

MOST = 24
"""Answers in a picture; of more, the last ones."""

WIDTH, MARGIN, GAP = 15.0, 0.35, 0.14
"""Inches."""

HEAD, TITLE, LABEL, LINE, FOOT = 0.55, 0.55, 0.32, 0.78, 0.42
"""Inches from top to bottom: the picture's title; for each answer its title, labels, time line, and the times."""

RIBBON, BAR, BETWEEN = 0.14, 0.4, 0.035
"""Inches of the time line's ribbon of clusters, of a bar for a frame that all layers saw, and between them."""

FLAT = (0.25, 1.8)
"""Least and most height of a tile by its width."""

KEY = (
    "Time line: colours are visual clusters; grey is in none (the first frames and the latest are always seen). "
    "A bar is a frame that was retrieved, as high as the share of layers that saw it."
)

INK, FAINT, SAID, EMPTY = "#2b2b2b", "#6b6b6b", "#1d6f8a", "#e6e1d6"


def draw(answers: Sequence[Answer], thumbnails: Thumbnails, title: str, path: Path) -> Path:
    """Write the picture as PNG and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = answers[-MOST:]
    tile = (WIDTH - 2 * MARGIN - (TILES - 1) * GAP) / TILES
    # All frames of a stream have one size.
    tall = tile * _shape(shown, thumbnails)
    each = TITLE + tall + LABEL + LINE + FOOT
    height = HEAD + each * len(shown) + 0.2
    figure = Figure(figsize=(WIDTH, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    sheet = figure.add_axes((0, 0, 1, 1))
    sheet.set_xlim(0, WIDTH)
    sheet.set_ylim(height, 0)
    sheet.set_axis_off()
    sheet.text(MARGIN, 0.36, _plain(title), fontsize=10.5, color=FAINT)
    sheet.text(MARGIN, height - 0.14, KEY, fontsize=9, color=FAINT)
    for place, answer in enumerate(shown):
        _answer(figure, sheet, answer, thumbnails, HEAD + place * each, tile, tall)
    figure.savefig(path, format="png", pil_kwargs={"optimize": True})
    return path


def _shape(answers: Sequence[Answer], thumbnails: Thumbnails) -> float:
    """Height by width of the tiles: the frames' own, within bounds."""
    for answer in answers:
        for one in stretches(answer, TILES):
            picture = thumbnails.get(one.frame)
            if picture is not None:
                return min(FLAT[1], max(FLAT[0], picture.height / picture.width))
    return 0.6


def _answer(
    figure: Any, sheet: Any, answer: Answer, thumbnails: Thumbnails, top: float, tile: float, tall: float
) -> None:
    said = " ".join(wording.said(answer).split())
    sheet.text(MARGIN, top + 0.2, _plain(_cut(answer.question, 90)), fontsize=13.5, fontweight="bold", color=INK)
    facts = f"asked at {clock(answer.at)}; {wording.answered(answer)}"
    sheet.text(
        WIDTH - MARGIN, top + 0.2, _plain(_cut(said, 60)), fontsize=13.5, fontweight="bold", color=SAID, ha="right"
    )
    sheet.text(MARGIN, top + 0.42, facts, fontsize=9.5, color=FAINT)
    found = stretches(answer, TILES)
    line = top + TITLE + tall + LABEL + LINE
    place = _placing(answer)
    for number, one in enumerate(found):
        left = MARGIN + number * (tile + GAP)
        _tile(figure, sheet, one, thumbnails, (left, top + TITLE, tile, tall))
        foot, middle = top + TITLE + tall + 0.24, left + tile / 2
        sheet.plot(
            (middle, place(one.frame)),
            (foot, line - RIBBON - BETWEEN - BAR * one.share),
            color=colour(one.home),
            linewidth=0.9,
        )
    if not found:
        sheet.text(MARGIN, top + TITLE + tall / 2, "no frame was retrieved for it", fontsize=11, color=FAINT)
    _time_line(sheet, answer, line, place)


def _tile(
    figure: Any, sheet: Any, one: Stretch, thumbnails: Thumbnails, box: tuple[float, float, float, float]
) -> None:
    from matplotlib.patches import Rectangle

    left, top, width, tall = box
    picture = thumbnails.get(one.frame)
    sheet.add_patch(Rectangle((left, top), width, tall, facecolor=EMPTY, edgecolor="none", zorder=1))
    if picture is None:
        sheet.text(left + width / 2, top + tall / 2, "not kept", fontsize=9, color=FAINT, ha="center", va="center")
    else:
        enlarged = ImageOps.pad(picture, (4 * SIDE, round(4 * SIDE * tall / width)), _filter(picture), EMPTY)
        sheet.imshow(enlarged, extent=(left, left + width, top + tall, top), aspect="auto", zorder=2)
    sheet.add_patch(
        Rectangle((left, top), width, tall, facecolor="none", edgecolor=colour(one.home), linewidth=2.2, zorder=3)
    )
    letters = 9.0 if len(span(one)) < 12 else 6.8
    sheet.text(left, top + tall + 0.19, span(one), fontsize=letters, color=INK)
    sheet.text(left + width, top + tall + 0.19, f"{one.share:.0%}", fontsize=letters, color=FAINT, ha="right")


def _filter(picture: Image.Image) -> Image.Resampling:
    """Small frames keep their pixels, as what the model saw."""
    return Image.Resampling.NEAREST if max(picture.size) < SIDE else Image.Resampling.LANCZOS


def _placing(answer: Answer) -> Any:
    """The middle of a frame on the time line, in inches."""
    wide, count = WIDTH - 2 * MARGIN, max(1, answer.glance.frames)
    return lambda frame: MARGIN + wide * (frame + 0.5) / count


def _time_line(sheet: Any, answer: Answer, line: float, place: Any) -> None:
    """A bar for each retrieved frame over the ribbon of clusters, and the times."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    homes, count = answer.glance.homes, answer.glance.frames
    cell = (WIDTH - 2 * MARGIN) / max(1, count)
    bars = [
        Rectangle(
            (place(one.frame) - cell / 2, line - RIBBON - BETWEEN - BAR * one.share), max(cell, 0.012), BAR * one.share
        )
        for one in answer.reply.moments
    ]
    inks = [colour(homes[one.frame]) for one in answer.reply.moments]
    sheet.add_collection(PatchCollection(bars, facecolors=inks, edgecolors="none"))
    cells = [Rectangle((place(frame) - cell / 2, line - RIBBON), cell, RIBBON) for frame in range(count)]
    sheet.add_collection(PatchCollection(cells, facecolors=[colour(home) for home in homes], edgecolors="none"))
    if count:
        for mark in range(5):
            frame = round(mark * (count - 1) / 4)
            sides = {0: "left", 4: "right"}
            sheet.text(
                place(frame),
                line + 0.17,
                clock(answer.times[frame]),
                fontsize=8.5,
                color=FAINT,
                ha=sides.get(mark, "center"),
            )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def _plain(text: str) -> str:
    """Without matplotlib's own markup."""
    return text.replace("$", r"\$")
