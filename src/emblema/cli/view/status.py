"""What can be seen of a stream at one time, and of an answer; as data, and as JSON for other programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emblema.stream.method import MemoryBytes
from emblema.stream.reply import StreamReply
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream at one time.

    Attributes:
        seconds: time of its last frame.
        frames: frames seen.
        encoding: seconds that this process took to take frames in.
        encoded: frames taken in meanwhile.
        clusters: the visual cluster of each frame; None while it is in none.
        layers: of the model.
        counts: what the memory counts.
        bytes: what the stream takes.
    """

    seconds: float
    frames: int
    encoding: float
    encoded: int
    clusters: Sequence[int | None]
    layers: int
    counts: Mapping[str, float]
    bytes: MemoryBytes

    @property
    def speed(self) -> float:
        """Frames taken in each second."""
        return self.encoded / self.encoding if self.encoding else 0.0

    @classmethod
    def of(cls, stream: Stream, layers: int, encoding: float, encoded: int) -> "StreamStatus":
        """Read a stream; only for the thread that owns it."""
        homes: list[int | None] = [None] * stream.frames
        clusters = stream.clusters
        # Until the first partition each frame is a cluster of its own.
        if any(len(frames) > 1 for frames in clusters.values()):
            for number, frames in clusters.items():
                for frame in frames:
                    homes[frame] = number
        seconds = stream.log.times[-1] if stream.frames else 0.0
        return cls(seconds, stream.frames, encoding, encoded, homes, layers, stream.counts, stream.bytes)


@dataclass(frozen=True, slots=True)
class Scene:
    """Retrieved frames of one visual cluster that follow one another.

    Attributes:
        begin, end: seconds of the first and the last.
        frame: the one that most layers saw.
        share: of the layers that saw it.
        weight: shares of all its frames together.
        cluster: the visual cluster.
    """

    begin: float
    end: float
    frame: int
    share: float
    weight: float
    cluster: int | None


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """A question that was answered.

    Attributes:
        at: seconds of the stream that had been seen.
        status: the stream when it was asked.
        times: seconds of all frames seen.
    """

    at: float
    question: str
    reply: StreamReply
    status: StreamStatus
    times: Sequence[float]

    def scenes(self, most: int) -> list[Scene]:
        """Return in order where the retrieved frames are: the `most` scenes that most layers saw.

        A method without clusters has frames in none; there a scene is a tenth of the stream, at most.
        """
        clusters, longest = self.status.clusters, max(1, self.status.frames // 10)
        runs: list[list[int]] = []
        shares = {moment.frame: moment.share for moment in self.reply.moments}
        for frame in sorted(shares):
            last = runs[-1][-1] if runs else None
            joined = last is not None and clusters[last] == clusters[frame] and frame == last + 1
            if joined and (clusters[frame] is not None or len(runs[-1]) < longest):
                runs[-1].append(frame)
            else:
                runs.append([frame])
        scenes = []
        for run in runs:
            best, total = max(run, key=lambda frame: shares[frame]), sum(shares[frame] for frame in run)
            begin, end = self.times[run[0]], self.times[run[-1]]
            scenes.append(Scene(begin, end, best, shares[best], total, clusters[best]))
        chosen = sorted(scenes, key=lambda scene: (-scene.share, -scene.weight))[:most]
        return sorted(chosen, key=lambda scene: scene.begin)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        reply = self.reply
        return {
            "at": self.at,
            "question": self.question,
            "answer": reply.text,
            "finish_reason": reply.finish_reason,
            **asdict(reply.usage),
            "moments": [asdict(moment) for moment in reply.moments],
        }
