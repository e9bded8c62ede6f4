"""Tasks as items: a seed decides them, and every answer follows from the pixels, the text or the sound shown."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field

import av
import numpy as np
import pytest
from PIL import Image

from benchmarks.tasks import generate
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem, describe, sliding
from benchmarks.tasks.other_tasks import PITCHES, PLACES
from benchmarks.tasks.registry import TASKS, task_of
from benchmarks.tasks.tiles import CELL, COLOUR_COUNT, FIRST_LAND, ICON_NAMES, bank
from benchmarks.tasks.world import COLOUR_NAMES, KINDS, LANDS, NUMBERS
from emblema.errors import PromptError
from emblema.media import load_audio

NAMES = (
    *("two-page", "two-page-as-text", "album", "album-binding", "retrieval-image", "reasoning-image"),
    "reasoning-many",
    *("action-sequence", "action-prediction", "object-shuffle", "state-change", "video-choice"),
    *("dialogue-sentence", "dialogue-word", "text-two-hop", "audio-two-clip"),
)
PICTURES = [name for name in NAMES if name not in ("two-page-as-text", "text-two-hop", "audio-two-clip")]


@dataclass
class Seen:
    """One picture as read from its pixels: lands by colour, and colours by icon with the cells they stand on."""

    lands: dict[str, str] = field(default_factory=dict)
    icons: dict[str, list[str]] = field(default_factory=dict)
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    grounds: dict[tuple[int, int], str] = field(default_factory=dict)


def seen(picture: Image.Image) -> Seen:
    """Read a picture cell by cell: the tile that is nearest to each cell."""
    pixels = np.asarray(picture.convert("RGB"))
    rows, columns = pixels.shape[0] // CELL, pixels.shape[1] // CELL
    cells = pixels.reshape(rows, CELL, columns, CELL, 3).transpose(0, 2, 1, 3, 4)
    tiles = bank()[:, ::4, ::4].reshape(len(bank()), -1).astype(np.int64)
    found = Seen()
    for row, column in np.ndindex(rows, columns):
        cell = cells[row, column, ::4, ::4].reshape(-1).astype(np.int64)
        tile = int(np.abs(tiles - cell).sum(1).argmin())
        colour = COLOUR_NAMES[(tile - 1) % COLOUR_COUNT] if tile else ""
        found.grounds[row, column] = colour
        if tile >= FIRST_LAND:
            assert found.lands.setdefault(colour, LANDS[(tile - FIRST_LAND) // COLOUR_COUNT])
        elif (tile - 1) // COLOUR_COUNT > 0:
            icon = ICON_NAMES[(tile - 1) // COLOUR_COUNT - 1]
            found.icons.setdefault(icon, []).append(colour)
            found.cells[row, column] = icon
    return found


def scenes(media: tuple[Media, ...]) -> list[Seen]:
    """What the pictures and clips show, in order; a clip's scenes last four frames each."""
    shown: list[Seen] = []
    for each in media:
        if each.kind == "image":
            assert isinstance(each.content, Image.Image)
            shown.append(seen(each.content))
            continue
        assert isinstance(each.content, bytes)
        with av.open(io.BytesIO(each.content)) as container:
            frames = [frame.to_image() for frame in container.decode(video=0)]
        shown += [seen(frame) for frame in frames[::4]]
    return shown


def known_lands(shown: list[Seen]) -> dict[str, str]:
    return {colour: land for each in shown for colour, land in each.lands.items()}


def about(question: ItemQuestion, names: tuple[str, ...]) -> str:
    (found,) = (word for word in question.text.split() if word in names)
    return found


def work_out(item: TaskItem, question: ItemQuestion, shown: list[Seen]) -> str:
    """The answer of a question about pictures, from what they show."""
    lands, maps = known_lands(shown), [each for each in shown if not each.lands]
    if item.task == "object-shuffle" and question.multi_hop:
        return shuffled(maps)
    if item.task == "state-change" and question.multi_hop:
        moved = [icon for icon, under in maps[0].icons.items() if maps[-1].icons[icon] != under]
        (icon,) = moved
        return icon if question.kind == "changed" else lands[maps[0].icons[icon][0]]
    if item.task in ("action-sequence", "action-prediction") and question.multi_hop:
        walker = about(question, ICON_NAMES)
        walk = [lands[each.icons[walker][0]] for each in maps]
        if item.task == "action-sequence":
            return walk[walk.index(about(question, LANDS)) + 1]
        period = min(p for p in range(1, len(walk)) if all(a == b for a, b in zip(walk, walk[p:], strict=False)))
        return walk[len(walk) - period]
    if question.kind in ("colour", "land"):
        icon = about(question, ICON_NAMES)
        (colour,) = {colour for each in maps for colour in each.icons.get(icon, [])}
        return colour if question.kind == "colour" else lands[colour]
    inside = [icon for each in maps for icon, under in each.icons.items() if lands[under[0]] == about(question, LANDS)]
    if question.kind == "count":
        return NUMBERS[len(inside)]
    (icon,) = inside
    return icon


