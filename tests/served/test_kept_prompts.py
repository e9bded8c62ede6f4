"""Rows of conversations that workers hold: of one tenant, few, never of what was deleted, known by pictures."""

import random
from collections.abc import Iterator
from math import ceil

import pytest
import torch

from emblema.errors import LoadError
from emblema.kv.layout import LayerRows
from emblema.link.kept_rows import SEAM
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.kept_prompts import MOST_FREE, MOST_PROMPTS, KeepOrder, KeptPromptIndex, KeptPromptRows, KeptSpan
from emblema.served.request_plan import RequestPlanning
from emblema.served.requests import MediaItem, ServedRequest
from emblema.served.shards import ShardStore
from emblema.served.staging import RowStager
from emblema.store import Store
from tests.served.test_staging import settled
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of

TRUSTED = frozenset({"image", "text"})
ONE, TWO = b"one", b"two"
TEXT = list(range(20, 40))

pytestmark = pytest.mark.usefixtures("planners_end")


def nothing(chunks: frozenset[str]) -> frozenset[str]:
    return frozenset()


def conversation(shown: str, turns: str, salt: str | None = None, **options: object) -> ServedRequest:
    """A request whose turns each have a text, and a picture where that is still shown."""
    items, tokens = list[MediaItem](), [1, 2]
    for turn in turns:
        tokens += [ord(turn), *TEXT[: 6 + ord(turn) % 5]]
        if turn in shown:
            items.append(MediaItem(len(items), "image", turn, len(tokens), TOKENS, digest=f"shown {turn}"))
            tokens += [9] * TOKENS
        tokens += [*TEXT[:7], ord(turn)]
    return ServedRequest(tokens, tuple(items), salt, options)


def prompt_of(shown: str, turns: str) -> Prompt:
    return build_prompt(conversation(shown, turns), ChunkStubs(SPEC))


def computed(prompt: Prompt) -> int:
    """Rows of a prompt that nothing is taken for."""
    taken = sum(part.tokens for part in prompt.chunk_parts if part.state is RowState.WRITTEN)
    return prompt.tokens - taken


@pytest.fixture
def index() -> KeptPromptIndex:
    return KeptPromptIndex(SPEC)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


@pytest.mark.parametrize("seed", range(8))
def test_what_stays_is_found_at_its_place_after_any_drops(index: KeptPromptIndex, seed: int) -> None:
    rng = random.Random(seed)
    turns, shown = "abcd", "abcd"
    index.keep(ONE, prompt_of(shown, turns))
    for turn in "efghijklmnop":
        before = prompt_of(shown, turns)
        shown = "".join(name for name in shown if rng.random() < 0.7) or shown[-1]
        turns, shown = turns + turn, shown + turn
        wanted = prompt_of(shown, turns)
        placed, kept = index.place(ONE, wanted, TRUSTED, nothing)
        assert torch.equal(placed.token_ids, wanted.token_ids) and torch.equal(placed.positions, wanted.positions)
        for segment in placed.segments:
            part = segment.part
            if isinstance(part, ChunkPart) and part.state is RowState.WRITTEN:
                span = kept[part.chunk.id]
                assert torch.equal(
                    before.token_ids[span.start : span.stop], wanted.token_ids[segment.start : segment.stop]
                )
                assert torch.equal(
                    part.chunk.encoded.positions + part.chunk.base, before.positions[:, span.start : span.stop]
                )
        # The new turn, and what the template has around it.
        assert computed(placed) <= TOKENS + len(TEXT) + 3 * SEAM * len(turns)
        index.keep(ONE, wanted)


def test_tenants_and_other_conversations_have_their_own(index: KeptPromptIndex) -> None:
    index.keep(ONE, prompt_of("abc", "abc"))
    again = prompt_of("bcd", "abcd")
    assert index.place(TWO, again, TRUSTED, nothing) == (again, {})
    other = prompt_of("xyz", "xyz")
    assert index.place(ONE, other, TRUSTED, nothing) == (other, {})
    assert index.place(ONE, again, TRUSTED, nothing)[1]


def test_what_absorbed_a_deleted_picture_is_not_taken(index: KeptPromptIndex) -> None:
    first = prompt_of("abc", "abc")
    index.keep(ONE, first)
    names = [part.name for part in first.chunk_parts]
    for place, taken in ((0, 0), (1, 1), (2, 2)):
        placed, _ = index.place(
            ONE, prompt_of("abcd", "abcd"), TRUSTED, lambda chunks, gone=names[place]: frozenset({gone})
        )
        pictures = [part for part in placed.chunk_parts if part.name and part.state is RowState.WRITTEN]
        assert len(pictures) == taken


def test_what_left_before_is_remembered(index: KeptPromptIndex) -> None:
    """Rows that were kept twice still hold what left first: it may be deleted, and they stay rows after a slide."""
    first = prompt_of("abc", "abc")
    index.keep(ONE, first)
    index.keep(ONE, index.place(ONE, prompt_of("bcd", "abcd"), TRUSTED, nothing)[0])
    again = prompt_of("bcd", "abcd")
    gone = frozenset({first.chunk_parts[0].name})
    assert index.place(ONE, again, TRUSTED, lambda chunks: gone & chunks)[1] == {}
    placed, _ = index.place(ONE, again, frozenset(), nothing)
    names = [part.name for part in placed.chunk_parts if part.name and part.state is RowState.WRITTEN]
    assert names == [again.chunk_parts[2].name], "the picture that was computed after them alone is as it was written"


