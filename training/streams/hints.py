"""Where the words of a question may look, and what they may already say: targets for rows in front of the answer's.

An icon's name may look at the icon's first frame of every view and say the lands that it was seen in, or its colour
where that is asked for; a land's name, and `first`, `last` and `now`, may say the answer. It takes one look into the
stream, where the answer takes two.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.tasks.streams import TimedQuestion
from benchmarks.tasks.streams.questions import AFTER, HERE, TIMES, StreamHistory
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS

SINK = (-1, 0)
SINK_SHARE = 3
"""Weight of the sink beside each visit when visits are counted: its share of the look then tells one to four apart."""
ROLES = {"icon": (2, 0), "count": (2, 1), "here": (2, 2), "after": (3, 3), "order": (3, 4), "colour": (0, 0)}
"""Layer and head that each kind of look is taught to; a colour needs no teaching."""


@dataclass(frozen=True)
class Hint:
    """For one word of a question, by its place: what it may say, and where a head may look, each equally.

    looks: (frame, cell), SINK for the opening's last row; what stands there several times gets as much more.
    """

    place: int
    says: tuple[str, ...]
    role: str
    looks: tuple[tuple[int, int], ...]


def hints(held: StreamHistory, asked: TimedQuestion) -> list[Hint]:
    """The hints of a question."""
    found = []
    said = asked.text.split()
    views = [held.views[ICON_NAMES.index(word)] for word in said if word in ICON_NAMES]
    for place, word in enumerate(said):
        if word in ICON_NAMES:
            mine = held.views[ICON_NAMES.index(word)]
            if asked.answer in COLOUR_NAMES:
                found.append(Hint(place, (asked.answer,), "colour", ()))
                continue
            looks = tuple((thing.begin, thing.slot + 1) for _, thing in mine)
            found.append(Hint(place, tuple(LANDS[stay.land] for stay, _ in mine), "icon", looks))
        elif word in ("first", "last"):
            thing = views[0][0 if word == "first" else -1][1]
            found.append(Hint(place, (asked.answer,), "order", ((thing.begin, thing.slot + 1),)))
        elif asked.text == HERE and word == "now":
            found.append(Hint(place, (asked.answer,), "here", ((held.at - 1, 0),)))
        elif word in LANDS:
            visits = held.visits[LANDS.index(word)]
            if asked.text == TIMES.format(word):
                looks = (*(SINK,) * SINK_SHARE, *((stay.begin, 0) for stay in visits))
                found.append(Hint(place, (asked.answer,), "count", looks))
            elif asked.text == AFTER.format(word):
                found.append(Hint(place, (asked.answer,), "after", ((visits[0].end, 0),)))
    return found
