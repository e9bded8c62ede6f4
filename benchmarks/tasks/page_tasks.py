"""Tasks of pages: legends and maps as pictures or as text, in albums, haystacks, dialogues and clips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.tasks.building import (
    SENTENCES,
    SINGLE_HOP,
    choice,
    from_episode,
    media_of,
    name,
    phrase,
    picture,
    stream,
)
from benchmarks.tasks.episodes import Plan, clip_plan, facts, make_episode
from benchmarks.tasks.items import ItemQuestion, Media, Part, TaskItem
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, Episode, Legend, Map

TWO_PAGE_LIMITS = (("colour", 4), ("land", 4))
ALBUM_LIMITS = (("colour", 2), ("land", 3), ("which", 1))
RETRIEVAL_LIMITS = (("colour", 2), ("land", 3))
REASONING_LIMITS = (("colour", 1), ("land", 2), ("count", 1), ("which", 2))
LEAST_PAGES, MOST_PAGES = 5, 10
TURNS = 4
VIDEO_LIMITS = (("colour", 1), ("land", 2))


def two_page(seed: int, item: int, form: str) -> TaskItem:
    """Return a legend and a map of 8 x 8 cells as pictures."""
    episode, code = _two_page_episode(seed, item), name("two-page", seed, item)
    return from_episode(stream("two-page options", seed, item), episode, code, form)


def two_page_as_text(seed: int, item: int, form: str) -> TaskItem:
    """Return the facts of the same pages as two passages of text."""
    shown = two_page(seed, item, form)
    code = name("two-page-as-text", seed, item)
    passages = [passage(scene) for _, scene in _two_page_episode(seed, item).scenes()]
    questions = tuple(replace(each, id=f"{code}-{place}") for place, each in enumerate(shown.questions))
    return TaskItem(
        code, "two-page-as-text", form, (Media("text", passages[0], 1.0), Media("text", passages[1])), questions
    )


def passage(page: Legend | Map) -> str:
    """Return what a page says, as sentences."""
    if isinstance(page, Legend):
        return " ".join(f"{COLOUR_NAMES[colour]} does mean {LANDS[land]} ." for colour, land in page.lands.items())
    return " ".join(
        f"the {ICON_NAMES[icon]} stands on {COLOUR_NAMES[colour]} ." for icon, colour in page.icon_colours().items()
    )


def _two_page_episode(seed: int, item: int) -> Episode:
    random = stream("two-page", seed, item)
    plan = Plan("LM", 8, (int(random.integers(6, 11)),), int(random.integers(4, 9)), TWO_PAGE_LIMITS)
    return make_episode(random, plan, seed, "two-page", item)


def text_two_hop(seed: int, item: int, form: str) -> TaskItem:
    """Return a passage that gives colours their lands, which slides, and one that sets icons on colours."""
    random, code = stream("text-two-hop", seed, item), name("text-two-hop", seed, item)
    colours = [str(colour) for colour in random.permutation(list(COLOUR_NAMES))[: int(random.integers(4, 9))]]
    lands = {colour: LANDS[int(random.integers(len(LANDS)))] for colour in colours}
    icons = [str(icon) for icon in random.permutation(list(ICON_NAMES))[: int(random.integers(5, 9))]]
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


def prose(random: np.random.Generator, said: list[str]) -> str:
    """Return what is said with a plain sentence after every second sentence of it."""
    plain = [str(sentence) for sentence in random.choice(SENTENCES, len(said), replace=False)]
    mixed = [fact if place % 2 == 0 else f"{fact} {plain[place]}" for place, fact in enumerate(said)]
    return " ".join(mixed)


def album(seed: int, item: int, form: str) -> TaskItem:
    """Return four to six maps, no legend; the first half slides, and the questions are about the other half."""
    random, code = stream("album", seed, item), name("album", seed, item)
    maps = int(random.integers(4, 7))
    episode = make_episode(random, Plan("M" * maps, 8, (4,) * maps, 6, ()), seed, "album", item)
    known = facts(episode)["colour"]
    kept = [subject for subject, (_, pages) in known.items() if pages[0] >= maps // 2]
    chosen = [kept[place] for place in random.permutation(len(kept))[:4]]
    questions = tuple(
        choice(random, f"{code}-{place}", phrase(random, "colour", icon), known[icon][0], "colour", False)
        for place, icon in enumerate(chosen)
    )
    parts = tuple(picture(page, place < maps // 2) for place, page in enumerate(episode.pages) if isinstance(page, Map))
    return TaskItem(code, "album", form, parts, questions)


def album_binding(seed: int, item: int, form: str) -> TaskItem:
    """Return one or two legends, then three maps: questions across pictures beside questions about one."""
    random, code = stream("album-binding", seed, item), name("album-binding", seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "MMM", 8, (4, 4, 4), int(random.integers(4, 9)), ALBUM_LIMITS)
    return from_episode(random, make_episode(random, plan, seed, "album-binding", item), code, form, 4)


def retrieval_image(seed: int, item: int, form: str) -> TaskItem:
    """Return one needle: a map with three to five icons among maps that have none."""
    random = stream("retrieval-image", seed, item)
    maps = int(random.integers(LEAST_PAGES, MOST_PAGES))
    icons = [0] * maps
    icons[int(random.integers(maps))] = int(random.integers(3, 6))
    return haystack(random, "retrieval-image", seed, item, form, tuple(icons), RETRIEVAL_LIMITS)


def reasoning_image(seed: int, item: int, form: str) -> TaskItem:
    """Return two to four needles of one or two icons each, which have to be taken together."""
    random = stream("reasoning-image", seed, item)
    maps = int(random.integers(LEAST_PAGES, MOST_PAGES))
    icons = np.zeros(maps, dtype=np.int64)
    needles = int(random.integers(2, 5))
    icons[random.permutation(maps)[:needles]] = random.integers(1, 3, needles)
    counts = tuple(int(count) for count in icons)
    return haystack(random, "reasoning-image", seed, item, form, counts, REASONING_LIMITS)


def haystack(
    random: np.random.Generator,
    task: str,
    seed: int,
    item: int,
    form: str,
    icons: tuple[int, ...],
    limits: tuple[tuple[str, int], ...],
) -> TaskItem:
    """Return a document of legends, maps with so many icons each, and one to three sentences before every picture."""
    code = name(task, seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "M" * len(icons), 8, icons, int(random.integers(4, 9)), limits)
    episode = make_episode(random, plan, seed, task, item)
    parts: list[Part] = []
    for page in episode.pages:
        parts += [" ".join(random.choice(SENTENCES, int(random.integers(1, 4)), replace=False)), media_of(page)]
    parts.append(str(random.choice(SENTENCES)))
    questions = tuple(
        choice(random, f"{code}-{place}", each.text, each.answer, each.kind, each.kind != "colour")
        for place, each in enumerate(episode.questions)
    )
    return TaskItem(code, task, form, tuple(parts), questions)


def dialogue_sentence(seed: int, item: int, form: str) -> TaskItem:
    """Return four turns about legends and a map, and about another map that comes later; legends slide."""
    random, code = stream("dialogue-sentence", seed, item), name("dialogue-sentence", seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "MM", 8, (4, 4), int(random.integers(4, 9)), ())
    episode = make_episode(random, plan, seed, "dialogue-sentence", item)
    pages = [media_of(page) for page in episode.pages]
    later = int(random.integers(1, TURNS))
    questions = []
    first, second = len(pages) - 2, len(pages) - 1
    for turn in range(TURNS):
        kind = str(random.choice(["colour", "land", "land"]))
        known = (first,) if turn < later else (second,) if turn == later else (first, second)
        text, answer = ask_about(random, episode, kind, known)
        shown: list[Part] = [text]
        if turn == 0:
            shown = ["look at these pictures . ", *pages[:-1], " " + text]
        elif turn == later:
            shown = ["here is another picture . ", pages[-1], " " + text]
        questions.append(_turn(code, turn, shown, answer, kind))
    return TaskItem(code, "dialogue-sentence", form, (), tuple(questions), dialogue=True)


def dialogue_word(seed: int, item: int, form: str) -> TaskItem:
    """Return two turns: a legend and a map named in one sentence, then another map in another; the legend slides."""
    random, code = stream("dialogue-word", seed, item), name("dialogue-word", seed, item)
    plan = Plan("LMM", 8, (4, 4), int(random.integers(4, 9)), ())
    episode = make_episode(random, plan, seed, "dialogue-word", item)
    legend, first, second = (media_of(page) for page in episode.pages)
    kinds = ("land", str(random.choice(["colour", "land"])))
    about_first, about_second = (ask_about(random, episode, kind, (page,)) for page, kind in enumerate(kinds, start=1))
    turns: tuple[list[Part], list[Part]] = (
        ["by the legend IMAGE#1", legend, " and the map IMAGE#2", first, ", " + about_first[0]],
        ["and by the map IMAGE#3", second, ", " + about_second[0]],
    )
    questions = tuple(
        _turn(code, turn, shown, answer, kind)
        for turn, (shown, answer, kind) in enumerate(zip(turns, (about_first[1], about_second[1]), kinds, strict=True))
    )
    return TaskItem(code, "dialogue-word", form, (), questions, dialogue=True)


def ask_about(random: np.random.Generator, episode: Episode, kind: str, pages: tuple[int, ...]) -> tuple[str, str]:
    """Return a question of a kind about an icon on one of the pages, and its answer."""
    known = {subject: fact for subject, fact in facts(episode)[kind].items() if fact[1][-1] in pages}
    subject = list(known)[int(random.integers(len(known)))]
    return phrase(random, kind, subject), known[subject][0]


def _turn(code: str, turn: int, shown: list[Part], answer: str, kind: str) -> ItemQuestion:
    return ItemQuestion(f"{code}-{turn}", tuple(shown), answer, multi_hop=kind not in SINGLE_HOP, kind=kind)


def video_choice(seed: int, item: int, form: str) -> TaskItem:
    """Return one or two legends and two to five maps as scenes of a clip."""
    random, code = stream("video-choice", seed, item), name("video-choice", seed, item)
    plan = replace(clip_plan(random), limits=VIDEO_LIMITS)
    return from_episode(random, make_episode(random, plan, seed, "video-choice", item), code, form, 4)
