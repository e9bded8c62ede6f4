"""Answers whose logits are not finite: computed in full, counted, and held against the lane."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks.tasks import Episode
from emblema import Engine, Policy, Store
from emblema.errors import EmblemaError, ModelError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerRows
from emblema.link.executor import LinkedTable
from emblema.link.lanes import Lane
from emblema.link.prompt import ChunkPart, TextPart
from emblema.link.taken_rows import LinkJob
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.requests import LinkRequest
from emblema.store import codec
from emblema.store.record import Terms
from tests.engine.engines import AT_ONCE, added, first_layer_of

QUESTION = "what colour is under the tent ?"


def engine_on(reference: Engine, store: Store | None = None, policy: Policy = AT_ONCE) -> Engine:
    return Engine(reference.adapter.model, reference.processor, store=store, policy=policy)


def spoilt(chunk: Chunk, number: float) -> Chunk:
    """The chunk with one number of one layer's values in place of its own."""
    rows = [LayerRows(layer.keys.clone(), layer.values.clone()) for layer in chunk.rows]
    rows[0].values[0, 3, 1] = number
    return replace(chunk, rows=tuple(rows))


def spoil_file(store: Store, own: Engine, chunk: Chunk, number: float) -> None:
    """Write the chunk's file again with a number that `put` refuses."""
    assert store.disk is not None
    record = codec.chunk_record(spoilt(chunk, number), own.store.owner, created=0.0)
    store.disk.write(record, Terms())


SLOW_NUMBERS = [pytest.param(number, marks=pytest.mark.slow) for number in (math.inf, -math.inf)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, *SLOW_NUMBERS])
def test_rows_that_are_not_finite_answer_as_full_prefill_and_close_their_lane(
    reference: Engine, episode: Episode, tmp_path: Path, number: float
) -> None:
    policy = replace(AT_ONCE, canary=0)
    with Store(tmp_path / "kept") as store:
        own = engine_on(reference, store, policy)
        own.generate([*added(own, episode), QUESTION])
        own.settle()
        store.flush()
        spoil_file(store, own, added(own, episode)[-1], number)
    with Store(tmp_path / "kept") as store:
        own = engine_on(reference, store, policy)
        pages = added(own, episode)
        full = engine_on(reference).generate([*pages, QUESTION], "full")
        assert full.text
        lanes = []
        for asked in range(5):
            own.forget_prompts()
            reply = own.generate([*pages, QUESTION], max_new_tokens=8)
            lanes.append(reply.usage.lane)
            assert reply.token_ids == full.token_ids[: len(reply.token_ids)] and reply.text == full.text
            assert reply.usage.finite is (asked >= 2)
            assert ("not finite" in (reply.usage.fallback or "")) is (asked < 2)
            assert own.policy_runtime.statistics.not_finite == min(asked + 1, 2)
        assert reply.usage.repeated_tokens == 0, "the lane is closed by now"
        line = next(line for line in own.policy_runtime.lane_reports if line.lane is Lane.PATCH)
        assert not line.open and line.kl == math.inf and line.agreement == 0 and line.samples == 2
    with Store(tmp_path / "kept") as store:
        assert not engine_on(reference, store, policy).policy_runtime.trusts("image", "patch"), "it is kept"


