"""What there is to see of a stream at one time, read by the thread that owns it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emblema.stream.method import MemoryBytes
from emblema.stream.reply import StreamReply
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class Glance:
    """A stream as it stands.

    Attributes:
        seconds: time of its last frame.
        frames: frames seen.
        encoding: seconds spent on taking frames in, by this process.
        encoded: frames that they were spent on.
        homes: the visual cluster of each frame; None while it is in none.
        layers: of the model.
        counts, held: what the memory counts and holds.
    """

    seconds: float
    frames: int
    encoding: float
    encoded: int
    homes: Sequence[int | None]
    layers: int
    counts: Mapping[str, float]
    held: MemoryBytes

    @property
    def speed(self) -> float:
        """Frames taken in each second."""
        return self.encoded / self.encoding if self.encoding else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A question that was answered.

    Attributes:
        at: seconds of the stream that had been seen.
        glance: the stream when it was asked.
        times: seconds of all frames seen.
    """

    at: float
    question: str
    reply: StreamReply
    glance: Glance
    times: Sequence[float]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of one visual cluster, one behind the other, of which some were retrieved.

    Attributes:
        begin, end: seconds of the first and the last that was retrieved.
        frame: the one that most layers saw.
        at: its time.
        share: of the layers that saw it.
        weight: shares of all its frames together.
        home: the cluster.
    """

    begin: float
    end: float
    frame: int
    at: float
    share: float
    weight: float
    home: int | None


def glance_at(stream: Stream, layers: int, encoding: float, encoded: int) -> Glance:
    """A stream as it stands; only for the thread that owns it."""
    homes: list[int | None] = [None] * stream.frames
    clusters = stream.clusters
    # Until the first partition each frame is a cluster of its own.
    if any(len(frames) > 1 for frames in clusters.values()):
        for number, frames in clusters.items():
            for frame in frames:
                homes[frame] = number
    seconds = stream.log.times[-1] if stream.frames else 0.0
    return Glance(seconds, stream.frames, encoding, encoded, homes, layers, stream.counts, stream.bytes)


def stretches(answer: Answer, most: int) -> list[Stretch]:
    """Where in the stream the retrieved frames lie, in order: the stretches that most layers saw, `most` of them.

    A method without clusters has frames in none; there a stretch is a tenth of the stream at the most.
    """
    homes, long = answer.glance.homes, max(1, answer.glance.frames // 10)
    runs: list[list[int]] = []
    shares = {moment.frame: moment.share for moment in answer.reply.moments}
    for frame in sorted(shares):
        last = runs[-1][-1] if runs else None
        home = homes[frame]
        joined = last is not None and homes[last] == home and frame == last + 1
        if joined and (home is not None or len(runs[-1]) < long):
            runs[-1].append(frame)
        else:
            runs.append([frame])
    found = []
    for run in runs:
        best = max(run, key=lambda frame: shares[frame])
        times, total = answer.times, sum(shares[frame] for frame in run)
        found.append(Stretch(times[run[0]], times[run[-1]], best, times[best], shares[best], total, homes[best]))
    chosen = sorted(found, key=lambda one: (-one.share, -one.weight))[:most]
    return sorted(chosen, key=lambda one: one.begin)


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03; tenths where a stream is that fine."""
    tenths = round(seconds * 10)
    whole, rest = divmod(tenths, 10)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{text}.{rest}" if rest else text


def span(stretch: Stretch) -> str:
    """From when to when."""
    return clock(stretch.begin) + ("" if stretch.end == stretch.begin else f"\u2013{clock(stretch.end)}")


def size(held: float) -> str:
    """Bytes for people."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if held >= least:
            return f"{held / least:,.{0 if held >= 100 * least else 1}f} {unit}"
    return f"{held:.0f} B"
