"""Questions about an episode, and the answers worked out from its pages alone."""

from __future__ import annotations

import numpy as np

from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, KINDS, LANDS, NUMBERS, Episode, Legend, Question

TEMPLATES: dict[str, tuple[str, ...]] = {
    "colour": (
        "what colour is under the {} ?",
        "which colour lies under the {} ?",
        "on which colour does the {} stand ?",
    ),
    "land": ("on which land does the {} stand ?", "what land is under the {} ?", "in which land is the {} ?"),
    "legend": ("what land is {} ?", "which land does {} mean ?", "what does {} stand for ?"),
    "count": ("how many icons stand in the {} ?", "how many icons are in a {} ?"),
    "which": ("which icon stands in the {} ?", "what stands in the {} ?"),
}


def facts(episode: Episode) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """kind -> subject -> (answer, indices of the pages needed), for every question that has one clear answer.

    A map's icon has a land only if a legend before the map lists its colour; count and which look at all maps
    together and are left out when some icon has no land. A colour that legends give different lands is not asked for
    by itself.
    """
    known: dict[int, tuple[int, int]] = {}
    colours: dict[str, tuple[str, tuple[int, ...]]] = {}
    lands: dict[str, tuple[str, tuple[int, ...]]] = {}
    legend: dict[str, tuple[str, tuple[int, ...]]] = {}
    pages: list[int] = []
    disputed: set[str] = set()
    for index, scene in episode.scenes():
        pages.append(index)
        if isinstance(scene, Legend):
            for colour, land in scene.lands.items():
                if known.setdefault(colour, (land, index))[0] == land:
                    legend.setdefault(COLOUR_NAMES[colour], (LANDS[land], (index,)))
                else:
                    disputed.add(COLOUR_NAMES[colour])
                known[colour] = (land, index)
            continue
        for icon, colour in scene.icon_colours().items():
            colours[ICON_NAMES[icon]] = (COLOUR_NAMES[colour], (index,))
            if colour in known:
                land, source = known[colour]
                lands[ICON_NAMES[icon]] = (LANDS[land], tuple(dict.fromkeys((source, index))))
    legend = {colour: fact for colour, fact in legend.items() if colour not in disputed}
    counts: dict[str, tuple[str, tuple[int, ...]]] = {}
    which: dict[str, tuple[str, tuple[int, ...]]] = {}
    if colours and len(colours) == len(lands):
        everything = tuple(dict.fromkeys(pages))
        for land_name in LANDS:
            inside = [icon for icon, (answer, _) in lands.items() if answer == land_name]
            if len(inside) < len(NUMBERS):
                counts[land_name] = (NUMBERS[len(inside)], everything)
            if len(inside) == 1:
                which[land_name] = (inside[0], everything)
    return {"colour": colours, "land": lands, "legend": legend, "count": counts, "which": which}


def ask(random: np.random.Generator, episode: Episode, limits: dict[str, int]) -> tuple[Question, ...]:
    """Up to limits[kind] questions of each kind about random subjects; counts of zero are kept rare."""
    questions: list[Question] = []
    answers = facts(episode)
    for kind in KINDS:
        subjects = list(answers[kind])
        subjects = [subjects[position] for position in random.permutation(len(subjects))]
        if kind == "count":
            subjects.sort(key=lambda subject: answers["count"][subject][0] == "zero" and random.random() < 0.7)
        for subject in subjects[: limits.get(kind, 0)]:
            answer, pages = answers[kind][subject]
            text = TEMPLATES[kind][int(random.integers(len(TEMPLATES[kind])))].format(subject)
            questions.append(Question(kind, text, answer, pages))
    return tuple(questions)