def test_kinds_that_are_not_trusted_are_taken_after_the_same_pictures_alone(index: KeptPromptIndex) -> None:
    index.keep(ONE, prompt_of("abc", "abc"))
    moved, _ = index.place(ONE, prompt_of("bcd", "abcd"), frozenset(), nothing)
    assert not any(part.name for part in moved.chunk_parts if part.state is RowState.WRITTEN)
    grown, _ = index.place(ONE, prompt_of("abcd", "abcd"), frozenset(), nothing)
    assert sum(bool(part.name) for part in grown.chunk_parts if part.state is RowState.WRITTEN) == 3


def test_few_are_kept_and_the_one_that_is_gone_on_from_is_replaced(index: KeptPromptIndex) -> None:
    first, none = index.keep(ONE, prompt_of("ab", "ab"))
    assert first is not None and not none
    second, gone = index.keep(ONE, prompt_of("bc", "abc"))
    assert gone == (first,)
    dropped = [
        name for turn in range(MOST_PROMPTS) for name in index.keep(ONE, prompt_of(chr(200 + turn), chr(200 + turn)))[1]
    ]
    assert dropped == [second]
    small = KeptPromptIndex(SPEC, most_bytes=prompt_of("a", "a").tokens * SPEC.row_bytes)
    name, _ = small.keep(ONE, prompt_of("a", "a"))
    assert small.keep(ONE, prompt_of("bc", "bc")) == (None, ())
    assert small.keep(ONE, prompt_of("z", "z"))[1] == (name,)


@pytest.mark.parametrize(("strategy", "share"), [("auto", Policy().survivor_share), ("query-50%", 0.5)])
def test_some_rows_are_computed_again_once_something_has_left(store: Store, strategy: str, share: float) -> None:
    planning = RequestPlanning(SPEC, store, strategy, print, second_pass=None)
    planning.kept_prompts.keep(b"", prompt_of("abc", "abc"))
    grown = planning.plan(conversation("abcd", "abcd", survivors="keep"))
    assert grown.kept and grown.plan.recomputation is None
    slid = planning.plan(conversation("bcd", "abcd", survivors="keep"))
    again = slid.plan.recomputation
    assert again is not None and again.budget == ceil(share * sum(stop - start for start, stop in again.candidates))
    assert slid.placed is not None
    pictures = [segment for segment, _ in slid.placed.chunk_segments if segment.part.name]  # type: ignore[union-attr]
    assert {segment.rows for segment in pictures[:2]} <= set(again.candidates)
    planning.kept_prompts.keep(b"", slid.placed)
    assert planning.plan(conversation("bcde", "abcde", survivors="keep")).plan.recomputation is None, "it is settled"


def test_rows_are_read_while_they_are_held(store: Store) -> None:
    held, numbers = KeptPromptRows(), torch.arange(12.0).view(1, 12, 1)
    held.put(KeepOrder("a", (), 12), lambda: [LayerRows(numbers, -numbers)])
    (rows,) = held.read({"piece": KeptSpan("a", 3, 5)})["piece"]
    assert rows.keys.flatten().tolist() == [3, 4] and rows.values.flatten().tolist() == [-3, -4]
    held.drop(["a", "b"])
    with pytest.raises(LoadError, match="not held any more"):
        held.read({"piece": KeptSpan("a", 3, 5)})


def test_what_the_encoder_made_of_pictures_is_held_as_long_as_a_prompt_that_shows_them() -> None:
    held, made = KeptPromptRows(), torch.ones(3, 2)
    held.put_encoding("shown", lambda: made)
    held.put(KeepOrder("a", (), 12, (("vllm's", "shown"),)), list)
    for number in range(2 * MOST_FREE):
        held.put_encoding(f"free {number}", lambda: made)
    assert held.encoding("shown") is made and held.has_encoding("shown")
    assert sum(held.has_encoding(f"free {number}") for number in range(2 * MOST_FREE)) == MOST_FREE
    held.drop(["a"])
    held.put_encoding("another", lambda: made)
    assert held.encoding("shown") is None


def test_a_planner_keeps_a_prompt_once_it_is_computed_and_plans_the_next_with_it(store: Store) -> None:
    planner = planner_of(store, "auto")
    first = conversation("abc", "abc", survivors="keep")
    plan = planned(planner, "1", first)
    assert not plan.cached.spans and plan.remark == "no rows of its conversation are kept yet"
    planner.admit("1", 0)
    rows = plan.prompt.tokens
    assert not planner.step_metadata({"1": (0, rows - 1)}, lambda name: (1, 2), True, True).keeps
    (keep,) = planner.step_metadata({"1": (rows - 1, 1)}, lambda name: (1, 2), True, True).keeps
    assert keep.blocks == (1, 2) and keep.rows == rows
    assert keep.pictures == tuple(zip("abc", (part.name for part in plan.prompt.chunk_parts), strict=True))
    assert planner.kept_pictures("1", ["b", "z"]) == keep.pictures[1:2]
    assert not planner.step_metadata({"1": (rows, 1)}, lambda name: (1, 2), True, True).keeps, "it is kept once"
    later = planned(planner, "2", conversation("bcd", "abcd", survivors="keep"))
    assert later.plan.strategy == "auto:survivor" and {span.name for span in later.kept.values()} == {keep.name}
    assert not planner.admit("2", 0)
    (order,) = planner.step_metadata({}, lambda name: (), True, True).stagings
    assert order.kept == later.kept and order.prompt is later.placed
    assert later.plan.recomputation is None, "this server was not made ready for a second pass"
    full = planned(planner, "4", conversation("bcd", "abcd", survivors="keep", strategy="full"))
    assert not full.kept and not full.cached.spans
    plain = planned(planner, "3", conversation("bcd", "abcd"))
    assert not plain.kept and not plain.request.keeps, "others depend on what they show alone"
    stager = RowStager(ShardStore(store))
    stager.stage([order])
    assert settled(stager) == ([], [order.number]), "a worker that does not hold the rows says so"
    stager.close()
