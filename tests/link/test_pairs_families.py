"""Pairs on every family: with one antecedent and all directions they are the patch of full rank."""

import pytest
import torch

from emblema.link.policy.costs import Costs
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt
from emblema.session.linker import Linker
from emblema.session.pair_memories import PairMemories
from emblema.session.pair_memory import PairSettings
from emblema.session.patch_worker import PatchWorker
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.requests import LinkRequest
from emblema.store.store import Store
from tests.engine.engines import engine, kv_error, largest_error, pictures, prompt_of, text
from tests.families import CASES

EVERYTHING = PairSettings(exact=True, noted_rows=1_000_000)


def learning_linker(name: str, prompt: Prompt, settings: PairSettings) -> Linker:
    """A linker that learns from what it links, with the prompt's chunks in its store."""
    adapter, store = engine(name).adapter, Store().tenant()
    for _, chunk in prompt.chunk_segments:
        store.put(chunk)
    PairMemories.of_store(store.parent).of(store, adapter, adapter.fingerprint, settings)
    policy = Policy(canary=0, sightings=15, learning_share=None)
    return Linker(adapter, store, PolicyRuntime(adapter, store, policy, PatchWorker(), Costs()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slid", [False, True])
def test_pairs_of_one_antecedent_at_full_rank_are_the_patch(name: str, slid: bool) -> None:
    first, second = pictures(name)
    # A chunk at row 0 has absorbed nothing; after text it would need a patch of its own.
    prompt = prompt_of(name, [ChunkPart(first, slid=slid), text(3, 1), ChunkPart(second), text(4, 2)])
    linker = learning_linker(name, prompt, EVERYTHING)
    nothing, blind = (linker.link(LinkRequest(prompt, strategy)).linked for strategy in ("pair", "blind"))
    assert torch.equal(nothing.logits, blind.logits), "nothing is known yet"
    full = linker.link(LinkRequest(prompt, "full")).linked
    patch, pair = (linker.link(LinkRequest(prompt, strategy)) for strategy in ("patch-60000", "pair"))
    assert pair.trace.patched == second.tokens and pair.trace.computed == patch.trace.computed
    for other in (patch.linked, full):
        assert largest_error(pair.linked.logits, other.logits) <= 1e-4
        assert kv_error(name, pair.linked, other) <= 1e-4
