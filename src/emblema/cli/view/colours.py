"""A colour for each visual cluster: the same for the ribbon in the terminal and the one in the picture."""

import colorsys

NONE = "#c9c3b8"
"""Of frames that are in no cluster: those that are seen for ever and those in the window."""

GOLDEN = 0.6180339887


def colour(cluster: int | None) -> str:
    """Colours of numbers that follow each other lie far apart."""
    if cluster is None:
        return NONE
    hue, turn = (cluster * GOLDEN) % 1, cluster % 3
    channels = colorsys.hsv_to_rgb(hue, (0.62, 0.45, 0.75)[turn], (0.82, 0.93, 0.66)[turn])
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)