def shuffled(frames: list[Seen]) -> str:
    """Colour of the cup that hides the ball."""
    (ball,) = (cell for cell, icon in frames[0].cells.items() if icon == "ball")
    column = ball[1]
    for each in frames[1:-1]:
        pair = [cell[1] for cell, icon in each.cells.items() if icon == "arrow"]
        assert len(pair) == 2
        if column in pair:
            column = pair[1 - pair.index(column)]
    return frames[-1].grounds[4, column]


@pytest.mark.parametrize("name", PICTURES)
def test_answers_follow_from_the_pixels(name: str) -> None:
    for item in TASKS[name].items(41, 4):
        shown = scenes(item.media)
        assert shown
        for question in item.questions:
            assert work_out(item, question, shown) == question.answer, question


def test_the_clip_has_a_segment_for_each_scene_and_slides_its_legends() -> None:
    for item in TASKS["video-choice"].items(2, 3):
        shown = scenes(item.media)
        (clip,) = item.media
        assert clip.slides * len(shown) == sum(bool(each.lands) for each in shown)
    (question,) = TASKS["video-choice"].make(2, 0, "egoschema").questions
    assert len(question.options) == 5


@pytest.mark.parametrize("name", ["two-page-as-text", "text-two-hop"])
def test_answers_follow_from_the_text(name: str) -> None:
    for item in TASKS[name].items(9, 10):
        first, second = (str(media.content) for media in item.media)
        lands = dict(pair for words in sentences(first) if (pair := fact(words, ["does", "mean"])))
        under = dict(pair for words in sentences(second) if (pair := fact(words[1:], ["stands", "on"])))
        assert item.media[0].slides == 1
        assert item.media[1].slides == 0
        for question in item.questions:
            if question.kind == "legend":
                assert lands[about(question, COLOUR_NAMES)] == question.answer
                continue
            colour = under[about(question, ICON_NAMES)]
            assert question.answer == (colour if question.kind == "colour" else lands[colour])


def sentences(text: str) -> Iterator[list[str]]:
    return (sentence.split() for sentence in text.replace("\n", " . ").split(" ."))


def fact(words: list[str], middle: list[str]) -> tuple[str, str] | None:
    return (words[0], words[3]) if len(words) == 4 and words[1:3] == middle else None


def test_the_same_facts_as_pictures_and_as_text() -> None:
    pairs = zip(TASKS["two-page"].items(6, 8), TASKS["two-page-as-text"].items(6, 8), strict=True)
    for pictures, text in pairs:
        assert [(q.text, q.answer, q.multi_hop) for q in pictures.questions] == [
            (q.text, q.answer, q.multi_hop) for q in text.questions
        ]
        legend, page = scenes(pictures.media)
        first, second = (str(media.content) for media in text.media)
        assert {words[0]: words[3] for words in sentences(first) if words} == legend.lands
        assert {words[1]: [words[4]] for words in sentences(second) if words} == page.icons


def test_answers_follow_from_the_sound() -> None:
    for item in TASKS["audio-two-clip"].items(3, 6):
        tune, repeated = (tones(media) for media in item.media)
        assert len(set(tune)) == len(tune)
        assert len(set(repeated)) == 1
        assert item.questions[0].answer == PLACES[tune.index(repeated[0])]
        assert item.questions[1].answer == NUMBERS[len(repeated)]
        sound = load_audio(item.media[1].content)  # type: ignore[arg-type]
        assert (sound.rate, round(len(sound.samples) / sound.rate / 0.6)) == (16_000, len(repeated))


