"""Generated tasks: a seed decides the episodes, every question has one right answer, files hold what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from benchmarks.tasks import (
    EPISODE_PLANS,
    Episode,
    Legend,
    Map,
    Plan,
    SceneClip,
    generate,
    make_episode,
    write_episodes,
)
from benchmarks.tasks.episodes import record
from benchmarks.tasks.tiles import CELL, ICON_NAMES
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, KINDS, LANDS, NUMBERS
from emblema.errors import PromptError


def as_text(episodes: list[Episode]) -> str:
    """Everything about episodes that a reader could see, as one string."""
    pages = [[scene.tile_numbers().tolist() for _, scene in episode.scenes()] for episode in episodes]
    return json.dumps([pages, [record(episode, [""] * len(episode.pages)) for episode in episodes]])


def answer_of(kind: str, words: list[str], episode: Episode) -> str | None:
    """The answer worked out from the cells, or None if it is not clear; lands count from legends before a map only."""
    meaning: dict[int, int] = {}
    icons: dict[str, tuple[int, int | None]] = {}
    for _, scene in episode.scenes():
        for row, column in np.ndindex(scene.colours.shape):
            colour = int(scene.colours[row, column])
            if isinstance(scene, Legend) and colour != BLANK:
                assert meaning.setdefault(colour, scene.lands[colour]) == scene.lands[colour]
            elif isinstance(scene, Map) and scene.icons[row, column] != BLANK:
                name = ICON_NAMES[scene.icons[row, column]]
                assert name not in icons
                icons[name] = (colour, meaning.get(colour))
    if kind == "legend":
        (colour,) = (COLOUR_NAMES.index(word) for word in words if word in COLOUR_NAMES)
        return LANDS[meaning[colour]]
    if kind in ("colour", "land"):
        (name,) = (word for word in words if word in icons)
        colour, land = icons[name]
        return COLOUR_NAMES[colour] if kind == "colour" else None if land is None else LANDS[land]
    (asked,) = (LANDS.index(word) for word in words if word in LANDS)
    if any(land is None for _, land in icons.values()):
        return None
    inside = [name for name, (_, land) in icons.items() if land == asked]
    return NUMBERS[len(inside)] if kind == "count" else inside[0] if len(inside) == 1 else None


@pytest.mark.parametrize("task", EPISODE_PLANS)
def test_seed_decides(task: str) -> None:
    first, again, other = (list(generate(task, seed, 3)) for seed in (11, 11, 12))
    assert as_text(first) == as_text(again)
    assert as_text(first) != as_text(other)
    assert as_text(first[:2]) == as_text(list(generate(task, 11, 2)))


@pytest.mark.parametrize("task", EPISODE_PLANS)
def test_answers_follow_from_the_cells(task: str) -> None:
    kinds = set()
    for episode in generate(task, 21, 40):
        for question in episode.questions:
            kinds.add(question.kind)
            words = question.text.split()
            assert words[-1] == "?"
            assert answer_of(question.kind, words, episode) == question.answer, question
            assert " " not in question.answer
            assert all(0 <= page < len(episode.pages) for page in question.pages)
    assert kinds == set(KINDS)


def test_land_answers_spread_evenly() -> None:
    answers = [q.answer for episode in generate("maps", 3, 300) for q in episode.questions if q.kind == "land"]
    shares = [answers.count(land) / len(answers) for land in LANDS]
    assert len(answers) >= 1000
    assert max(shares) < 0.19


def test_pages_needed_are_named() -> None:
    for episode in generate("atlas", 4, 10):
        for question in episode.questions:
            if question.kind == "land":
                legend, page = (episode.pages[index] for index in question.pages)
                assert isinstance(legend, Legend)
                assert isinstance(page, Map)


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


def test_unknown_task_is_refused() -> None:
    with pytest.raises(PromptError, match="unknown task"):
        list(generate("charades", 1, 1))


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


def test_training_words_are_what_the_tokenizer_sees() -> None:
    from training import folder, layout
    from training.families import RECIPES

    tokenizer = folder.tokenizer(RECIPES["reference"])
    for question in next(generate("maps", 1, 1)).questions:
        text = f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n{question.answer}<|im_end|>"
        assert tokenizer(text).input_ids == layout.words(text.lower())
        assert tokenizer.unk_token_id not in tokenizer(text).input_ids
