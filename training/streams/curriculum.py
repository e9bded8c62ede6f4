"""What streams are shown when: longer ones stage by stage, some through a window, some read in part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.tasks.streams import STREAM_KINDS, GeneratedStream, TimedQuestion, ask, make_stream
from benchmarks.tasks.streams.questions import HERE, WHERE
from training.streams.rows import FORMS, Batch, Setting, collate, form_of

STAGES: tuple[tuple[int, ...], ...] = (
    (8, 8, 12, 16),
    (8, 12, 16, 24, 32),
    (12, 16, 24, 32, 48, 64),
    (16, 24, 32, 64, 96, 128),
    (16, 32, 64, 128, 192, 256),
    (32, 64, 128, 256, 512, 512, 768, 1024),
)
LIMITS = {"recent": 4, "far": 12, "repeated": 6, "ordered": 9, "counted": 6}
"""Questions of each kind to choose from."""
WINDOWED, PACKED, JUMPED = 0.5, 0.25, 0.2
"""Shares of the batches, from the third stage on, in which frames see a window, questions a part, positions jump."""
LONG = len(STAGES) - 1
"""The stage of long streams. Its batches hold two streams or little more, so each is asked more."""
PACKED_LONG, JUMPED_LONG = 0.4, 0.4
"""The same shares in the stage of long streams."""
ASKED, ASKED_LONG = 12, 24
"""Questions of a stream, and in the stage of long streams."""
BASIC = (FORMS.index(HERE), FORMS.index(WHERE))
"""Wordings that the others build on."""


def weights(right: Sequence[float]) -> np.ndarray:
    """How much each wording is asked for, from how well it is answered; the basic ones first."""
    wanted = 1.1 - np.asarray(right)
    if min(right[form] for form in BASIC) < 0.8:
        wanted[list(BASIC)] *= 4
    return np.asarray(wanted / wanted.sum())


def setting_for(random: np.random.Generator, stage: int, frames: int, variants: int) -> Setting:
    """A random way to show streams; the first stages stay plain."""
    later, long = stage > 1, stage == LONG
    packed, jumped = (PACKED_LONG, JUMPED_LONG) if long else (PACKED, JUMPED)
    window = int(random.integers(12, 49)) if later and random.random() < WINDOWED else None
    keep = float(random.uniform(0.0, 0.6)) if later and random.random() < packed else None
    system, words = bool(random.random() < 0.2), int(random.integers(9)) if random.random() < 0.3 else 0
    jump = 1500 if later and random.random() < jumped else 0
    ends = bool(random.random() < 0.1)
    return Setting(window, keep, int(random.integers(1, 17)), system, words, jump, variants, ends)


def drawn(
    random: np.random.Generator, frames: int, whole: bool, wanted: np.ndarray, most: int
) -> tuple[GeneratedStream, tuple[TimedQuestion, ...]]:
    """A stream and at most `most` questions, all at its end, or half of them earlier."""
    while True:
        stream = make_stream(random, STREAM_KINDS[int(random.integers(len(STREAM_KINDS)))], frames)
        times = [frames] if whole else [frames, int(random.integers(max(2, frames // 4), frames + 1))]
        asked = [each for at in times for each in ask(random, stream, at, LIMITS)]
        if asked:
            chances = wanted[[form_of(each) for each in asked]]
            order = random.choice(len(asked), min(most, len(asked)), replace=False, p=chances / chances.sum())
            return stream, tuple(asked[index] for index in order)


def make_batch(
    random: np.random.Generator, stage: int, tokens: int, variants: int, right: Sequence[float] = (0.0,) * len(FORMS)
) -> Batch:
    """A batch of about `tokens` rows."""
    frames = int(random.choice(STAGES[stage]))
    setting, wanted = setting_for(random, stage, frames, variants), weights(right)
    count = int(np.clip(tokens // (4 * frames + 200), 2, 40))
    most = ASKED_LONG if stage == LONG else ASKED
    pairs = [drawn(random, frames, setting.keep is not None, wanted, most) for _ in range(count)]
    streams, asked = zip(*pairs, strict=True)
    return collate(random, streams, asked, setting)
