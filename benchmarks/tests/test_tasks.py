"""Generated tasks: a seed decides them, every answer follows from what is shown, files hold what was drawn."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from benchmarks.tasks import Legend, Map, Plan, SceneClip, generate, make_episode, write_page
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem, describe
from benchmarks.tasks.list_tasks import LEAST_ICONS, lists_episode
from benchmarks.tasks.registry import TASKS, task_of
from benchmarks.tasks.tiles import CELL, COLOUR_COUNT, FIRST_LAND, ICON_NAMES, bank
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS
from emblema.errors import PromptError

TEXTS = ("two-page-as-text", "text-two-hop")
PICTURES = [name for name in TASKS if name not in (*TEXTS, "lists")]
SHOWN = "527c117252da2ac8"
"""Of what every task shows and asks with one seed. The committed figures and the bundled models rest on it."""


def digest(name: str, seed: int) -> str:
    """A digest of three items of a task: pictures by their pixels, clips left out as their bytes are the encoder's."""
    told = [describe(item) for item in TASKS[name].items(seed, 3)]
    for one in told:
        one["parts"] = [part for part in one["parts"] if part[0] != "video"]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def test_the_same_seed_makes_the_same_items_as_ever() -> None:
    digests = {name: digest(name, 640172) for name in TASKS}
    assert hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16] == SHOWN, digests


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_decides_the_items_however_many_are_drawn(name: str) -> None:
    first, other = ([describe(item) for item in TASKS[name].items(seed, 2)] for seed in (5, 6))
    assert first != other
    assert first[:1] == [describe(item) for item in TASKS[name].items(5, 1)]


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


def frames_of(clip: bytes | Path) -> list[Image.Image]:
    with av.open(io.BytesIO(clip) if isinstance(clip, bytes) else str(clip)) as container:
        return [frame.to_image() for frame in container.decode(video=0)]


def scenes(media: tuple[Media, ...]) -> list[Seen]:
    """What the pictures and clips show, in order; a clip's scenes last four frames each."""
    shown: list[Image.Image] = []
    for each in media:
        assert isinstance(each.content, Image.Image | bytes)
        shown += [each.content] if isinstance(each.content, Image.Image) else frames_of(each.content)[::4]
    return [seen(picture) for picture in shown]


def about(question: ItemQuestion, names: tuple[str, ...]) -> str:
    (found,) = (word for word in question.text.split() if word in names)
    return found


def work_out(item: TaskItem, question: ItemQuestion, shown: list[Seen]) -> str:
    """The answer of a question about pictures, from what they show."""
    lands = {colour: land for each in shown for colour, land in each.lands.items()}
    maps = [each for each in shown if not each.lands]
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
    if question.kind == "legend":
        return lands[about(question, COLOUR_NAMES)]
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
        # An album asks about the pictures that stay alone.
        shown = scenes(tuple(media for media in item.media if name != "album" or not media.slides))
        assert [work_out(item, question, shown) for question in item.questions] == [q.answer for q in item.questions]


@pytest.mark.parametrize("name", TEXTS)
def test_answers_follow_from_the_text(name: str) -> None:
    for item in TASKS[name].items(9, 10):
        first, second = (str(media.content) for media in item.media)
        lands = dict(re.findall(r"(\w+) does mean (\w+) \.", first))
        under = dict(re.findall(r"the (\w+) stands on (\w+) \.", second))
        assert [media.slides for media in item.media] == [1, 0]
        for question in item.questions:
            if question.kind == "legend":
                assert lands[about(question, COLOUR_NAMES)] == question.answer
                continue
            colour = under[about(question, ICON_NAMES)]
            assert question.answer == (colour if question.kind == "colour" else lands[colour])


@pytest.mark.parametrize("name", [name for name in TASKS if name != "lists"])
def test_items_are_well_formed(name: str) -> None:
    items = list(TASKS[name].items(17, 12))
    for item in items:
        assert (item.task, item.form, item.episode) == (name, TASKS[name].form, item.id)
        assert any(media.slides for media in item.media)
        assert item.media[-1].slides < 1 or name == "atlas"
    asked = [question for item in items for question in item.questions]
    assert len({question.id for question in asked}) == len(asked)
    assert {question.multi_hop for question in asked} == ({False} if name == "album" else {False, True})
    for question in asked:
        assert " " not in question.answer and len(set(question.options)) == len(question.options)
        assert not question.options or question.options[question.correct] == question.answer


