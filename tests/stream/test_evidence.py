"""Evidence: stretches of time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.stream.reply import EvidenceSpan, Moment, StreamReply, StreamUsage


def answered(*moments: Moment) -> StreamReply:
    return StreamReply("", (), "stop", StreamUsage("mosaic", 50, len(moments), 5, 0.1, {}), moments)


def test_moments_that_follow_one_another_are_one_span() -> None:
    reply = answered(*(Moment(frame, 2.0 * frame, 0.1 * frame) for frame in (1, 2, 3, 6, 9)))
    spans = [(2.0, 6.0, pytest.approx(0.3)), (12.0, 12.0, pytest.approx(0.6)), (18.0, 18.0, pytest.approx(0.9))]
    assert [(span.start, span.end, span.share) for span in reply.evidence()] == spans
    assert reply.evidence(6.0) == (EvidenceSpan(2.0, 18.0, reply.moments[-1].share),)
    assert answered().evidence() == ()


@given(st.sets(st.integers(0, 60)), st.floats(0, 10))
def test_spans_hold_every_moment_and_are_apart(frames: set[int], gap: float) -> None:
    reply = answered(*(Moment(frame, float(frame), 0.5) for frame in sorted(frames)))
    spans = reply.evidence(gap)
    assert all(any(span.start <= frame <= span.end for span in spans) for frame in frames)
    assert all(later.start - earlier.end > max(gap, 1) for earlier, later in pairwise(spans))
