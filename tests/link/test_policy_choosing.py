"""The lane of a chunk that a second pass could serve."""

from collections.abc import Callable, Iterable, Sequence

from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.link.lanes import Decision, Lane, Trial
from emblema.link.policy.decide import decide
from emblema.link.policy.expectations import RowCosts
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import Knowledge
from tests.link.pieces import LAYOUTS, chunk, zero_patch

POLICY = Policy(rank=3)
FREE = RowCosts(-1000.0, 0.0, lambda prompt: 0.0)
PAGES = [chunk(index, 6) for index in range(5)]
PROMPT = Prompt.of([TextPart((1, 2)), *map(ChunkPart, PAGES[:4]), TextPart((3,))], 1)
"""Text, four pages and text; what is decided about is page 2."""


def key(page: int, before: Iterable[int], kind: ArtifactKind = ArtifactKind.PATCH) -> ArtifactKey:
    return ArtifactKey("model", PAGES[page].id, tuple(PAGES[index].id for index in before), kind)


def decision(
    *held: ArtifactKey,
    policy: Policy = POLICY,
    trial: Trial | None = None,
    second_pass: bool = True,
    recurs: Callable[[Sequence[str]], bool] = lambda names: False,
) -> Decision:
    """Return what is decided about page 2, where the store has patches of rank 3 with these keys."""
    stored = {one: zero_patch(6, 3) for one in held}
    known = Knowledge(
        "model",
        LAYOUTS,
        stored.get,
        lambda prompt: None,
        artifact_keys=lambda name: [one for one in stored if one.chunk == name],
        policy=policy,
        recurs=recurs,
        second_pass=second_pass,
    )
    # A second pass pays even over these few rows: this is about lanes.
    return decide(PROMPT, known, FREE, trial=trial).chunks[2]


def recurring(*pages: int) -> Callable[[Sequence[str]], bool]:
    """What recurs: these pages one after another, and nothing else."""
    return lambda names: list(names) == [PAGES[page].id for page in pages]


def test_a_second_pass_serves_what_is_unknown_wherever_one_can_be_carried_out() -> None:
    assert decision().lane is Lane.QUERY
    assert decision(second_pass=False).lane is Lane.FULL
    assert decision(policy=Policy(rank=3, query_share=0)).lane is Lane.FULL
    assert decision(key(2, [0, 1])).lane is Lane.PATCH, "a patch that is there is more faithful"


def test_pages_that_all_come_again_are_computed_and_read_a_second_time_otherwise() -> None:
    whole, own = recurring(0, 1, 2, 3), recurring(0, 1, 2)
    assert decision(recurs=whole).lane is Lane.FULL
    assert decision(recurs=own).lane is Lane.QUERY, "page 3 is new"
    assert decision(recurs=whole, trial=Trial("image", Lane.QUERY)).lane is Lane.QUERY, "it is to be measured"
