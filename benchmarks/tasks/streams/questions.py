"""Questions about what a stream has shown by some time, and the answers, worked out from its stays."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from benchmarks.tasks.streams.planning import MOST_VISITS
from benchmarks.tasks.streams.world import GeneratedStream, Stay, Thing, TimedQuestion
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS
from emblema.errors import PromptError

QUESTION_KINDS = ("recent", "far", "repeated", "ordered", "counted")
HERE = "in which land are we now ?"
NOW = "what colour is under the {} now ?"
WHERE = "in which land was the {} ?"
UNDER = "what colour was under the {} ?"
BOTH = "in which land were the {} and the {} ?"
FIRST = "in which land was the {} first ?"
LAST = "in which land was the {} last ?"
AFTER = "which land came after the {} ?"
TIMES = "how many times was the {} seen ?"
TEMPLATES: dict[str, tuple[str, ...]] = {
    "recent": (HERE, NOW),
    "far": (WHERE, UNDER),
    "repeated": (BOTH,),
    "ordered": (FIRST, LAST, AFTER),
    "counted": (TIMES,),
}


@dataclass(frozen=True)
class StreamHistory:
    """What has been shown when `at` frames have been seen.

    views: icon -> (stay, thing) of each time it came into view; visits: land -> its stays, both in order.
    """

    at: int
    stays: tuple[Stay, ...]
    views: dict[int, list[tuple[Stay, Thing]]] = field(default_factory=dict)
    visits: dict[int, list[Stay]] = field(default_factory=dict)


def seen(stream: GeneratedStream, at: int) -> StreamHistory:
    """Return what a stream has shown by frame `at`; the last stay and its things end there."""
    stays = tuple(
        replace(stay, end=min(stay.end, at), things=tuple(_until(stay, at))) for stay in stream.stays if stay.begin < at
    )
    views: dict[int, list[tuple[Stay, Thing]]] = defaultdict(list)
    visits: dict[int, list[Stay]] = defaultdict(list)
    for stay in stays:
        visits[stay.land].append(stay)
        for thing in stay.things:
            views[thing.icon].append((stay, thing))
    return StreamHistory(at, stays, dict(views), dict(visits))


def _until(stay: Stay, at: int) -> list[Thing]:
    return [replace(thing, end=min(thing.end, at)) for thing in stay.things if thing.begin < at]


def answers(held: StreamHistory) -> dict[str, list[TimedQuestion]]:
    """Return every question of each kind that has one clear answer."""
    return {
        "recent": _recent(held),
        "far": _far(held),
        "repeated": _repeated(held),
        "ordered": _ordered(held),
        "counted": _counted(held),
    }


def ask(
    random: np.random.Generator, stream: GeneratedStream, at: int, limits: dict[str, int]
) -> tuple[TimedQuestion, ...]:
    """Return up to limits[kind] questions of each kind, drawn evenly over its wordings (counted: over its answers)."""
    found, names_asked = answers(seen(stream, at)), {*ICON_NAMES, *LANDS}
    asked: list[TimedQuestion] = []
    for kind in QUESTION_KINDS:
        groups: dict[str, list[TimedQuestion]] = defaultdict(list)
        for each in found[kind]:
            wording = " ".join("{}" if word in names_asked else word for word in each.text.split())
            groups[each.answer if kind == "counted" else wording].append(each)
        for group in groups.values():
            random.shuffle(group)  # type: ignore[arg-type]
        names = sorted(groups)
        taken = 0
        while names and taken < limits.get(kind, 0):
            name = names[int(random.integers(len(names)))]
            asked.append(groups[name].pop())
            taken += 1
            if not groups[name]:
                names.remove(name)
    return tuple(asked)


def _span(thing: Thing) -> tuple[int, int]:
    return thing.begin, thing.end


def _recent(held: StreamHistory) -> list[TimedQuestion]:
    """Return the land of the last frame, and what is in it."""
    if not held.stays:
        return []
    last = held.stays[-1]
    found = [TimedQuestion("recent", HERE, LANDS[last.land], held.at, ((held.at - 1, held.at),))]
    for thing in last.things:
        if thing.end == held.at:
            text, colour = NOW.format(ICON_NAMES[thing.icon]), COLOUR_NAMES[thing.colour]
            found.append(TimedQuestion("recent", text, colour, held.at, ((held.at - 1, held.at),)))
    return found


def _far(held: StreamHistory) -> list[TimedQuestion]:
    """Return icons that came into view in one stay only, which is over."""
    found = []
    for icon, views in held.views.items():
        stay, thing = views[0]
        if len(views) > 1 or stay.end == held.at:
            continue
        for text, answer in ((WHERE, LANDS[stay.land]), (UNDER, COLOUR_NAMES[thing.colour])):
            found.append(TimedQuestion("far", text.format(ICON_NAMES[icon]), answer, held.at, (_span(thing),)))
    return found


def _repeated(held: StreamHistory) -> list[TimedQuestion]:
    """Return two icons in view twice each, in two lands each, of which one is common, though not on the same visit."""
    twice = {
        icon: views for icon, views in held.views.items() if len(views) == 2 and views[0][0].land != views[1][0].land
    }
    found = []
    for first, second in combinations(sorted(twice), 2):
        stays = [stay for icon in (first, second) for stay, _ in twice[icon]]
        common = {stay.land for stay in stays[:2]} & {stay.land for stay in stays[2:]}
        if len(common) != 1 or len({stay.begin for stay in stays}) < 4:
            continue
        names = (ICON_NAMES[first], ICON_NAMES[second])
        evidence = tuple(sorted(_span(thing) for icon in (first, second) for _, thing in twice[icon]))
        answer = LANDS[common.pop()]
        found += [
            TimedQuestion("repeated", BOTH.format(*order), answer, held.at, evidence) for order in (names, names[::-1])
        ]
    return found


def _ordered(held: StreamHistory) -> list[TimedQuestion]:
    """Return first and last land of icons in view two to four times; what came after a land visited once."""
    found = []
    for icon, views in held.views.items():
        if not 2 <= len(views) <= MOST_VISITS:
            continue
        lands = [stay.land for stay, _ in views]
        spans = tuple(_span(thing) for _, thing in views)
        if lands[0] not in lands[1:]:
            found.append(TimedQuestion("ordered", FIRST.format(ICON_NAMES[icon]), LANDS[lands[0]], held.at, spans))
        if lands[-1] not in lands[:-1]:
            found.append(TimedQuestion("ordered", LAST.format(ICON_NAMES[icon]), LANDS[lands[-1]], held.at, spans))
    for land, visits in held.visits.items():
        if len(visits) == 1 and visits[0].end < held.at:
            after = next(stay for stay in held.stays if stay.begin == visits[0].end)
            evidence = ((visits[0].end - 1, after.begin + 1),)
            found.append(TimedQuestion("ordered", AFTER.format(LANDS[land]), LANDS[after.land], held.at, evidence))
    return found


def _counted(held: StreamHistory) -> list[TimedQuestion]:
    """Return visits to lands that were visited one to four times."""
    found = []
    for land, visits in held.visits.items():
        if len(visits) <= MOST_VISITS:
            spans = tuple((stay.begin, stay.end) for stay in visits)
            found.append(TimedQuestion("counted", TIMES.format(LANDS[land]), NUMBERS[len(visits)], held.at, spans))
    return found


EACH = dict.fromkeys(QUESTION_KINDS, 3)
"""Questions of each kind about a whole stream."""


def questions_of(
    stream: GeneratedStream, at: tuple[int, ...] = (), limits: dict[str, int] | None = None
) -> tuple[TimedQuestion, ...]:
    """Return questions about a stream, the same every time, asked when so many frames have been seen (at its end).

    Raises:
        PromptError: a time lies before the first frame or after the last.
    """
    times = at or (len(stream),)
    if any(not 1 <= time <= len(stream) for time in times):
        raise PromptError(f"{stream.id} is asked at {times}: give frames from 1 to {len(stream)}")
    asked: list[TimedQuestion] = []
    for time in times:
        random = np.random.default_rng([stream.seed, zlib.crc32(stream.kind.encode()), len(stream), stream.item, time])
        asked += ask(random, stream, time, EACH if limits is None else limits)
    return tuple(asked)
