"""Tasks of pages: legends and maps as pictures or as text, in albums, haystacks, dialogues and clips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.tasks.building import ItemDraw, media_of, picture, plain_sentences
from benchmarks.tasks.episodes import Plan, clip_plan, facts
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


def two_page(draw: ItemDraw) -> TaskItem:
    """Return a legend and a map of 8 x 8 cells as pictures."""
    return draw.item_of(_two_page_episode(draw.seed, draw.place))


def two_page_as_text(draw: ItemDraw) -> TaskItem:
    """Return the facts of the same pages as two passages of text."""
    episode = _two_page_episode(draw.seed, draw.place)
    for each in episode.questions:
        draw.add((each.text,), each.answer, each.kind)
    legend, page = (passage(scene) for _, scene in episode.scenes())
    return draw.item((Media("text", legend, 1.0), Media("text", page)))


def passage(page: Legend | Map) -> str:
    """Return what a page says, as sentences."""
    if isinstance(page, Legend):
        return " ".join(f"{COLOUR_NAMES[colour]} does mean {LANDS[land]} ." for colour, land in page.lands.items())
    return " ".join(
        f"the {ICON_NAMES[icon]} stands on {COLOUR_NAMES[colour]} ." for icon, colour in page.icon_colours().items()
    )


def _two_page_episode(seed: int, place: int) -> Episode:
    draw = ItemDraw("two-page", seed, place)
    icons = (int(draw.random.integers(6, 11)),)
    return draw.episode(Plan("LM", 8, icons, _colours(draw), TWO_PAGE_LIMITS))


def _colours(draw: ItemDraw) -> int:
    """Return how many colours all legends of an item list."""
    return int(draw.random.integers(4, 9))


def _legends(draw: ItemDraw) -> str:
    """Return one or two legends, as a plan's order has them."""
    return "L" * int(draw.random.integers(1, 3))


def text_two_hop(draw: ItemDraw) -> TaskItem:
    """Return a passage that gives colours their lands, which slides, and one that sets icons on colours."""
    random, code = draw.random, draw.code
    colours = [str(colour) for colour in random.permutation(list(COLOUR_NAMES))[: _colours(draw)]]
    lands = {colour: LANDS[int(random.integers(len(LANDS)))] for colour in colours}
    icons = [str(icon) for icon in random.permutation(list(ICON_NAMES))[: int(random.integers(5, 9))]]
    under = {icon: colours[int(random.integers(len(colours)))] for icon in icons}
    asked, colour = icons[0], under[icons[0]]
    first = prose(random, [f"{each} does mean {lands[each]} ." for each in colours])
    second = prose(random, [f"the {icon} stands on {under[icon]} ." for icon in sorted(icons)])
    text = draw.phrase("land", asked)
    draw.add((draw.phrase("colour", asked),), colour, "colour")
    draw.add((draw.phrase("legend", colour),), lands[colour], "legend")
    draw.questions.insert(0, ItemQuestion(code, (text,), lands[colour], multi_hop=True, kind="land"))
    return draw.item((Media("text", f"the legend\n{first}", 1.0), Media("text", f"the map\n{second}")))


def prose(random: np.random.Generator, said: list[str]) -> str:
    """Return what is said with a plain sentence after every second sentence of it."""
    plain = [str(sentence) for sentence in random.choice(plain_sentences(), len(said), replace=False)]
    mixed = [fact if place % 2 == 0 else f"{fact} {plain[place]}" for place, fact in enumerate(said)]
    return " ".join(mixed)


