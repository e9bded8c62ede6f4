"""Generated tasks: a seed decides them, every answer follows from what is shown, files hold what was drawn."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from benchmarks.tasks import EPISODE_PLANS, Legend, Map, Plan, SceneClip, generate, make_episode, write_episodes
from benchmarks.tasks.episodes import facts
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem, describe
from benchmarks.tasks.list_tasks import LEAST_ICONS, LISTED, dropped_legend, listing, lists_episode
from benchmarks.tasks.registry import TASKS, task_of
from benchmarks.tasks.tiles import CELL, COLOUR_COUNT, FIRST_LAND, ICON_NAMES, bank
from benchmarks.tasks.world import COLOUR_NAMES, KINDS, LANDS, NUMBERS
from emblema.errors import PromptError

TEXTS = ("two-page-as-text", "text-two-hop")
PICTURES = [name for name in TASKS if name not in (*TEXTS, "lists")]
SHOWN = "bbb9543a53e318c6"
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


def scenes(media: tuple[Media, ...]) -> list[Seen]:
    """What the pictures and clips show, in order; a clip's scenes last four frames each."""
    shown: list[Seen] = []
    for each in media:
        if each.kind == "image":
            assert isinstance(each.content, Image.Image)
            shown.append(seen(each.content))
            continue
        assert isinstance(each.content, bytes)
        with av.open(io.BytesIO(each.content), "r") as container:
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
        shown = scenes(item.media)
        assert shown
        for question in item.questions:
            assert work_out(item, question, shown) == question.answer, question


@pytest.mark.parametrize("name", TEXTS)
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


@pytest.mark.parametrize("name", [name for name in TASKS if name != "lists"])
def test_items_are_well_formed(name: str) -> None:
    codes: set[str] = set()
    hops = set()
    for item in TASKS[name].items(17, 12):
        assert item.task == name
        assert item.form == TASKS[name].form
        assert item.episode == item.id
        assert any(media.slides for media in item.media)
        assert item.media[-1].slides < 1 or name == "atlas"
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
    for task in TASKS.values():
        for item in task.items(23, 3):
            texts = [part for part in item.parts if isinstance(part, str)]
            texts += [str(media.content) for media in item.media if media.kind == "text"]
            for question in item.questions:
                texts += [question.text, *(str(option) for option in question.options)]
                assert len(tokenizer(question.answer).input_ids) == len(question.answer.split())
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


def test_later_legends_do_not_change_earlier_maps() -> None:
    plan = Plan("LM", 8, (6,), 5, changed=2)
    for seed in range(20):
        episode = make_episode(np.random.default_rng(seed), plan)
        first, page = episode.pages[:2]
        assert isinstance(first, Legend)
        assert isinstance(page, Map)
        lands = {ICON_NAMES[icon]: LANDS[first.lands[colour]] for icon, colour in page.icon_colours().items()}
        asked = [question for question in episode.questions if question.kind == "land"]
        assert asked
        assert all(lands[next(word for word in q.text.split() if word in lands)] == q.answer for q in asked)


@pytest.mark.parametrize("task", EPISODE_PLANS)
def test_written_files_reload(task: str, tmp_path: Path) -> None:
    listing = write_episodes(task, 5, 2, tmp_path)
    lines = [json.loads(line) for line in listing.read_text().splitlines()]
    assert len(lines) == 2
    for line, episode in zip(lines, generate(task, 5, 2), strict=True):
        assert set(line) == {"task", "seed", "item", "pages", "questions"}
        assert [(q["kind"], q["text"], q["answer"]) for q in line["questions"]] == [
            (q.kind, q.text, q.answer) for q in episode.questions
        ]
        for entry, page in zip(line["pages"], episode.pages, strict=True):
            assert set(entry) == {"file", "kind"}
            if isinstance(page, SceneClip):
                check_clip(tmp_path / entry["file"], page)
            else:
                assert np.array_equal(np.asarray(Image.open(tmp_path / entry["file"])), np.asarray(page.image()))


def check_clip(path: Path, clip: SceneClip) -> None:
    """A written clip read at one frame a second shows two frames of each scene, close to what was drawn."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    drawn = clip.frames(1)
    assert len(frames[::2]) == len(drawn) == 2 * len(clip.scenes)
    for shown, picture in zip(frames[::2], drawn, strict=True):
        assert np.abs(shown.astype(float) - np.asarray(picture)).mean() < 8


def test_tiles_are_what_the_stock_processor_sees() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from training.families.qwen2_5_vl import qwen_patches
    from training.pictures import tile_pool

    processor = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, temporal_patch_size=2)
    patches = qwen_patches(tile_pool(np.random.default_rng(0), 1)[0])
    for _, scene in next(generate("maps", 1, 1)).scenes():
        seen = processor(images=[scene.image()], return_tensors="pt")
        assert seen["image_grid_thw"].tolist() == [[1, 16, 16]]
        assert scene.image().size == (8 * CELL, 8 * CELL)
        tiles = patches[scene.tile_numbers().ravel()].reshape(256, -1)
        assert float((seen["pixel_values"] - tiles).abs().max()) < 1e-5


@pytest.mark.parametrize("place", range(4))
def test_a_list_names_every_icon_in_alphabetical_order_with_what_the_pages_say(place: int) -> None:
    shown = [seen(page.image()) for page in lists_episode(20261122, place).pages]
    lands = known_lands(shown)
    under = sorted((icon, colour) for each in shown if not each.lands for icon, (colour,) in each.icons.items())
    right = {"lands": [(icon, lands[colour]) for icon, colour in under], "colours": under}
    (*_, item) = task_of("lists").items(20261122, place + 1)
    assert {question.kind: question.multi_hop for question in item.questions} == {"lands": True, "colours": False}
    assert [media.slides for media in item.media][0] == 1 and [media.slides for media in item.media][-3:] == [0, 0, 0]
    for question in item.questions:
        words = question.answer.split()
        assert list(zip(words[::2], words[1::2], strict=True)) == right[question.kind]
        assert len(words) >= 2 * LEAST_ICONS >= 32


def test_a_legend_before_all_pages_says_otherwise_and_changes_no_answer() -> None:
    for place in range(4):
        episode, older = lists_episode(20261122, place), dropped_legend(20261122, place)
        assert older.lands and all(episode.lands[colour] != land for colour, land in older.lands.items())
        longer = replace(episode, pages=(older, *episode.pages))
        answers = [{icon: land for icon, (land, _) in facts(each)["land"].items()} for each in (longer, episode)]
        assert answers[0] == answers[1]


def test_without_an_icon_or_a_legend_there_is_no_list_of_lands() -> None:
    episode, random = lists_episode(20261122, 0), np.random.default_rng(0)
    maps = replace(episode, pages=tuple(page for page in episode.pages if isinstance(page, Map)))
    assert [listing(random, maps, kind) is None for kind in LISTED] == [True, False]
    assert listing(random, replace(episode, pages=episode.pages[:1]), "colours") is None