def tones(media: Media) -> list[float]:
    """The pitch of each tone of a recording, from its spectrum."""
    assert isinstance(media.content, bytes)
    with wave.open(io.BytesIO(media.content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        sound = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(float)
    step = round(0.6 * 16_000)
    found = []
    for start in range(0, len(sound), step):
        tone = sound[start : start + round(0.45 * 16_000)]
        peak = float(np.fft.rfftfreq(len(tone), 1 / 16_000)[np.abs(np.fft.rfft(tone)).argmax()])
        found.append(min(PITCHES, key=lambda pitch: abs(pitch - peak)))
        assert abs(found[-1] - peak) < 5
    return found


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_decides_the_items(name: str) -> None:
    task = TASKS[name]
    first, again, other = (json.dumps([describe(item) for item in task.items(seed, 2)]) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert json.loads(first)[:1] == [describe(item) for item in task.items(5, 1)]


DIGEST = (
    "from benchmarks.tasks.items import describe; from benchmarks.tasks.registry import TASKS; "
    "print(*(describe(item)['parts'] for item in TASKS['clip'].items(5, 3)))"
)


def test_clips_do_not_hold_what_was_in_memory_before() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "MALLOC_PERTURB_": str(byte)},
            check=True,
            capture_output=True,
            text=True,
        )
        for byte in range(3)
    ]
    assert "video" in runs[0].stdout
    assert len({run.stdout for run in runs}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_items_are_well_formed(name: str) -> None:
    codes: set[str] = set()
    hops = set()
    for item in TASKS[name].items(17, 12):
        assert item.task == name
        assert item.form == TASKS[name].form
        assert item.episode == item.id
        assert any(media.slides for media in item.media)
        assert item.media[-1].slides < 1
        for question in item.questions:
            assert question.id not in codes
            codes.add(question.id)
            hops.add(question.multi_hop)
            assert " " not in question.answer
            assert len(set(question.options)) == len(question.options)
            assert not question.options or question.options[question.correct] == question.answer
    assert hops == ({False} if name == "album" else {False, True})


def test_the_bundled_tokenizer_knows_every_word() -> None:
    from training.families import RECIPES
    from training.folder import tokenizer as bundled

    tokenizer = bundled(RECIPES["reference"])
    for name in NAMES:
        if name == "audio-two-clip":
            continue
        for item in TASKS[name].items(23, 6):
            texts = [part for part in item.parts if isinstance(part, str)]
            texts += [str(media.content) for media in item.media if media.kind == "text"]
            for question in item.questions:
                texts += [question.text, *(str(option) for option in question.options)]
                assert len(tokenizer(question.answer).input_ids) == 1
            together = " ".join(texts)
            assert tokenizer.unk_token_id not in tokenizer(together).input_ids, together


@pytest.mark.parametrize("name", ["retrieval-image", "action-sequence", "object-shuffle"])
def test_options_do_not_give_the_answer_away(name: str) -> None:
    asked = [question for item in TASKS[name].items(31, 60) for question in item.questions if question.multi_hop]
    places = [question.correct for question in asked]
    count = len(asked[0].options)
    for place in range(count):
        share = places.count(place) / len(places)
        assert abs(share - 1 / count) < 4 * (1 / (4 * len(places))) ** 0.5


def test_an_album_asks_only_about_pictures_that_stay() -> None:
    for item in TASKS["album"].items(8, 5):
        kept = scenes(tuple(media for media in item.media if not media.slides))
        assert 0 < len(kept) < len(item.media)
        for question in item.questions:
            assert any(about(question, ICON_NAMES) in each.icons for each in kept)


def test_a_retrieval_document_has_one_needle_and_a_reasoning_document_several() -> None:
    for name, least, most in (("retrieval-image", 1, 1), ("reasoning-image", 2, 4)):
        for item in TASKS[name].items(12, 4):
            needles = sum(bool(each.icons) for each in scenes(item.media))
            assert least <= needles <= most
            assert all(isinstance(part, str) for part in item.parts[::2])


def test_episodes_of_the_bundled_models_tasks_are_items_too() -> None:
    (item,) = TASKS["maps"].items(7, 1)
    (episode,) = generate("maps", 7, 1)
    assert [(q.text, q.answer) for q in item.questions] == [(q.text, q.answer) for q in episode.questions]
    for media, page in zip(item.media, episode.pages, strict=True):
        assert media.content == page.image()


def test_familiar_tasks_ask_what_the_bundled_models_were_trained_on() -> None:
    for name, task in TASKS.items():
        (item,) = task.items(4, 1)
        kinds = {question.kind for question in item.questions if question.multi_hop}
        if task.familiar:
            assert kinds <= set(KINDS)
            assert all(media.kind in ("image", "video") for media in item.media)
        else:
            # Known questions are asked of text, or of more pictures than the models were trained on.
            written = all(media.kind == "text" for media in item.media)
            assert not kinds & set(KINDS) or written or len(item.media) > 6, name


def test_unknown_tasks_and_counts_are_refused() -> None:
    with pytest.raises(PromptError, match="unknown task 'charades': choose one of maps, "):
        task_of("charades")
    with pytest.raises(PromptError, match="0 items of seed 1: give one item or more"):
        task_of("album").items(1, 0)


def test_items_refuse_what_makes_no_sense() -> None:
    with pytest.raises(PromptError, match="has no question"):
        TaskItem("a", "album", "muirbench", (), ())
    for media in (("text", b"x", 0.0), ("image", "x", 0.0), ("image", b"x", 1.5)):
        with pytest.raises(PromptError, match="a piece of kind"):
            Media(*media)  # type: ignore[arg-type]


def test_marks_are_set_in_the_order_of_the_media() -> None:
    (item,) = TASKS["dialogue-word"].items(1, 1)
    marked = sliding(item, [0.25, 0.5, 0.75])
    assert [media.slides for media in marked.media] == [0.25, 0.5, 0.75]
    assert [media.digest() for media in marked.media] == [media.digest() for media in item.media]
    assert len({media.digest() for media in item.media}) == 3
    assert list(itertools.chain.from_iterable(q.parts for q in marked.questions))[1] is marked.media[0]