def test_the_bundled_tokenizer_knows_every_word() -> None:
    from training.families import RECIPES
    from training.folder import tokenizer as bundled

    tokenizer = bundled(RECIPES["reference"])
    for task in TASKS.values():
        for item in task.items(23, 3):
            asked = [part for each in item.questions for part in (*each.parts, *each.options)]
            told = " ".join(part for part in (*item.parts, *asked) if isinstance(part, str))
            texts = " ".join([told, *(str(media.content) for media in item.media if media.kind == "text")])
            assert tokenizer.unk_token_id not in tokenizer(texts).input_ids, texts
            answers = [question.answer for question in item.questions]
            assert [len(tokenizer(answer).input_ids) for answer in answers] == [len(each.split()) for each in answers]


@pytest.mark.parametrize("name", ["retrieval-image", "action-sequence", "object-shuffle"])
def test_options_do_not_give_the_answer_away(name: str) -> None:
    asked = [question for item in TASKS[name].items(31, 60) for question in item.questions if question.multi_hop]
    places, count = [question.correct for question in asked], len(asked[0].options)
    for place in range(count):
        assert abs(places.count(place) / len(places) - 1 / count) < 4 * (1 / (4 * len(places))) ** 0.5


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PromptError, match="unknown task 'charades': choose one of maps, "):
        task_of("charades")
    with pytest.raises(PromptError, match="0 items of seed 1: give one item or more"):
        task_of("album").items(1, 0)
    with pytest.raises(PromptError, match="has no question"):
        TaskItem("a", "album", "muirbench", (), ())
    for media in (("text", b"x", 0.0), ("image", "x", 0.0), ("image", b"x", 1.5)):
        with pytest.raises(PromptError, match="a piece of kind"):
            Media(*media)  # type: ignore[arg-type]


def test_later_legends_do_not_change_earlier_maps() -> None:
    plan = Plan("LM", 8, (6,), 5, changed=2)
    for seed in range(20):
        episode = make_episode(np.random.default_rng(seed), plan)
        first, page = episode.pages[:2]
        assert isinstance(first, Legend) and isinstance(page, Map)
        lands = {ICON_NAMES[icon]: LANDS[first.lands[colour]] for icon, colour in page.icon_colours().items()}
        asked = [question for question in episode.questions if question.kind == "land"]
        assert asked and all(lands[next(word for word in q.text.split() if word in lands)] == q.answer for q in asked)


def test_a_written_clip_shows_two_frames_of_each_scene_close_to_what_was_drawn(tmp_path: Path) -> None:
    (clip,) = next(generate("clip", 5, 1)).pages
    assert isinstance(clip, SceneClip)
    frames = frames_of(write_page(clip, tmp_path / "clip"))
    drawn = clip.frames(1)
    assert len(frames[::2]) == len(drawn) == 2 * len(clip.scenes)
    for shown, picture in zip(frames[::2], drawn, strict=True):
        assert np.abs(np.asarray(shown, dtype=float) - np.asarray(picture)).mean() < 8


@pytest.mark.parametrize("place", range(4))
def test_a_list_names_every_icon_in_alphabetical_order_with_what_the_pages_say(place: int) -> None:
    shown = [seen(page.image()) for page in lists_episode(20261122, place).pages]
    lands = {colour: land for each in shown for colour, land in each.lands.items()}
    under = sorted((icon, colour) for each in shown if not each.lands for icon, (colour,) in each.icons.items())
    right = {"lands": [(icon, lands[colour]) for icon, colour in under], "colours": under}
    (*_, item) = task_of("lists").items(20261122, place + 1)
    assert {question.kind: question.multi_hop for question in item.questions} == {"lands": True, "colours": False}
    assert [media.slides for media in item.media][0] == 1 and [media.slides for media in item.media][-3:] == [0, 0, 0]
    for question in item.questions:
        words = question.answer.split()
        assert list(zip(words[::2], words[1::2], strict=True)) == right[question.kind]
        assert len(words) >= 2 * LEAST_ICONS >= 32
