"""Tasks without pictures: two passages of text, and two recordings of tones."""

from __future__ import annotations

import io
import wave

import numpy as np

from benchmarks.tasks.building import SENTENCES, choice, name, phrase, stream
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.tiles import COLOURS, ICONS
from benchmarks.tasks.world import LANDS, NUMBERS

RATE = 16_000
SECONDS, PAUSE = 0.45, 0.15
PITCHES = (220.0, 294.0, 392.0, 523.0, 698.0, 932.0, 1245.0)
"""Tones in hertz, far enough apart to be told from one another."""
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


def text_two_hop(seed: int, item: int, form: str) -> TaskItem:
    """Return a passage that gives colours their lands, which slides, and one that sets icons on colours."""
    random, code = stream("text-two-hop", seed, item), name("text-two-hop", seed, item)
    colours = [str(colour) for colour in random.permutation(list(COLOURS))[: int(random.integers(4, 9))]]
    lands = {colour: LANDS[int(random.integers(len(LANDS)))] for colour in colours}
    icons = [str(icon) for icon in random.permutation(list(ICONS))[: int(random.integers(5, 9))]]
    under = {icon: colours[int(random.integers(len(colours)))] for icon in icons}
    asked = icons[0]
    colour, land = under[asked], lands[under[asked]]
    first = [f"{each} does mean {lands[each]} ." for each in colours]
    second = [f"the {icon} stands on {under[icon]} ." for icon in sorted(icons)]
    passages = (
        Media("text", "the legend\n" + prose(random, first), 1.0),
        Media("text", "the map\n" + prose(random, second)),
    )
    questions = (
        ItemQuestion(code, (phrase(random, "land", asked),), land, multi_hop=True, kind="land"),
        ItemQuestion(f"{code}-0", (phrase(random, "colour", asked),), colour, multi_hop=False, kind="colour"),
        ItemQuestion(f"{code}-1", (phrase(random, "legend", colour),), land, multi_hop=False, kind="legend"),
    )
    return TaskItem(code, "text-two-hop", form, passages, questions)


def prose(random: np.random.Generator, facts: list[str]) -> str:
    """Return the facts with a plain sentence after every second of them."""
    plain = [str(sentence) for sentence in random.choice(SENTENCES, len(facts), replace=False)]
    mixed = [fact if place % 2 == 0 else f"{fact} {plain[place]}" for place, fact in enumerate(facts)]
    return " ".join(mixed)


def audio_two_clip(seed: int, item: int, form: str) -> TaskItem:
    """Return a tune of four to six different tones, which slides, and a second recording that repeats one of them.

    Two hops: the place in the tune of the repeated tone; one hop: how often it sounds.
    """
    random, code = stream("audio-two-clip", seed, item), name("audio-two-clip", seed, item)
    tune = [float(pitch) for pitch in random.permutation(PITCHES)[: int(random.integers(4, 7))]]
    place, times = int(random.integers(len(tune))), int(random.integers(1, 6))
    parts = (
        "The first recording: ",
        Media("audio", recording(tune), 1.0),
        " The second recording: ",
        Media("audio", recording([tune[place]] * times)),
    )
    both = "Which tone of the first recording is repeated in the second one, counted from its start?"
    single = "How many tones does the second recording hold?"
    questions = (
        choice(random, f"{code}-0", both, PLACES[place], "place", True, PLACES[: len(tune)]),
        choice(random, f"{code}-1", single, NUMBERS[times], "number", False, NUMBERS[1:6]),
    )
    return TaskItem(code, "audio-two-clip", form, parts, questions)


def recording(pitches: list[float]) -> bytes:
    """Return a WAV file of tones one after another, one channel of 16 bits at 16 kHz; each fades in and out."""
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