def album(draw: ItemDraw) -> TaskItem:
    """Return four to six maps, no legend; the first half slides, and the questions are about the other half."""
    maps = int(draw.random.integers(4, 7))
    episode = draw.episode(Plan("M" * maps, 8, (4,) * maps, 6, ()))
    known = facts(episode)["colour"]
    kept = [subject for subject, (_, pages) in known.items() if pages[0] >= maps // 2]
    for icon in [kept[place] for place in draw.random.permutation(len(kept))[:4]]:
        draw.choose(draw.phrase("colour", icon), known[icon][0], "colour")
    return draw.item(
        picture(page, place < maps // 2) for place, page in enumerate(episode.pages) if isinstance(page, Map)
    )


def album_binding(draw: ItemDraw) -> TaskItem:
    """Return one or two legends, then three maps: questions across pictures beside questions about one."""
    plan = Plan(_legends(draw) + "MMM", 8, (4, 4, 4), _colours(draw), ALBUM_LIMITS)
    return draw.item_of(draw.episode(plan), choices=True)


def retrieval_image(draw: ItemDraw) -> TaskItem:
    """Return one needle: a map with three to five icons among maps that have none."""
    icons = [0] * int(draw.random.integers(LEAST_PAGES, MOST_PAGES))
    icons[int(draw.random.integers(len(icons)))] = int(draw.random.integers(3, 6))
    return haystack(draw, tuple(icons), RETRIEVAL_LIMITS)


def reasoning_image(draw: ItemDraw) -> TaskItem:
    """Return two to four needles of one or two icons each, which have to be taken together."""
    random = draw.random
    maps = int(random.integers(LEAST_PAGES, MOST_PAGES))
    icons = np.zeros(maps, dtype=np.int64)
    needles = int(random.integers(2, 5))
    icons[random.permutation(maps)[:needles]] = random.integers(1, 3, needles)
    return haystack(draw, tuple(int(count) for count in icons), REASONING_LIMITS)


def haystack(draw: ItemDraw, icons: tuple[int, ...], limits: tuple[tuple[str, int], ...]) -> TaskItem:
    """Return a document of legends, maps with so many icons each, and one to three sentences before every picture."""
    random = draw.random
    episode = draw.episode(Plan(_legends(draw) + "M" * len(icons), 8, icons, _colours(draw), limits))
    parts: list[Part] = []
    for page in episode.pages:
        said = random.choice(plain_sentences(), int(random.integers(1, 4)), replace=False)
        parts += [" ".join(said), media_of(page)]
    parts.append(str(random.choice(plain_sentences())))
    for each in episode.questions:
        draw.choose(each.text, each.answer, each.kind)
    return draw.item(parts)


def dialogue_sentence(draw: ItemDraw) -> TaskItem:
    """Return four turns about legends and a map, and about another map that comes later; legends slide."""
    random = draw.random
    episode = draw.episode(Plan(_legends(draw) + "MM", 8, (4, 4), _colours(draw), ()))
    pages = [media_of(page) for page in episode.pages]
    later = int(random.integers(1, TURNS))
    first, second = len(pages) - 2, len(pages) - 1
    for turn in range(TURNS):
        kind = str(random.choice(["colour", "land", "land"]))
        known = (first,) if turn < later else (second,) if turn == later else (first, second)
        text, answer = ask_about(draw, episode, kind, known)
        shown: list[Part] = [text]
        if turn == 0:
            shown = ["look at these pictures . ", *pages[:-1], " " + text]
        elif turn == later:
            shown = ["here is another picture . ", pages[-1], " " + text]
        draw.add(shown, answer, kind)
    return draw.item((), dialogue=True)


def dialogue_word(draw: ItemDraw) -> TaskItem:
    """Return two turns: a legend and a map named in one sentence, then another map in another; the legend slides."""
    episode = draw.episode(Plan("LMM", 8, (4, 4), _colours(draw), ()))
    legend, first, second = (media_of(page) for page in episode.pages)
    kind = str(draw.random.choice(["colour", "land"]))
    text, answer = ask_about(draw, episode, "land", (1,))
    draw.add(["by the legend IMAGE#1", legend, " and the map IMAGE#2", first, ", " + text], answer, "land")
    text, answer = ask_about(draw, episode, kind, (2,))
    draw.add(["and by the map IMAGE#3", second, ", " + text], answer, kind)
    return draw.item((), dialogue=True)


def ask_about(draw: ItemDraw, episode: Episode, kind: str, pages: tuple[int, ...]) -> tuple[str, str]:
    """Return a question of a kind about an icon on one of the pages, and its answer."""
    known = {subject: fact for subject, fact in facts(episode)[kind].items() if fact[1][-1] in pages}
    subject = list(known)[int(draw.random.integers(len(known)))]
    return draw.phrase(kind, subject), known[subject][0]


def video_choice(draw: ItemDraw) -> TaskItem:
    """Return one or two legends and two to five maps as scenes of a clip."""
    plan = replace(clip_plan(draw.random), limits=VIDEO_LIMITS)
    return draw.item_of(draw.episode(plan), choices=True)
