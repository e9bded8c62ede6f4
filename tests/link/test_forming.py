"""What methods keep of a chunk beside its KV: keys apart from patches', and clear errors where a piece is missing."""

from dataclasses import replace

import pytest
import torch

from emblema.errors import PlanError
from emblema.kv.layout import LayerRows
from emblema.kv.patch import form_patch
from emblema.link.context import POOLED, LinkContext
from emblema.link.executor import Executor
from emblema.link.forming import form_missing, pooled_directions, project
from emblema.link.plan import ResidualUse, RowRange, RowSource
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob, Resources
from emblema.store.keys import ArtifactKey, ArtifactKind, key_of_written, orbit_key
from tests.engine.engines import engine, two_pages
from tests.link.pieces import LAYOUTS, knowledge, zero_patch

CHUNK, OTHER = "a" * 64, "b" * 64


def test_kinds_never_meet() -> None:
    keys = {
        ArtifactKey("model", CHUNK, ()),
        ArtifactKey("model", CHUNK, (OTHER,)),
        orbit_key("model", CHUNK, (OTHER,)),
        orbit_key("model", CHUNK, (OTHER, CHUNK), strict=True),
        orbit_key("model", CHUNK, (CHUNK, OTHER), strict=True),
        ArtifactKey("model", CHUNK, kind=ArtifactKind.KEYS),
        ArtifactKey("model", CHUNK, kind=ArtifactKind.RESIDUAL, layer=1),
        ArtifactKey("model", CHUNK, kind=ArtifactKind.RESIDUAL, layer=2),
        ArtifactKey("model", CHUNK, kind=ArtifactKind.BASIS, rank=4),
        ArtifactKey("model", CHUNK, kind=ArtifactKind.BASIS, rank=5),
    }
    assert len(keys) == 10
    assert len({(key.written_model, key.chunk, key.antecedents, key.orbit) for key in keys}) == 10
    assert len({str(key) for key in keys}) == 9, "strict orbits read alike"
    assert all(key.model == "model" and CHUNK in key.chunks for key in keys)
    assert {key.written_model for key in keys if not key.orbit} == {
        "model", "model/keys", "model/residual-1", "model/residual-2", "model/basis-4", "model/basis-5"
    }  # fmt: skip
    for key in keys:
        assert key_of_written(key.written_model, key.chunk, key.antecedents, key.orbit) == key


@pytest.mark.parametrize("label", ["other", "residual-", "residual-02", "basis", "basis-x", "keys-1", "patch", "orbit"])
def test_labels_that_no_key_writes_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="unknown kind|invalid literal|is not a valid"):
        key_of_written(f"model/{label}", CHUNK, (), False)


def test_a_patch_is_no_residual_stream() -> None:
    with pytest.raises(PlanError, match="residual stream"):
        key = ArtifactKey("model", CHUNK)
        begun = RowRange(0, 6, RowSource.COMPUTED, (1, 2), residual=ResidualUse(key, 4))
        Resources({key: zero_patch(6, 2)}).residual_rows(begun)


def test_pieces_that_are_missing_are_named() -> None:
    name = "llava"
    prompt, executor = two_pages(name), Executor(engine(name).adapter)
    layouts = engine(name).adapter.layouts
    for strategy, words in (("reprefill-deep-60", "residual stream"), ("orbit-4", "patch"), ("lowrank-k-4", "patch")):
        plan = parse(strategy).plan(prompt, replace(knowledge(), layouts=layouts))
        with pytest.raises(PlanError, match=f"{words}.* not handed over"):
            executor.run(LinkJob(plan, prompt))
    context = LinkContext(Knowledge("model", layouts, lambda key: None, lambda prompt: None), {})
    plan = replace(plan, forming=(ArtifactKey("model", CHUNK, kind=ArtifactKind.KEYS),))
    with pytest.raises(PlanError, match="does not hold"):
        form_missing(executor, prompt, plan, context)
    segment, chunk = prompt.chunk_segments[1]
    key = ArtifactKey("model", chunk.id, prompt.antecedents(segment), ArtifactKind.BASIS, rank=2)
    with pytest.raises(PlanError, match="other items"):
        form_missing(executor, prompt, replace(plan, forming=(key,)), context)


@pytest.mark.parametrize(
    ("strategy", "fronts"), [("lowrank-k-4", ()), ("patch-4", (1,)), ("orbit-4", (0, 1)), ("reprefill-deep-60", ())]
)
def test_the_rows_that_forming_ran_are_counted(strategy: str, fronts: tuple[int, ...]) -> None:
    """Those of forwards up to the end of some picture, and those of pictures that are run alone."""
    prompt, executor = two_pages("llava"), Executor(engine("llava").adapter)
    layouts = executor.adapter.layouts
    stored = Knowledge("model", layouts, lambda key: None, lambda prompt: None)
    context = LinkContext(stored, {chunk.id: chunk.rows for _, chunk in prompt.chunk_segments})
    plan = parse(strategy).plan(prompt, stored)
    made, rows = form_missing(executor, prompt, plan, context)
    assert set(plan.forming) == set(made) and all(context.artifact(key) is made[key] for key in made)
    tokens = {chunk.id: chunk.tokens for _, chunk in prompt.chunk_segments}
    alone = sum(tokens[key.chunk] for key in made if key.kind is ArtifactKind.RESIDUAL)
    assert rows == sum(prompt.chunk_segments[front][0].stop for front in fronts) + alone
    assert (alone > 0) == (strategy == "reprefill-deep-60")
    again = form_missing(executor, prompt, replace(plan, forming=()), context)
    assert again == ({}, 0)


def test_pools_hold_other_items_of_the_same_model_and_no_more_than_their_size() -> None:
    keys = [ArtifactKey(model, f"{index:064x}", ()) for index in range(POOLED + 5) for model in ("model", "another")]
    stored = Knowledge("model", LAYOUTS, lambda key: zero_patch(6, 2), lambda prompt: None)
    context = LinkContext(stored, {}, keys)
    own = ArtifactKey("model", keys[0].chunk, (OTHER,), ArtifactKind.BASIS, rank=2)
    assert len(context.others(own)) == context.knowledge.others(own) == POOLED
    few = LinkContext(replace(stored, find_artifact=lambda key: None), {}, keys)
    assert few.others(own) == [], "those that the store has lost are not pooled"
    alone = LinkContext(stored, {}, keys[:2])
    assert alone.others(own) == []


def test_pooled_directions_hold_what_items_share() -> None:
    """Items with coefficients of their own on three common directions: each is whole on what others pool."""
    generator = torch.Generator().manual_seed(0)
    common = torch.linalg.qr(torch.randn(16, 3, generator=generator)).Q.T

    def item() -> LayerRows:
        matrices = (torch.randn(9, 3, generator=generator) @ common for _ in range(2))
        keys, values = (matrix.unflatten(1, (2, 8)).transpose(0, 1) for matrix in matrices)
        return LayerRows(keys, values)

    others = [form_patch([item(), None], 2, torch.float32) for _ in range(4)]
    mine = item()
    directions = pooled_directions(others, 3)
    assert directions[1] is None
    patch = project([mine, mine], directions, torch.float32)
    held = patch.layers[0]
    assert patch.layers[1] is None and held is not None and held.keys.rank == 3
    assert torch.allclose(held.keys.dense(2), mine.keys, atol=1e-5)
    assert torch.allclose(held.values.dense(2), mine.values, atol=1e-5)
