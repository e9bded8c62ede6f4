"""two-page and two-page-as-text: a legend's page, then a map's; as pictures, or the same facts as text.

After Kamera's two-page multi-hop document task: one hop reads the second page, two hops need both. The second task is
its control: document pictures lose the binding under blind reuse, the same facts as text tokens are said not to.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.tasks.building import from_episode, name, stream
from benchmarks.tasks.generate import Plan, make_episode
from benchmarks.tasks.items import Item, Media
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, Episode, Legend, Map

LIMITS = (("colour", 4), ("land", 4))


def two_page(seed: int, item: int, form: str) -> Item:
    """A legend and a map of 8 x 8 cells as pictures."""
    episode, code = _episode(seed, item), name("two-page", seed, item)
    return from_episode(stream("two-page options", seed, item), episode, code, form)


def two_page_as_text(seed: int, item: int, form: str) -> Item:
    """The facts of the same pages as two passages of text."""
    shown = two_page(seed, item, form)
    code = name("two-page-as-text", seed, item)
    passages = [passage(scene) for _, scene in _episode(seed, item).scenes()]
    questions = tuple(replace(each, id=f"{code}-{place}") for place, each in enumerate(shown.questions))
    return Item(
        code, "two-page-as-text", form, (Media("text", passages[0], 1.0), Media("text", passages[1])), questions
    )


def passage(page: Legend | Map) -> str:
    """What a page says, as sentences."""
    if isinstance(page, Legend):
        return " ".join(f"{COLOUR_NAMES[colour]} does mean {LANDS[land]} ." for colour, land in page.lands.items())
    return " ".join(
        f"the {ICON_NAMES[icon]} stands on {COLOUR_NAMES[colour]} ." for icon, colour in page.icon_colours().items()
    )


def _episode(seed: int, item: int) -> Episode:
    random = stream("two-page", seed, item)
    plan = Plan("LM", 8, (int(random.integers(6, 11)),), int(random.integers(4, 9)), LIMITS)
    return make_episode(random, plan, seed, "two-page", item)
