"""Lists: answers worked out again from the pages, their order and length, and a legend before all pages."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tasks import task_of
from benchmarks.tasks.episodes import facts
from benchmarks.tasks.items import describe
from benchmarks.tasks.list_tasks import LEAST_ICONS, LISTED, dropped_legend, listing, lists_episode
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, LANDS, Legend, Map

SEED = 20261122


@pytest.mark.parametrize("place", range(8))
def test_a_list_names_every_icon_in_alphabetical_order_with_what_the_pages_say(place: int) -> None:
    episode = lists_episode(SEED, place)
    lands: dict[int, int] = {}
    under: dict[str, int] = {}
    for page in episode.pages:
        if isinstance(page, Legend):
            lands |= page.lands
        elif isinstance(page, Map):
            for row, column in np.argwhere(page.icons != BLANK):
                under[ICON_NAMES[page.icons[row, column]]] = int(page.colours[row, column])
    right = {
        "lands": [(icon, LANDS[lands[colour]]) for icon, colour in sorted(under.items())],
        "colours": [(icon, COLOUR_NAMES[colour]) for icon, colour in sorted(under.items())],
    }
    assert [question.kind for question in episode.questions] == list(LISTED)
    for question in episode.questions:
        words = question.answer.split()
        assert list(zip(words[::2], words[1::2], strict=True)) == right[question.kind]
        assert len(words) >= 2 * LEAST_ICONS >= 32


def test_lists_of_lands_need_several_pages_and_legends_slide() -> None:
    (item,) = task_of("lists").items(SEED, 1)
    assert {question.kind: question.multi_hop for question in item.questions} == {"lands": True, "colours": False}
    assert [media.slides for media in item.media][0] == 1 and [media.slides for media in item.media][-3:] == [0, 0, 0]


def test_the_same_seed_gives_the_same_items() -> None:
    first, again, other = (
        [describe(item) for item in task_of("lists").items(seed, 2)] for seed in (SEED, SEED, SEED + 1)
    )
    assert first == again != other


@pytest.mark.parametrize("place", range(8))
def test_a_legend_before_all_pages_says_otherwise_and_changes_no_answer(place: int) -> None:
    episode, older = lists_episode(SEED, place), dropped_legend(SEED, place)
    assert older.lands and all(episode.lands[colour] != land for colour, land in older.lands.items())
    longer = replace(episode, pages=(older, *episode.pages))
    assert {icon: land for icon, (land, _) in facts(longer)["land"].items()} == {
        icon: land for icon, (land, _) in facts(episode)["land"].items()
    }


def test_without_an_icon_or_a_legend_there_is_no_list_of_lands() -> None:
    episode, random = lists_episode(SEED, 0), np.random.default_rng(0)
    maps = tuple(page for page in episode.pages if isinstance(page, Map))
    assert listing(random, replace(episode, pages=maps), "lands") is None
    assert listing(random, replace(episode, pages=maps), "colours") is not None
    assert listing(random, replace(episode, pages=episode.pages[:1]), "colours") is None
