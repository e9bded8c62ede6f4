"""What was retrieved for each question as one picture: thumbnails, and where in the stream they lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from emblema.cli.view.status import Scene, StreamAnswer
from emblema.cli.view.text import clock, colour, cost, reply, span
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


def draw(answers: Sequence[StreamAnswer], thumbnails: Thumbnails, title: str, path: Path) -> Path:
    """Write the picture as PNG and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = answers[-MOST:]
    wide = (WIDTH - 2 * MARGIN - (TILES - 1) * GAP) / TILES
    # All frames of a stream have one size.
    tall = wide * _shape(shown, thumbnails)
    each = TITLE + tall + LABEL + LINE + FOOT
    height = HEAD + each * len(shown) + 0.2
    figure = Figure(figsize=(WIDTH, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    axes.text(MARGIN, 0.36, _escaped(title), fontsize=10.5, color=FAINT)
    axes.text(MARGIN, height - 0.14, KEY, fontsize=9, color=FAINT)
    for number, answer in enumerate(shown):
        _draw_answer(axes, answer, thumbnails, HEAD + number * each, (wide, tall))
    figure.savefig(path, format="png", pil_kwargs={"optimize": True})
    return path


def _shape(answers: Sequence[StreamAnswer], thumbnails: Thumbnails) -> float:
    """Return height by width of the tiles: the frames' own, within bounds."""
    for answer in answers:
        for scene in answer.scenes(TILES):
            picture = thumbnails.get(scene.frame)
            if picture is not None:
                return min(FLAT[1], max(FLAT[0], picture.height / picture.width))
    return 0.6


def _draw_answer(
    axes: Any, answer: StreamAnswer, thumbnails: Thumbnails, top: float, tile: tuple[float, float]
) -> None:
    head, right = {"fontsize": 13.5, "fontweight": "bold"}, WIDTH - MARGIN
    axes.text(MARGIN, top + 0.2, _escaped(_shortened(answer.question, 90)), color=INK, **head)
    axes.text(
        right, top + 0.2, _escaped(_shortened(" ".join(reply(answer).split()), 60)), color=SAID, ha="right", **head
    )
    axes.text(MARGIN, top + 0.42, f"asked at {clock(answer.at)}; {cost(answer)}", fontsize=9.5, color=FAINT)
    scenes, (wide, tall) = answer.scenes(TILES), tile
    line = top + TITLE + tall + LABEL + LINE
    for number, scene in enumerate(scenes):
        left = MARGIN + number * (wide + GAP)
        _draw_tile(axes, scene, thumbnails.get(scene.frame), (left, top + TITLE, wide, tall))
        ends = top + TITLE + tall + 0.24, line - RIBBON - BETWEEN - BAR * scene.share
        across = left + wide / 2, _middle(scene.frame, answer)
        axes.plot(across, ends, color=colour(scene.cluster), linewidth=0.9)
    if not scenes:
        axes.text(MARGIN, top + TITLE + tall / 2, "no frame was retrieved for it", fontsize=11, color=FAINT)
    _draw_time_line(axes, answer, line)


def _draw_tile(axes: Any, scene: Scene, picture: Image.Image | None, box: tuple[float, float, float, float]) -> None:
    from matplotlib.patches import Rectangle

    left, top, wide, tall = box
    axes.add_patch(Rectangle((left, top), wide, tall, facecolor=EMPTY, edgecolor="none", zorder=1))
    if picture is None:
        axes.text(left + wide / 2, top + tall / 2, "not kept", fontsize=9, color=FAINT, ha="center", va="center")
    else:
        # Small frames keep their pixels, as the model saw them.
        sampling = Image.Resampling.NEAREST if max(picture.size) < SIDE else Image.Resampling.LANCZOS
        enlarged = ImageOps.pad(picture, (4 * SIDE, round(4 * SIDE * tall / wide)), sampling, EMPTY)
        axes.imshow(enlarged, extent=(left, left + wide, top + tall, top), aspect="auto", zorder=2)
    edge = colour(scene.cluster)
    axes.add_patch(Rectangle((left, top), wide, tall, facecolor="none", edgecolor=edge, linewidth=2.2, zorder=3))
    letters = 9.0 if len(span(scene)) < 12 else 6.8
    axes.text(left, top + tall + 0.19, span(scene), fontsize=letters, color=INK)
    axes.text(left + wide, top + tall + 0.19, f"{scene.share:.0%}", fontsize=letters, color=FAINT, ha="right")


def _middle(frame: int, answer: StreamAnswer) -> float:
    """Return the middle of a frame on the time line, in inches."""
    return MARGIN + (WIDTH - 2 * MARGIN) * (frame + 0.5) / max(1, answer.status.frames)


def _draw_time_line(axes: Any, answer: StreamAnswer, line: float) -> None:
    """Draw a bar for each retrieved frame over the ribbon of clusters, and the times."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    clusters, count = answer.status.clusters, answer.status.frames
    cell = (WIDTH - 2 * MARGIN) / max(1, count)
    bars, cells = [], []
    for moment in answer.reply.moments:
        corner = _middle(moment.frame, answer) - cell / 2, line - RIBBON - BETWEEN - BAR * moment.share
        bars.append(Rectangle(corner, max(cell, 0.012), BAR * moment.share))
    inks = [colour(clusters[moment.frame]) for moment in answer.reply.moments]
    axes.add_collection(PatchCollection(bars, facecolors=inks, edgecolors="none"))
    for frame in range(count):
        cells.append(Rectangle((_middle(frame, answer) - cell / 2, line - RIBBON), cell, RIBBON))
    inks = [colour(cluster) for cluster in clusters]
    axes.add_collection(PatchCollection(cells, facecolors=inks, edgecolors="none"))
    for mark in range(5 if count else 0):
        frame = round(mark * (count - 1) / 4)
        side = {0: "left", 4: "right"}.get(mark, "center")
        place = _middle(frame, answer), line + 0.17
        axes.text(*place, clock(answer.times[frame]), fontsize=8.5, color=FAINT, ha=side)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def _escaped(text: str) -> str:
    """Return a text without matplotlib's own markup."""
    return text.replace("$", r"\$")
