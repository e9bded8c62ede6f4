"""Plans of single requests: what is taken, what patches it leaves, and which encoder outputs it hands over."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import form_patch
from emblema.link.lanes import Lane
from emblema.link.miss_reasons import MissReason
from emblema.link.policy.decide import COSTS_MORE
from emblema.link.policy.expectations import RowCosts
from emblema.link.prompt import Prompt, Rows
from emblema.served import chunk_stubs
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.request_report import plain_report, report_of
from emblema.served.requests import MediaItem, ServedRequest
from emblema.served.spans import CachedSpans
from emblema.store import Store
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, put, request, zeros

FULL_RANK = 16


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


def keys_of(shown: ServedRequest) -> list[ArtifactKey]:
    """The keys of the patches of a request's pictures, each in its place."""
    prompt = build_prompt(shown, ChunkStubs(SPEC))
    return [
        ArtifactKey(SPEC.fingerprint, chunk.id, prompt.antecedents(segment)) for segment, chunk in prompt.chunk_segments
    ]


def put_patches(store: Store, *keys: ArtifactKey) -> None:
    patch = form_patch([zeros(layout, TOKENS) for layout in LAYOUTS], FULL_RANK, torch.float32)
    assert all(store.tenant().put_artifact(key, patch) for key in keys)


@dataclass(frozen=True)
class SpanCosts(RowCosts):
    """Costs of rows, where spans pay as a test says."""

    spans: Callable[[CachedSpans, int], bool] = lambda spans, rows: True

    def taking_pays(self, prompt: Prompt, taken: Sequence[Rows]) -> bool:
        return self.spans(CachedSpans(tuple(taken)), prompt.tokens)


def plan(
    store: Store,
    shown: ServedRequest,
    planning: RequestPlanning | None = None,
    pays: Callable[[CachedSpans, int], bool] = lambda spans, rows: True,
) -> RequestPlan:
    return (planning or RequestPlanning(SPEC, store, "auto", print)).plan(shown, SpanCosts(spans=pays))


def test_patches_that_do_not_pay_alone_are_not_taken_and_others_are_formed_that_do_together(store: Store) -> None:
    shown, met = request("a", "b"), RequestPlanning(SPEC, store, "auto", print)
    put(store, shown)
    first, second = keys_of(shown)
    put_patches(store, first)
    asked: list[tuple[CachedSpans, int]] = []

    def pays_together(spans: CachedSpans, rows: int) -> bool:
        asked.append((spans, rows))
        return len(spans.spans) == 2

    once, twice = (plan(store, shown, met, pays_together) for _ in range(2))
    assert asked == [(CachedSpans(((2, 302),)), 604), (CachedSpans(((2, 302), (303, 603))), 604)] * 2
    for each in (once, twice):
        assert each.cached.spans == () and each.remark == COSTS_MORE and each.lacking
    assert once.needs == () and [key for key, _, _ in twice.needs] == [second], "the first has a patch"
    put_patches(store, second)
    whole = plan(store, shown, met, pays_together)
    assert whole.cached.spans == ((2, 302), (303, 603)) and whole.remark is None


def test_no_patch_is_formed_where_all_of_them_together_do_not_pay(store: Store) -> None:
    shown, met = request("a", "b"), RequestPlanning(SPEC, store, "auto", print)
    put(store, shown)
    for _ in range(3):
        made = plan(store, shown, met, lambda spans, rows: False)
        assert made.needs == () and made.lacking and made.remark is None
    put_patches(store, *keys_of(shown))
    made = plan(store, shown, met, lambda spans, rows: False)
    assert made.cached.spans == () and made.remark == COSTS_MORE and not made.lacking


def test_nothing_is_formed_of_a_picture_that_needs_no_patch(store: Store) -> None:
    """One at row 0 is exact as it is, and one with a patch has it; the third is computed, and leaves one."""
    items = [MediaItem(index, "image", name, index * TOKENS, TOKENS, digest=name) for index, name in enumerate("abc")]
    shown, met = ServedRequest([9] * (3 * TOKENS) + [3], tuple(items)), RequestPlanning(SPEC, store, "auto", print)
    put(store, shown)
    keys = keys_of(shown)
    put_patches(store, keys[1])
    for sighting in (1, 2):
        made = plan(store, shown, met)
        assert [decision.lane for decision in made.plan.decisions] == [Lane.LEADING, Lane.PATCH, Lane.FULL]
        assert made.cached.spans == ((0, 2 * TOKENS),) and made.lacking and made.remark is None
        assert [key for key, _, _ in made.needs] == keys[2:] * (sighting - 1)


