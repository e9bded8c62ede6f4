"""A chunk with antecedents, on tiny models of every kind of cache: the identities that measurements rest on."""

from functools import cache

import pytest
import torch

from benchmarks.deficit.cases import controls_of, filled, isolation_answers
from benchmarks.deficit.depth import depth_answers, depth_figures, injected
from benchmarks.deficit.negatives import explained, fit_operator, fit_seed, operated, seeded, shallow_layers
from benchmarks.deficit.rank import (
    BASIS_RANKS,
    basis_answers,
    one_slot,
    pool_of,
    rank_answers,
    ranks_of,
    slot_answers,
    slot_names,
)
from benchmarks.deficit.recorder import recorded
from benchmarks.deficit.rows import THRESHOLDS, TOP_SHARE, attention_figures, relocation_figures, rounding_figures
from benchmarks.deficit.selectors import recall_figures, signals
from benchmarks.deficit.subject import Case, Subject, masked
from benchmarks.deficit.tokens import again, cell_energies, link_figures, on_cells
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.policy.fidelity import divergence
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob
from tests.families import loaded, picture, words

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "llava", "kimi_k25", "qwen3_vl_moe", "gemma3")
CLOSE = 1e-4


@cache
def engine_of(family: str) -> Engine:
    return Engine(loaded(family).model, loaded(family).bundle)


@cache
def case_of(family: str, setting: str = "slid", seed: int = 0) -> Case:
    """Text, two pictures of which the first slides, a question."""
    engine = engine_of(family)
    chunks = [engine.add(picture(56, 56, seed=seed + one)) for one in (1, 2)]
    parts = [
        TextPart(tuple(words(3).tolist())),
        ChunkPart(chunks[0], slid=setting == "slid"),
        ChunkPart(chunks[1]),
        TextPart(tuple(words(5, seed=9).tolist())),
    ]
    prompt = Prompt.of(parts, engine.adapter.axes)
    return Case(Subject.of(engine.adapter, prompt, f"item-{seed}"), prompt, setting)


def far(case: Case) -> float:
    """How much blind reuse moves the logits: what the checks below have to undo."""
    return float(abs(case.conditioned().logits - case.blind().logits).max())


