"""What streams are shown when: longer ones stage by stage, some through a window, some read in part."""

from __future__ import annotations

import numpy as np

from emblema.bench.tasks.streams import STREAM_KINDS, Asked, Stream, ask, make_stream
from reference.streams.rows import Batch, Setting, collate

STAGES: tuple[tuple[int, ...], ...] = (
    (8, 8, 12, 16),
    (8, 12, 16, 24, 32),
    (12, 16, 24, 32, 48, 64),
    (16, 24, 32, 64, 96, 128),
    (16, 32, 64, 128, 192, 256),
)
LIMITS = {"recent": 1, "far": 2, "repeated": 4, "ordered": 4, "counted": 4}


def setting_for(random: np.random.Generator, stage: int, frames: int, variants: int) -> Setting:
    """A random way to show streams; the first stage stays plain."""
    window = int(random.integers(16, 65)) if stage > 1 and random.random() < 0.3 else None
    keep = float(random.uniform(0.0, 0.6)) if stage > 1 and random.random() < 0.25 else None
    system, words = bool(random.random() < 0.2), int(random.integers(9)) if random.random() < 0.3 else 0
    jump = 1500 if stage > 1 and random.random() < 0.2 else 0
    return Setting(window, keep, int(random.integers(1, 17)), system, words, jump, variants)


def drawn(random: np.random.Generator, frames: int, whole: bool) -> tuple[Stream, tuple[Asked, ...]]:
    """A stream and questions, all at its end, or half of them earlier."""
    while True:
        stream = make_stream(random, STREAM_KINDS[int(random.integers(len(STREAM_KINDS)))], frames)
        asked = ask(random, stream, frames, LIMITS)
        if not whole:
            earlier = ask(random, stream, int(random.integers(max(2, frames // 4), frames + 1)), LIMITS)
            both = [*asked, *earlier]
            asked = tuple(both[index] for index in random.permutation(len(both))[: (len(both) + 1) // 2])
        if asked:
            return stream, asked


def make_batch(random: np.random.Generator, stage: int, tokens: int, variants: int) -> Batch:
    """A batch of about `tokens` rows."""
    frames = int(random.choice(STAGES[stage]))
    setting = setting_for(random, stage, frames, variants)
    count = int(np.clip(tokens // (4 * frames + 200), 2, 40))
    streams, asked = zip(*(drawn(random, frames, setting.keep is not None) for _ in range(count)), strict=True)
    return collate(random, streams, asked, setting)