def test_a_picture_is_exact_right_after_the_anchor_and_nowhere_else(store: Store) -> None:
    """One at row 0 is not, where the anchor is missing; pages from the first row that is not exact on are private."""
    stubs = ChunkStubs(replace(SPEC, anchor=(1, 2)))
    opened, bare = request("a", "b"), request("a", "b")
    bare = replace(
        bare, token_ids=bare.token_ids[2:], items=tuple(replace(item, start=item.start - 2) for item in bare.items)
    )
    other = ChunkStubs(SPEC)
    for shown in (opened, bare):
        prompt = build_prompt(shown, stubs)
        assert [chunk.id for _, chunk in prompt.chunk_segments] == [
            chunk.id for _, chunk in build_prompt(opened, stubs).chunk_segments
        ]
        assert {chunk.id for _, chunk in prompt.chunk_segments}.isdisjoint(
            chunk.id for _, chunk in build_prompt(shown, other).chunk_segments
        ), "captured after something else, they are other chunks"
        for _, stub in prompt.chunk_segments:
            rows = tuple(zeros(layout, stub.tokens) for layout in LAYOUTS)
            store.tenant().put(replace(stub, rows=rows))
    made = {}
    for name, shown in (("opened", opened), ("bare", bare)):
        for strategy in ("auto", "blind"):
            asked = replace(shown, options={"strategy": strategy})
            made[name, strategy] = RequestPlanning(stubs.spec, store, "auto", print).plan(asked)
    lanes = [decision.lane for decision in made["opened", "auto"].plan.decisions]
    assert lanes == [Lane.LEADING, Lane.FULL]
    assert made["opened", "auto"].cached == CachedSpans(((2, 302),), exact=302)
    assert made["opened", "auto"].cached.private_from(0) is None
    assert made["opened", "blind"].cached.private_from(0) == 303
    assert made["bare", "auto"].cached.spans == ()
    assert made["bare", "blind"].cached.spans[0] == (0, 300) and made["bare", "blind"].cached.private_from(0) == 0


def test_encoder_outputs_are_wanted_of_stored_pictures_that_are_not_in_the_prefix(store: Store) -> None:
    shown = request("a", "b", "new")
    put(store, request("a", "b"))
    put_patches(store, keys_of(shown)[0])
    made = plan(store, shown)
    ids = [chunk.id for _, chunk in made.prompt.chunk_segments]
    assert made.cached.spans == ((2, 302),) and len(made.missing) == 1
    assert made.encodings(0) == (("a", ids[0]), ("b", ids[1]))
    assert made.encodings(302) == (("b", ids[1]),) and made.encodings(603) == ()


def test_the_stubs_that_were_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_stubs, "REMEMBERED_STUBS", 2)
    stubs = ChunkStubs(SPEC)
    first, second, third = (MediaItem(0, "image", name, 0, 2, digest=name) for name in "abc")
    made = {item: stubs.make(item, [9, 9], 0, b"") for item in (first, second)}
    assert stubs.make(first, [9, 9], 0, b"") is made[first]
    stubs.make(third, [9, 9], 0, b"")
    assert stubs.make(first, [9, 9], 0, b"") is made[first], "it was used after the second"
    again = stubs.make(second, [9, 9], 0, b"")
    assert again is not made[second] and again.id == made[second].id


def clip(runs: tuple[tuple[int, int], ...] = (), **more: object) -> ServedRequest:
    """A clip of three steps of 2 x 3 tokens with its markers in a prompt."""
    tokens = runs[-1][1] if runs else 18
    item = replace(MediaItem(0, "video", "clip", 3, tokens, (3, 4, 6), "shown"), runs=runs, **more)  # type: ignore[arg-type]
    return ServedRequest([7, 7, 1, *[9] * tokens, 2, 7], (item,))