def test_a_named_strategy_falls_back_as_well(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    with Store(tmp_path / "kept") as store:
        own = engine_on(reference, store)
        pages = added(own, episode)
        store.flush()
        spoil_file(store, own, pages[0], math.nan)
    with Store(tmp_path / "kept") as store:
        own = engine_on(reference, store)
        blind = own.prefill([*added(own, episode), QUESTION], "blind")
        full = engine_on(reference).prefill([*added(own, episode), QUESTION], "full")
        assert blind.usage.lane == "full" and not blind.usage.finite
        assert blind.usage.repeated_tokens == blind.prompt.tokens - sum(page.tokens for page in added(own, episode))
        assert torch.allclose(blind.logits, full.logits, atol=1e-4)


def test_a_trial_of_rows_that_are_not_finite_is_an_infinite_divergence(
    reference: Engine, episode: Episode, tmp_path: Path
) -> None:
    """A trial measures what the lane says, not the full prefill that a request would get."""
    with Store(tmp_path / "kept") as store:
        own = engine_on(reference, store)
        pages = added(own, episode)
        store.flush()
        spoil_file(store, own, pages[-1], math.nan)
    with Store(tmp_path / "kept") as store:
        policy = replace(AT_ONCE, canary=1, canary_rows=math.inf, forming=False, query_share=0.5)
        own = engine_on(reference, store, policy)
        for _ in range(8):
            own.policy_runtime.record("image", Lane.QUERY, 2.0, False)
        for _ in range(3):
            own.forget_prompts()
            assert own.generate([*added(own, episode), QUESTION]).usage.lane == "auto:leading+full"
        line = next(line for line in own.policy_runtime.lane_reports if line.lane is Lane.QUERY)
        assert line.measured == 8 + own.policy_runtime.statistics.canary.trials > 8 and not line.open
        compared = FidelityLogs.of_store(store).of(own.store.owner).to_json()["lanes"][0]["compared"]
        assert compared[-1] == [None, False, 0.0], "infinitely far, and sure of nothing"
        assert own.policy_runtime.statistics.not_finite == 0, "no answer had to be computed again"


def test_a_model_that_is_not_finite_is_named(reference: Engine) -> None:
    own = engine_on(reference)
    hook = first_layer_of(reference).register_forward_hook(lambda layer, given, out: out * math.nan)
    try:
        for strategy in ("full", "auto"):
            with pytest.raises(ModelError, match="not finite"):
                own.generate("what is this ?", strategy)
    finally:
        hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_picture_whose_rows_are_not_finite_is_not_kept(
    reference: Engine, episode: Episode, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = engine_on(reference)
    capture = own.adapter.capture
    monkeypatch.setattr(
        own.adapter, "capture", lambda encoded: spoilt(replace(chunk, rows=capture(encoded)), number).rows
    )
    chunk = added(reference, episode)[0]
    with pytest.raises(EmblemaError, match="NaN or infinite"):
        own.add(episode.pages[0].image())
    assert len(own.store) == 0
    # In a prompt it is computed in its place, and comes to nothing after the answer.
    for _ in range(2):
        own.forget_prompts()
        assert own.generate([page.image() for page in episode.pages] + [QUESTION]).text
        own.settle()
    assert len(own.store) == 0 and own.policy_runtime.statistics.inline_media.dropped > 0


def link_of(own: Engine, parts: list[Chunk | str | Image.Image], strategy: str, **more: bool) -> LinkRequest:
    return LinkRequest(own.session.read(parts, prefill_media=not more.get("inline_media")), strategy, **more)


@pytest.mark.parametrize("place", [0, 1])
def test_a_prompt_whose_chunk_was_deleted_meanwhile_is_no_prefix(
    reference: Engine, episode: Episode, place: int
) -> None:
    """Between the answer and what is learnt from it: its rows would live on in the prefix."""
    own = engine_on(reference)
    chunks = added(own, episode)[:2]
    linker = own.session.linker
    for deleted in (False, True):
        own.session.linker.forget_prompts()
        linker.link(link_of(own, [*chunks, QUESTION], "full"), learn_later=True)
        if deleted:
            own.store.delete(chunks[place].id)
        linker.catch_up()
        for chunk, page in zip(chunks, episode.pages, strict=False):
            # The same picture again, if it was deleted.
            assert chunk.id in own.store or own.add(page.image()) is not None
        again = linker.link(link_of(own, [*chunks, QUESTION], "prefix"))
        assert (again.usage.cached_tokens > 0) != deleted


def test_a_prompt_whose_inline_picture_was_deleted_meanwhile_is_no_prefix(reference: Engine, episode: Episode) -> None:
    picture = episode.pages[0].image()
    for deleted in (False, True):
        own = engine_on(reference)
        linker = own.session.linker
        request = link_of(own, [picture, QUESTION], "full", inline_media=True)
        [name] = [part.name for part in request.prompt.chunk_parts]
        linker.link(request, learn_later=True)
        if deleted:
            own.store.delete(name)
        linker.catch_up()
        again = linker.link(link_of(own, [picture, QUESTION], "prefix", inline_media=True))
        assert (again.usage.cached_tokens > 0) != deleted


def test_a_table_that_goes_on_is_cut_before_it_is_computed_again(
    reference: Engine, episode: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a first try wrote that did not count stays in no row of the second."""
    own = engine_on(reference)
    chunks = added(own, episode)[:2]
    session, linker = own.session, own.session.linker
    front = session.prompt_of(ChunkPart(chunk) for chunk in chunks[:1])
    whole = session.prompt_of(
        [*(ChunkPart(chunk) for chunk in chunks), TextPart(tuple(own.tokenizer(QUESTION).input_ids))]
    )
    wanted = linker.link(LinkRequest(whole, "full"))
    run, tries = linker.executor.run, [0]

    def once_not_finite(job: LinkJob, **more: object) -> LinkedTable:
        linked = run(job, **more)  # type: ignore[arg-type]
        tries[0] += 1
        return linked if tries[0] > 1 else replace(linked, logits=torch.full_like(linked.logits, math.nan))

    begun = linker.link(LinkRequest(front, "full", reserve=200))
    monkeypatch.setattr(linker.executor, "run", once_not_finite)
    prefill = linker.link(LinkRequest(whole, "blind", table=begun.linked.table, reused_rows=front.tokens))
    assert tries == [2] and not prefill.usage.finite
    assert prefill.linked.table.length == whole.tokens
    assert torch.allclose(prefill.logits, wanted.logits, atol=1e-3)
    for ours, theirs in zip(prefill.kv, wanted.kv, strict=True):
        assert ours.keys.shape == theirs.keys.shape and torch.allclose(ours.keys, theirs.keys, atol=1e-3)