@pytest.fixture(params=FAMILIES)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def test_the_computed_chunk_is_re_prefill(case: Case) -> None:
    adapter, prompt = case.subject.adapter, case.prompt
    layers = len(adapter.layouts)
    plan = LinkPlan("full", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    full = Executor(adapter).run(LinkJob(plan, prompt)).logits.cpu().numpy()
    assert abs(case.conditioned().logits - full).max() < CLOSE


def test_a_full_rank_patch_of_keys_and_values_loses_nothing(case: Case) -> None:
    full = case.conditioned().logits
    assert far(case) > 1e-2
    assert abs(case.patched(case.subject.patch, case.subject.full_rank).logits - full).max() < CLOSE
    assert abs(case.ask(case.subject.deficits).logits - full).max() < CLOSE
    assert divergence(full, case.patched(case.subject.patch, case.subject.full_rank).logits) < 1e-6


def test_a_mask_that_blocks_nothing_costs_nothing(case: Case) -> None:
    full = case.conditioned().logits
    found = isolation_answers(case, controls_of(case.subject, None))
    assert abs(found["unblocked"].logits - full).max() == 0
    assert abs(found["blocked"].logits - full).max() > 1e-2
    assert set(found) == {"blocked", "unblocked", "moved"}


def test_conditioning_does_not_depend_on_the_place(case: Case) -> None:
    full = case.conditioned().logits
    assert abs(isolation_answers(case, controls_of(case.subject, None))["moved"].logits - full).max() < CLOSE


def test_neutral_filler_conditions_otherwise(case: Case) -> None:
    adapter, subject = case.subject.adapter, case.subject
    filler = subject.front.chunk_segments[0][1].encoded
    found = isolation_answers(case, controls_of(subject, filler))["filler"].logits
    assert abs(found - case.conditioned().logits).max() > 1e-3
    changed = filled(subject.front, filler)
    assert torch.equal(changed.positions, subject.front.positions)
    first, last = (one.part.chunk.encoded for one in changed.segments if isinstance(one.part, ChunkPart))
    rows = first.embeds[first.visual]
    assert torch.allclose(rows, rows[:1].expand_as(rows))
    assert last is subject.chunk.encoded
    assert adapter.dtype == rows.dtype


def test_no_rows_is_blind_and_every_row_is_re_prefill(case: Case) -> None:
    subject = case.subject
    everything = torch.ones(subject.chunk.tokens, dtype=torch.bool)
    assert abs(case.ask(masked(subject.deficits, ~everything)).logits - case.blind().logits).max() < CLOSE
    assert abs(case.ask(masked(subject.deficits, everything)).logits - case.conditioned().logits).max() < CLOSE
    assert abs(again(case, everything).logits - case.conditioned().logits).max() < CLOSE


def test_every_cell_is_the_whole_deficit(case: Case) -> None:
    deficits = case.subject.deficits
    cells = torch.ones(len(cell_energies(deficits)), dtype=torch.bool)
    for one, other in zip(on_cells(deficits, cells), deficits, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
    nothing = on_cells(deficits, ~cells)
    assert all(float(one.keys.abs().max()) == float(one.values.abs().max()) == 0 for one in nothing)


def test_the_two_slots_make_up_the_patch(case: Case) -> None:
    subject = case.subject
    names = slot_names(subject)
    assert names == (("latent", "rotary key") if subject.adapter.layouts[0].kind == "latent" else ("keys", "values"))
    first, second = (one_slot(subject.patch, place) for place in (0, 1))
    assert first.bytes + second.bytes == subject.patch.bytes
    for layer in range(subject.layers):
        left, right = first.layers[layer], second.layers[layer]
        assert left is not None and right is not None
        assert left.values.rank == right.keys.rank == 0
        assert left.keys.rank > 0 and right.values.rank > 0
    found = slot_answers(case)
    assert {f"{name} only/full" for name in names} <= set(found)
    both = case.conditioned().logits
    assert all(abs(found[f"{name} only/full"].logits - both).max() > 1e-4 for name in names)


def test_running_every_layer_again_is_re_prefill(case: Case) -> None:
    found = depth_answers(case)
    layers, full = case.subject.layers, case.conditioned().logits
    assert abs(found[f"reprefill/{layers}"].logits - full).max() < CLOSE
    assert abs(found[f"reprefill shallow/{layers}"].logits - full).max() < CLOSE
    assert abs(found["reprefill/1"].logits - case.blind().logits).max() < CLOSE, "one layer writes canonical KV again"


def test_the_last_stream_explains_the_last_deficit(case: Case) -> None:
    found = injected(case)
    last = case.subject.layers - 1
    assert found[f"injected/{last}"] == pytest.approx(1, abs=1e-6)
    assert found["injected/1"] < found[f"injected/{last}"]


def test_norms_by_layer_add_up(case: Case) -> None:
    found = depth_figures(case.subject)
    assert found["deficit/keys/0"] < 1e-5, "the first layer's rows depend on nothing in front"
    for layer in range(1, case.subject.layers):
        whole = found[f"deficit/keys/{layer}"]
        assert whole > 1e-3
        assert whole <= found[f"conditioning/keys/{layer}"] + found[f"position/keys/{layer}"] + 1e-6


def test_attention_is_recorded_and_nothing_is_left(case: Case) -> None:
    adapter, subject = case.subject.adapter, case.subject
    before = adapter.config._attn_implementation
    hooks = [len(layer._forward_pre_hooks) for layer in adapter.layers]
    with recorded(adapter, 0, 1):
        assert adapter.config._attn_implementation != before
    assert adapter.config._attn_implementation == before
    assert [len(layer._forward_pre_hooks) for layer in adapter.layers] == hooks
    assert sorted(subject.seen.attention) == sorted(subject.seen.streams) == list(range(subject.layers))
    for weights in subject.seen.attention.values():
        assert weights.shape == (subject.chunk.tokens, subject.segment.stop)
        heads = float(adapter.config.num_attention_heads)
        assert torch.allclose(weights.sum(dim=1), torch.full((len(weights),), heads), atol=1e-3)


def test_landmarks_are_antecedent_keys(case: Case) -> None:
    found = link_figures(case.subject)
    keys = sum(stop - start for start, stop in case.subject.antecedents)
    assert found["antecedent keys"] == keys
    for layer in range(case.subject.layers):
        assert 1 <= found[f"landmarks/{layer}"] <= keys
        assert 0 < found[f"link mass/{layer}"] < 1


def test_signals_score_every_token(case: Case) -> None:
    found = signals(case.subject)
    assert {"first", "key similarity", "attention mass", "deviation"} <= set(found)
    assert all(score.shape == (case.subject.chunk.tokens,) for score in found.values())
    assert int(found["first"].argmax()) == 0
    recall = recall_figures(case.subject)
    assert all(0 <= one <= 1 for one in recall.values())


def test_rounding_grows_smaller_with_the_rank(case: Case) -> None:
    found = rounding_figures(case.subject)
    assert found["ulp/patched full/keys"] < 1 < found["ulp/relocated/keys"]
    assert found["within one ulp/patched full/keys"] > 0.99
    kind = case.subject.adapter.layouts[0].kind
    turned = "values" if kind == "latent" else "keys"
    fixed = "keys" if kind == "latent" else "values"
    assert found[f"ulp/raw/{turned}"] != found[f"ulp/relocated/{turned}"]
    assert found[f"ulp/raw/{fixed}"] == found[f"ulp/relocated/{fixed}"]
    assert all(0 <= one <= 1 for one in relocation_figures(case.subject).values())


def test_a_pool_of_one_item_is_its_own_basis(case: Case) -> None:
    subject = case.subject
    pool = pool_of([subject])
    ranks = [one for one in BASIS_RANKS if one <= subject.full_rank]
    found = basis_answers(case, pool, None)
    assert set(found) == {f"pooled basis/{one}" for one in ranks}
    own = case.patched(subject.patch, ranks[0]).logits
    assert abs(found[f"pooled basis/{ranks[0]}"].logits - own).max() < 1e-3, "a pool of one item is its own basis"


def test_the_paper_s_insights_are_measured_on_the_chunk(case: Case) -> None:
    figures, cumulative, moved = attention_figures(case)
    assert cumulative.shape == (case.subject.layers, case.subject.chunk.tokens)
    assert cumulative[:, -1] == pytest.approx(1, abs=1e-5)
    assert (cumulative[:, 1:] >= cumulative[:, :-1] - 1e-9).all()
    above = [figures[f"attention above/{one:g}"] for one in THRESHOLDS]
    assert above == sorted(above, reverse=True)
    assert moved.sum() == pytest.approx(max(1, round(TOP_SHARE * case.subject.chunk.tokens)))


def test_ranks_end_with_full_rank(case: Case) -> None:
    ranks = ranks_of(case.subject)
    assert ranks == sorted(set(ranks))
    assert ranks[-1] == case.subject.full_rank
    found = rank_answers(case)
    assert list(found) == [*(f"rank/{one}" for one in ranks[:-1]), "rank/full"]


def test_an_operator_learned_from_the_chunk_itself_knows_its_deficit() -> None:
    subjects = [case_of("qwen2_5_vl", seed=one).subject for one in (0, 10, 20)]
    own = operated(subjects[0], fit_operator(subjects[0], [subjects[0]]))
    other = operated(subjects[0], fit_operator(subjects[0], subjects[1:]))
    assert explained(subjects[0], own) > 0.9
    assert explained(subjects[0], own) > explained(subjects[0], other)


def test_the_shallow_half_is_handed_on_as_it_is() -> None:
    subjects = [case_of("qwen2_5_vl", seed=one).subject for one in (0, 10)]
    found = seeded(subjects[1], fit_seed(subjects[:1]))
    cut = shallow_layers(subjects[1])
    assert 0 < cut < subjects[1].layers
    for layer, delta in enumerate(found):
        assert (delta is subjects[1].deficits[layer]) == (layer < cut)


def test_both_settings_ask_about_the_same_chunk() -> None:
    slid, visible = case_of("qwen2_5_vl"), case_of("qwen2_5_vl", "visible")
    assert slid.subject.chunk.id == visible.subject.chunk.id
    assert abs(slid.conditioned().logits - visible.conditioned().logits).max() > 1e-3
    for one, other in zip(slid.subject.conditioned, visible.subject.conditioned, strict=True):
        assert torch.allclose(one.keys, other.keys, atol=1e-5)


def test_a_chunk_with_nothing_in_front_is_refused() -> None:
    engine = engine_of("llava")
    chunk = engine.add(picture(56, 56, seed=1))
    assert isinstance(chunk, Chunk)
    question = TextPart(tuple(words(4).tolist()))
    with pytest.raises(PromptError, match="a chunk after another one"):
        Subject.of(engine.adapter, Prompt.of([ChunkPart(chunk), question], engine.adapter.axes))
