"""Generated video streams: an ego walk, a movie, a live stream, and questions asked while they run.

`generate(kind, frames, seed, items)` draws streams; `ask(random, stream, at, limits)` asks about one as it stands when
`at` frames have been seen.
"""

from benchmarks.tasks.streams.generate import generate, questions_of, random_of
from benchmarks.tasks.streams.planning import KINDS as STREAM_KINDS
from benchmarks.tasks.streams.planning import make_stream
from benchmarks.tasks.streams.questions import KINDS as QUESTION_KINDS
from benchmarks.tasks.streams.questions import ask, seen
from benchmarks.tasks.streams.world import FRAME_SECONDS, Asked, Stay, Stream, Thing

__all__ = [
    "FRAME_SECONDS",
    "QUESTION_KINDS",
    "STREAM_KINDS",
    "Asked",
    "Stay",
    "Stream",
    "Thing",
    "ask",
    "generate",
    "make_stream",
    "questions_of",
    "random_of",
    "seen",
]
