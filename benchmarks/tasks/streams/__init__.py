"""Generated video streams: an ego walk, a movie, a live stream, and questions asked while they run.

`generate(kind, frames, seed, items)` draws streams; `ask(random, stream, at, limits)` asks about one when `at`
frames of it have been seen.
"""

from benchmarks.tasks.streams.planning import STREAM_KINDS, generate, make_stream, stream_of
from benchmarks.tasks.streams.questions import QUESTION_KINDS, ask, questions_of, seen
from benchmarks.tasks.streams.world import FRAME_SECONDS, GeneratedStream, TimedQuestion

__all__ = [
    "FRAME_SECONDS",
    "QUESTION_KINDS",
    "STREAM_KINDS",
    "TimedQuestion",
    "GeneratedStream",
    "ask",
    "generate",
    "make_stream",
    "questions_of",
    "seen",
    "stream_of",
]
