"""What a sitting comes to in words, the same for a terminal and for a file."""

from collections.abc import Mapping

from emblema.cli.view.glance import Answer, Glance, clock, size, span, stretches

MOMENTS = 8
"""Stretches that are named."""


def frames(glance: Glance, count: int | None) -> str:
    """How far it is, and how quickly it gets on."""
    many = f"{glance.frames:,}" + (f" of {count:,}" if count is not None and count > glance.frames else "")
    return f"{many} frame{'s' * (many != '1')}, {clock(glance.seconds)}" + (
        f", {glance.speed:.1f} frames/s" if glance.encoded else ""
    )


def clusters(glance: Glance) -> str:
    """How many clusters there are, and what became of the frames that left the window."""
    counts = glance.counts
    if "visual_clusters" not in counts:
        fetched = counts.get("fetches")
        return "no clusters" + ("" if fetched is None else f"; {fetched:,.0f} blocks fetched")
    if all(home is None for home in glance.homes):
        return "none yet" if not counts["visual_clusters"] else "the first partition waits for more frames"
    return (
        f"{counts['visual_clusters']:,.0f} visual, {counts['clusters'] / glance.layers:,.0f} semantic in a layer; "
        f"absorbed {counts['visual_absorbed']:,.0f}, put off {counts['visual_put_off']:,.0f}, "
        f"cut {counts['visual_cuts'] + counts['semantic_cuts']:,.0f}"
    )


def held(glance: Glance) -> tuple[str, str]:
    """Memory on the device and on the host."""
    device, host = (_parts(place) for place in (glance.held.device, glance.held.host))
    return device, host


def _parts(parts: Mapping[str, int]) -> str:
    named = ", ".join(f"{name} {size(held)}" for name, held in parts.items() if held)
    return f"{size(sum(parts.values()))}" + (f" ({named})" if named else "")


def summary(glance: Glance) -> list[str]:
    """Where a stream stands."""
    device, host = held(glance)
    return [frames(glance, None), f"clusters: {clusters(glance)}", f"device: {device}", f"host: {host}"]


def said(answer: Answer) -> str:
    """The answer's text."""
    return answer.reply.text.strip() or "(nothing)"


def answered(answer: Answer) -> str:
    """What an answer cost."""
    usage = answer.reply.usage
    fetched = usage.counts.get("fetched_bytes", 0.0)
    text = f"first token after {usage.ttft_seconds * 1e3:,.0f} ms; {usage.retrieved:,} of {usage.frames:,} frames"
    return text + " retrieved" + (f", {size(fetched)} fetched" if fetched else "")


def moments(answer: Answer) -> str:
    """When what was retrieved was seen; the share is that of the layers."""
    found = stretches(answer, MOMENTS)
    return "   ".join(f"{span(one)} ({one.share:.0%})" for one in found)
