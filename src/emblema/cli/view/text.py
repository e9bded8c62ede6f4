"""What `emblema stream` says, in words and colours: the same in a terminal, as lines and in a picture."""

import colorsys
import time
from collections.abc import Mapping

from emblema.cli.view.status import Scene, StreamAnswer, StreamStatus
from emblema.stream.standing import AnswerChange

MOMENTS = 8
"""Scenes that are named."""

NO_CLUSTER = "#c9c3b8"
"""Colour of frames in no cluster: those that are always seen, and those in the window."""

WALL_CLOCK = 1e9
"""Times from here on, thirty-one years of video, are seconds since 1970."""

GOLDEN = 0.6180339887


def colour(cluster: int | None) -> str:
    """Return the colour of a visual cluster; numbers that follow each other have colours that are far apart."""
    if cluster is None:
        return NO_CLUSTER
    hue, turn = (cluster * GOLDEN) % 1, cluster % 3
    channels = colorsys.hsv_to_rgb(hue, (0.62, 0.45, 0.75)[turn], (0.82, 0.93, 0.66)[turn])
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def clock(seconds: float) -> str:
    """Return a time as 0:07, 12:34 or 1:02:03, with tenths where there are any; seconds since 1970 as 14:05:09."""
    if seconds >= WALL_CLOCK:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    whole, tenths = divmod(round(seconds * 10), 10)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{text}.{tenths}" if tenths else text


def span(scene: Scene) -> str:
    """Return from when to when a scene is."""
    return clock(scene.begin) + ("" if scene.end == scene.begin else f"\u2013{clock(scene.end)}")


def size(count: float) -> str:
    """Return bytes for people."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.{0 if count >= 100 * least else 1}f} {unit}"
    return f"{count:.0f} B"


def frames(status: StreamStatus, expected: int | None) -> str:
    """Return how many frames were seen, and how fast."""
    many = f"{status.frames:,}" + (f" of {expected:,}" if expected is not None and expected > status.frames else "")
    return f"{many} frame{'s' * (many != '1')}, {clock(status.seconds)}" + (
        f", {status.speed:.1f} frames/s" if status.encoded else ""
    )


def clusters(status: StreamStatus) -> str:
    """Return how many clusters there are, and what became of the frames that left the window."""
    counts = status.counts
    if "visual_clusters" not in counts:
        fetched = counts.get("fetches")
        return "no clusters" + ("" if fetched is None else f"; {fetched:,.0f} runs of frames fetched")
    if all(cluster is None for cluster in status.clusters):
        return "none yet" if not counts["visual_clusters"] else "the first partition waits for more frames"
    semantic = f", {counts['clusters'] / status.layers:,.0f} semantic in a layer" if counts["clusters"] else ""
    return (
        f"{counts['visual_clusters']:,.0f} visual{semantic}; "
        f"absorbed {counts['visual_absorbed']:,.0f}, put off {counts['visual_put_off']:,.0f}, "
        f"cut {counts['visual_cuts'] + counts['semantic_cuts']:,.0f}"
    )


def memory(parts: Mapping[str, int]) -> str:
    """Return bytes in one place by what they are for."""
    named = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
    return size(sum(parts.values())) + (f" ({named})" if named else "")


def summary(status: StreamStatus) -> list[str]:
    """Return lines about a stream."""
    device, host = memory(status.bytes.device), memory(status.bytes.host)
    return [frames(status, None), f"clusters: {clusters(status)}", f"device: {device}", f"host: {host}"]


def reply(answer: StreamAnswer) -> str:
    """Return the answer's text."""
    return answer.reply.text.strip() or "(nothing)"


def change(change: AnswerChange) -> str:
    """Return what changed, and since when."""
    former = "" if change.former is None else f" (was: {change.former or '(nothing)'})"
    return f"{clock(change.since)}  {change.question}  {change.answer or '(nothing)'}{former}"


def cost(answer: StreamAnswer) -> str:
    """Return what an answer cost."""
    usage = answer.reply.usage
    fetched = usage.counts.get("fetched_bytes", 0.0)
    text = f"first token after {usage.ttft_seconds * 1e3:,.0f} ms; {usage.retrieved:,} of {usage.frames:,} frames"
    return text + " retrieved" + (f", {size(fetched)} fetched" if fetched else "")


def moments(answer: StreamAnswer) -> str:
    """Return when what was retrieved was seen, with its share of the layers."""
    return "   ".join(f"{span(scene)} ({scene.share:.0%})" for scene in answer.scenes(MOMENTS))
