"""Sightings are counted, in order, and the lists that were met longest ago are forgotten."""

import random
from collections import OrderedDict

from emblema.link.policy.expectations import RecentSightings


def test_counts_are_those_of_the_lists_met_last() -> None:
    rnd = random.Random(5)
    own, kept = RecentSightings(most=20), OrderedDict[tuple[str, ...], int]()
    for _ in range(2000):
        names = tuple(rnd.sample("abcdef", rnd.randint(1, 3)))
        kept[names] = kept.get(names, 0) + 1
        kept.move_to_end(names)
        if len(kept) > 20:
            kept.popitem(last=False)
        assert own.add(names) == kept[names]
        asked = tuple(rnd.sample("abcdef", rnd.randint(1, 3)))
        assert own.count(asked) == kept.get(asked, 0)


def test_order_counts_and_names_do_not_run_together() -> None:
    own = RecentSightings()
    own.add(["ab", "c"])
    assert own.count(["ab", "c"]) == 1 and own.count(["c", "ab"]) == own.count(["a", "bc"]) == own.count([]) == 0