GRIDS = replace(SPEC, axes=3, merge=2, markers=((1,), (2,)))


def stub(shown: ServedRequest, spec: ModelSpec = GRIDS) -> Chunk:
    ((_, chunk),) = build_prompt(shown, ChunkStubs(spec)).chunk_segments
    return chunk


def test_a_clip_is_one_grid_with_a_time_axis() -> None:
    chunk = stub(clip(seconds=2.5), replace(GRIDS, tokens_per_second=2.0))
    assert chunk.kind == "video" and chunk.tokens == 20 and int(chunk.encoded.visual.sum()) == 18
    times, rows, columns = chunk.encoded.positions[:, 1:19].reshape(3, 3, 6)
    assert times.unique(dim=1).flatten().tolist() == [1, 6, 11]
    assert rows[0].tolist() == [1, 1, 1, 2, 2, 2] and columns[0].tolist() == [1, 2, 3, 1, 2, 3]
    assert chunk.encoded.span == 13, "text goes on after the latest time, and the end marker"


def test_a_clip_with_time_stamps_is_a_grid_for_each_step() -> None:
    chunk = stub(clip(runs=((2, 8), (10, 16), (18, 24))))
    assert chunk.encoded.visual.nonzero().flatten().tolist() == [*range(3, 9), *range(11, 17), *range(19, 25)]
    assert [chunk.encoded.positions[:, row].tolist() for row in (3, 11, 19)] == [[3] * 3, [8] * 3, [13] * 3]
    assert chunk.encoded.positions[:, 9].tolist() == [6] * 3 and chunk.encoded.span == 17


def test_a_clip_is_told_from_the_same_frames_at_another_pace() -> None:
    """Also where what the encoder is given has the same digest."""
    names = {stub(clip(seconds=seconds)).id for seconds in (None, 1.0, 2.5)}
    assert len(names) == 3
    assert stub(clip()).id != stub(clip(kind="image")).id


def test_full_takes_nothing_and_looks_up_no_artifact(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, planning = request("a", "b", strategy="full"), RequestPlanning(SPEC, store, "auto", print)
    put(store, request("a"))
    put_patches(store, *keys_of(request("a")))
    monkeypatch.setattr(planning.memory, "held_artifacts", lambda tenant, keys: pytest.fail("artifacts were looked up"))
    made = planning.plan(shown)
    assert (made.plan.strategy, made.cached, made.needs, made.remark) == ("full", CachedSpans(), (), None)
    first, second = (chunk.id for _, chunk in made.prompt.chunk_segments)
    assert [chunk.id for chunk in made.missing] == [second], "it is captured all the same"
    assert planning._met[b""].count([first, second]) == 1, "it is counted all the same"


def test_a_report_says_of_each_picture_that_was_computed_why(store: Store) -> None:
    shown = request("a", "b", "c")
    put(store, request("a"))
    new = plan(store, shown)
    assert _missed(new) == [(0, TOKENS, "new_order"), (1, TOKENS, "new"), (2, TOKENS, "new")]
    assert [reason for *_, reason in _missed(plan(store, shown))] == ["new_order", "not_stored", "not_stored"]
    new.failed = True
    assert {reason for _, _, reason in _missed(new)} == {"lost"}
    new.failed, new.margin = False, 0.1
    assert {reason for _, _, reason in _missed(new)} == {"unsure"}
    refused = plain_report(shown, "the model is not known")
    assert refused["misses"] == [(number, TOKENS, "refused", "the model is not known") for number in range(3)]
    put(store, shown)
    taken = plan(store, replace(shown, options={"strategy": "blind"}))
    assert _missed(taken) == [], "the prefix cache has as much"
    taken.linked = 3 * TOKENS
    assert _missed(taken) == []
    computed = plan(store, replace(shown, options={"strategy": "full"}))
    assert {reason for _, _, reason in _missed(computed)} == {"strategy"}
    assert set(MissReason) >= {"lost", "unsure", "refused", "strategy"}


def _missed(planned: RequestPlan) -> list[tuple[int, int, str]]:
    found: Any = report_of(planned, SPEC)["misses"]
    return [miss[:3] for miss in found]
