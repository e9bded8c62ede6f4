"""What `emblema stream` says, in words."""

import time
from collections.abc import Mapping

from emblema.cli.watch.answer import StreamAnswer
from emblema.stream.reply import EvidenceSpan
from emblema.stream.standing import AnswerChange
from emblema.stream.stream import Stream

MOMENTS = 8
"""Stretches of time that are named."""

WALL_CLOCK = 1e9
"""Times from here on, thirty-one years of video, are seconds since 1970."""


def clock(seconds: float) -> str:
    """Return a time as 0:07, 12:34 or 1:02:03, with tenths where there are any; seconds since 1970 as 14:05:09."""
    if seconds >= WALL_CLOCK:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    whole, tenths = divmod(round(seconds * 10), 10)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{text}.{tenths}" if tenths else text


def span(stretch: EvidenceSpan) -> str:
    """Return from when to when a stretch of time is."""
    return clock(stretch.start) + ("" if stretch.end == stretch.start else f"\u2013{clock(stretch.end)}")


def size(count: float) -> str:
    """Return bytes for people."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.{0 if count >= 100 * least else 1}f} {unit}"
    return f"{count:.0f} B"


def frames(stream: Stream, speed: float, expected: int | None) -> str:
    """Return how many frames were seen, and how fast."""
    many = f"{stream.frames:,}" + (f" of {expected:,}" if expected is not None and expected > stream.frames else "")
    last = clock(stream.log.times[-1] if stream.frames else 0.0)
    return f"{many} frame{'s' * (many != '1')}, {last}" + (f", {speed:.1f} frames/s" if speed else "")


def memory(parts: Mapping[str, int]) -> str:
    """Return bytes in one place by what they are for."""
    named = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
    return size(sum(parts.values())) + (f" ({named})" if named else "")


def summary(stream: Stream, speed: float) -> list[str]:
    """Return lines about a stream."""
    device, host = memory(stream.bytes.device), memory(stream.bytes.host)
    return [frames(stream, speed, None), f"device: {device}", f"host: {host}"]


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
    text += " retrieved" + (f", {size(fetched)} fetched" if fetched else "")
    return text if answer.reply.remark is None else f"{text}; {answer.reply.remark}"


def moments(answer: StreamAnswer) -> str:
    """Return when what most layers retrieved was seen, with its share of the layers."""
    most = sorted(answer.reply.evidence(), key=lambda stretch: -stretch.share)[:MOMENTS]
    return "   ".join(f"{span(each)} ({each.share:.0%})" for each in sorted(most, key=lambda stretch: stretch.start))
