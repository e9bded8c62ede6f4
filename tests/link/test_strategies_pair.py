"""Plans of `pair` and `pair+query-R%`, without a model: which rows take what they are known to take from others."""

from dataclasses import replace

from emblema.link.plan import LinkPlan, PatchUse, Recomputation
from emblema.link.policy.margins import DEFAULT
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.pair import Pair
from emblema.store.keys import ArtifactKey, ArtifactKind
from tests.link.pieces import LAYERS, chunk, knowledge, zero_patch

FIRST, SECOND, THIRD = chunk(1, 5), chunk(2, 8), chunk(3, 7)
KNOWN = ArtifactKey("model", SECOND.id, (FIRST.id,), ArtifactKind.PAIRS)


def plan(strategy: Pair, *, slid: bool = False) -> LinkPlan:
    """Plan two rows of text, three pages and two rows of text, where pairs are known of the second page alone."""
    pages = (ChunkPart(FIRST, slid=slid), ChunkPart(SECOND), ChunkPart(THIRD))
    prompt = Prompt.of([TextPart((1, 2)), *pages, TextPart((3, 4))], 1)
    made = strategy.plan(prompt, replace(knowledge(), find_artifact={KNOWN: zero_patch(8, 3)}.get))
    made.validate()
    return made


def test_pages_take_what_is_known_and_are_blind_where_nothing_is() -> None:
    made = plan(Pair())
    assert made.strategy == "pair" and made.recomputation is None and not made.forming
    assert made.sources().tolist() == [[0] * 2 + [1] * 5 + [2] * 8 + [1] * 7 + [0] * 2] * LAYERS
    assert [part.patch for part in made.ranges if part.patch is not None] == [PatchUse(KNOWN, 3)]


def test_a_share_of_all_pages_is_read_again_with_the_question() -> None:
    made = plan(Pair(0.25))
    assert made.strategy == "pair+query-25%" and made.ranges == plan(Pair()).ranges
    assert made.recomputation == Recomputation(((2, 7), (7, 15), (15, 22)), 5, (22, 24), least_margin=DEFAULT)
    every = plan(Pair(1.0, least_margin=0.0)).recomputation
    assert every is not None and (every.budget, every.least_margin) == (20, 0.0)


def test_slid_pages_are_there_for_a_second_pass_alone() -> None:
    once, twice = plan(Pair(), slid=True), plan(Pair(0.25), slid=True)
    assert set(once.sources()[:, 2:7].flat) == {3} and not once.leaving
    assert set(twice.sources()[:, 2:7].flat) == {1} and twice.leaving == ((2, 7),)
    assert twice.recomputation is not None and twice.recomputation.candidates == ((7, 15), (15, 22))
