"""audio-two-clip: two recordings of tones and questions over one or both. Exploratory, as in Kamera's section 6.

None of the bundled models hears; the task is for omni models, which may read the first recording as a tune to compare
the second with.
"""

from __future__ import annotations

import io
import wave

import numpy as np

from benchmarks.tasks.building import choice, name, stream
from benchmarks.tasks.items import Item, Media
from benchmarks.tasks.world import NUMBERS

TASK = "audio-two-clip"
RATE = 16_000
SECONDS, PAUSE = 0.45, 0.15
PITCHES = (220.0, 294.0, 392.0, 523.0, 698.0, 932.0, 1245.0)
"""Tones in hertz, far enough apart to be told from one another."""
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


def audio_two_clip(seed: int, item: int, form: str) -> Item:
    """A tune of four to six different tones, which slides, and a second recording that repeats one of them.

    Two hops: the place in the tune of the repeated tone; one hop: how often it sounds.
    """
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    tune = [float(pitch) for pitch in random.permutation(PITCHES)[: int(random.integers(4, 7))]]
    place, times = int(random.integers(len(tune))), int(random.integers(1, 6))
    parts = (
        "The first recording: ",
        Media("audio", recording(tune), 1.0),
        " The second recording: ",
        Media("audio", recording([tune[place]] * times)),
    )
    both = "Which tone of the first recording is repeated in the second one, counted from its start?"
    one = "How many tones does the second recording hold?"
    questions = (
        choice(random, f"{code}-0", both, PLACES[place], "place", True, PLACES[: len(tune)]),
        choice(random, f"{code}-1", one, NUMBERS[times], "number", False, NUMBERS[1:6]),
    )
    return Item(code, TASK, form, parts, questions)


def recording(pitches: list[float]) -> bytes:
    """A WAV file of tones one after another, one channel of 16 bits at 16 kHz; each fades in and out."""
    time = np.arange(round(SECONDS * RATE)) / RATE
    fade = np.minimum(1.0, np.minimum(time, SECONDS - time) / 0.02)
    gap = np.zeros(round(PAUSE * RATE))
    sound = np.concatenate([part for pitch in pitches for part in (0.5 * fade * np.sin(2 * np.pi * pitch * time), gap)])
    file_bytes = io.BytesIO()
    with wave.open(file_bytes, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32_767).astype("<i2").tobytes())
    return file_bytes.getvalue()
