"""Which frames a query retrieves in one layer."""

import math

import numpy
import torch

from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.lines import FrameNumbers
from emblema.stream.method import Query, VisibleRange
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.postings import Postings
from emblema.stream.mosaic.ranking import first_lines, log_sum

POOL = 4.0
"""Frames, or as many keys of each head, that postings find before some are retrieved: so many times the budget."""
EXACT = 2
"""Times as many frames as postings would give are all compared: that takes about as long."""


def choose_frames(
    keys: FrameKeys,
    postings: Postings | None,
    query: Query,
    visible: VisibleRange,
    budget: int | None,
    gone: ForgottenFrames,
    pool: float = POOL,
) -> list[FrameNumbers]:
    """Return the frames that each group retrieves, rising.

    Every query of every head has an order of frames, by the attention that it would give to their keys. All first
    frames come first, then all second ones, and so on; within a place in these orders, by attention. So no head that
    looks at many frames a little loses to one that looks at one frame much. Keys are compared as they are (in eight
    bits): all that may be seen where there are few frames, or no postings, else those that postings find.
    """
    low, high = max(visible.low, keys.first), min(visible.recent, visible.high, keys.first + keys.count)
    parts, live = keys.parts, gone.count_live(low, high)
    if budget is None or live <= budget:
        return [gone.live(low, high)] * query.count
    groups = query.groups.cpu().numpy()
    asking = numpy.flatnonzero(groups >= 0)
    states = query.states[:, torch.from_numpy(asking)].reshape(keys.heads, -1, keys.width)
    most, whole = math.ceil(pool * budget) * parts, (low, high) == (keys.first, keys.first + keys.count)
    entries = mass = None
    if postings is not None and live * parts > EXACT * most:
        entries, mass = postings.find(states.cpu(), low, high, most)
        if not whole and int((entries >= 0).sum(1).min(initial=0)) < most:
            # The lists that were visited have too little of this span.
            entries = mass = None
    if entries is None and live < high - low:
        every = (gone.live(low, high) - keys.first)[:, None] * parts + numpy.arange(parts)
        entries = numpy.tile(every.ravel(), (keys.heads, 1))
    if entries is None:
        logits = keys.logits_between(states, low - keys.first, high - keys.first).cpu().numpy()
        lines = numpy.tile(numpy.arange(low, high).repeat(parts), (keys.heads, 1))
    else:
        logits = keys.logits(states, entries).cpu().numpy()
        for own, count in zip(logits, (entries >= 0).sum(1).tolist(), strict=True):
            own[:, count:] = -numpy.inf
        lines = entries // parts + keys.first
    # Both are too small: the sum over the keys found, and that over all codes by their means.
    attended = log_sum(logits) if mass is None or not whole else numpy.maximum(log_sum(logits), mass)
    found = first_lines(logits, attended, lines, groups[asking], query.count, budget)
    return [numpy.sort(own) for own in found]
