"""Patches of a prompt that was computed plainly: each is what its chunk's own rows lack, and is kept where it goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from emblema.errors import LoadError
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch, form_patch
from emblema.link.prompt import Prompt
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.keeping import CopiedRows, PieceKeeper, form_prompt_patches
from emblema.served.request_plan import PatchNeed
from emblema.served.shards import ShardStore, TenantShards
from emblema.store import Store
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, put, request, zeros

RANK = 4
LAYERS = tuple(range(len(LAYOUTS)))


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        put(store, request("a", "b"))
        yield store


@pytest.fixture
def prompt() -> Prompt:
    return build_prompt(request("a", "b"), ChunkStubs(SPEC))


def needs_of(prompt: Prompt) -> list[PatchNeed]:
    return [
        (ArtifactKey(SPEC.fingerprint, chunk.id, prompt.antecedents(segment)), RANK, LAYERS)
        for segment, chunk in prompt.chunk_segments
    ]


def computed(prompt: Prompt) -> dict[int, CopiedRows]:
    """Rows of noise for every chunk of a prompt, by where it starts."""
    generator, rows = torch.Generator().manual_seed(1), {}
    for segment, _ in prompt.chunk_segments:
        tokens = segment.stop - segment.start
        noise = [
            LayerRows(*(torch.randn(heads, tokens, width, generator=generator) for heads, width in each))
            for each in ((layout.keys, layout.values) for layout in LAYOUTS)
        ]
        rows[segment.start] = CopiedRows(segment.start, tuple(noise))
    return rows


def dense(patch: object) -> list[torch.Tensor]:
    assert isinstance(patch, Patch)
    layers = [layer for layer in patch.layers if layer is not None]
    return [part.left @ part.right for layer in layers for part in (layer.keys, layer.values)]


def test_a_patch_is_what_the_stored_rows_lack(store: Store, prompt: Prompt) -> None:
    rows, (first, second) = computed(prompt), needs_of(prompt)
    form_prompt_patches(SPEC, prompt, [second], rows, store.tenant())
    # The stored rows are zeros, and nothing turns with its place.
    wanted = form_patch([*rows[prompt.chunk_segments[1][0].start].layers], RANK, SPEC.dtype)
    found = dense(store.tenant().find_patch(second[0]))
    assert len(found) == 2 * len(LAYOUTS) and all(map(torch.equal, found, dense(wanted)))
    assert store.tenant().find_patch(first[0]) is None


def test_what_the_prompt_does_not_have_is_left_out(store: Store, prompt: Prompt) -> None:
    first, second = needs_of(prompt)
    other = (ArtifactKey(SPEC.fingerprint, first[0].chunk, ("e" * 64,)), RANK, LAYERS)
    form_prompt_patches(SPEC, prompt, [other, second], computed(prompt), store.tenant())
    assert store.tenant().find_patch(other[0]) is None
    assert store.tenant().find_patch(second[0]) is not None


def test_a_chunk_that_is_gone_ends_it_with_an_error(store: Store, prompt: Prompt) -> None:
    first, second = needs_of(prompt)
    store.tenant().delete(second[0].chunk)
    with pytest.raises(LoadError, match="not in the store any more"):
        form_prompt_patches(SPEC, prompt, [first, second], computed(prompt), store.tenant())
    assert store.tenant().find_patch(first[0]) is not None


def test_each_patch_of_a_rank_has_a_turn(store: Store, prompt: Prompt) -> None:
    turns = []

    @contextmanager
    def turn() -> Iterator[None]:
        turns.append("begun")
        yield
        turns.append("done")

    shards = TenantShards(store.tenant(), 1)
    for _, chunk in prompt.chunk_segments:
        shards.put(replace(chunk, rows=tuple(zeros(layout, chunk.tokens) for layout in LAYOUTS)))
    needs = needs_of(prompt)
    form_prompt_patches(SPEC, prompt, needs, computed(prompt), shards, turn)
    assert turns == ["begun", "done"] * 2
    assert all(shards.find_patch(key) is not None for key, _, _ in needs)
    assert all(store.tenant().find_patch(key) is None for key, _, _ in needs)


def test_deleted_chunks_go_and_prompts_with_them_form_no_patches(store: Store, prompt: Prompt) -> None:
    first, second = (chunk.id for _, chunk in prompt.chunk_segments)
    # It waits for a picture that is not there.
    other = build_prompt(request("a", "c"), ChunkStubs(SPEC))
    keeper = PieceKeeper(SPEC, ShardStore(store))
    try:
        keeper.form_patches(b"", other, tuple(needs_of(other)), lambda segment: computed(other)[segment.start].layers)
        keeper.drain()
        assert keeper.held == 2 * TOKENS * SPEC.row_bytes
        keeper.forget(b"", [first])
        keeper.drain()
        assert keeper.held == 0
        assert store.tenant().held([first, second]).keys() == {second}
    finally:
        keeper.close()
