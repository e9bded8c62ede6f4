"""The anchor: what chunks are prefilled after is what prompts begin with, and a first chunk after it is exact."""

import random
from dataclasses import replace

import pytest
import torch

from benchmarks.tasks import Episode
from emblema import Engine
from emblema.errors import EmblemaError
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.prompt import TextPart
from emblema.models.adapter import Adapter
from emblema.session.anchor import find_anchor
from emblema.session.chunk_builder import ChunkBuilder

QUESTION = "what colour is under the tent ?"


def builder_of(engine: Engine) -> ChunkBuilder:
    return engine.session.chunk_builder


def test_it_is_what_the_template_writes_before_a_first_piece(reference: Engine, episode: Episode) -> None:
    engine = Engine(reference.adapter.model, reference.processor, anchor=None)
    prompt = engine.prompt([engine.add(episode.pages[0].image()), QUESTION])
    first = prompt.segments[0].part
    assert isinstance(first, TextPart) and first.token_ids == engine.adapter.anchor
    assert reference.adapter.anchor == engine.adapter.anchor, "by default"
    text = engine.template.write([{"role": "user", "content": "X"}])
    written = engine.tokenizer.decode(engine.adapter.anchor)
    assert "".join(written.split()) == "".join(text.partition("X")[0].split())


def test_without_a_template_it_is_the_tokenizers_own_first_token(
    reference: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = builder_of(reference).preparer
    monkeypatch.setattr(type(preparer), "chat_template", None)
    assert find_anchor(preparer) == () == find_anchor(None)
    monkeypatch.setattr(type(preparer), "tokenizer", Beginning())
    assert find_anchor(preparer) == (1,)


class Beginning:
    """A tokenizer that puts its token 1 in front of every text."""

    bos_token_id = 1

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": [1]}


@pytest.mark.parametrize("strategy", ["blind", "patch-25%", "query-25%", "auto"])
def test_a_first_chunk_right_after_it_is_exact(reference: Engine, episode: Episode, strategy: str) -> None:
    engine = Engine(reference.adapter.model, reference.processor, anchor=None)
    parts = [engine.add(episode.pages[0].image()), QUESTION]
    full, linked = engine.prefill(parts, "full"), engine.prefill(parts, strategy)
    assert linked.usage.cached_tokens >= parts[0].tokens
    assert float((linked.logits - full.logits).abs().max()) <= 1e-4 * float(full.logits.abs().max())
    if strategy == "auto":
        assert [decision.lane for decision in linked.plan.decisions] in ([Lane.LEADING], [Lane.PREFIX])


def test_after_anything_else_it_is_not_taken_for_exact(reference: Engine, episode: Episode) -> None:
    engine = Engine(reference.adapter.model, reference.processor, anchor=None)
    chunk = engine.add(episode.pages[0].image())
    for before in ([5], [*engine.adapter.anchor, 5], [*engine.adapter.anchor[:-1]]):
        plan = engine.prefill([before, chunk, [5, 6]], template=False).plan
        assert [decision.lane for decision in plan.decisions] == [Lane.FULL]


def test_rows_are_those_of_a_prompt_that_begins_so(reference: Engine, episode: Episode) -> None:
    """In every layer, counted from the chunk; the anchor's own rows are not among them."""
    engine = Engine(reference.adapter.model, reference.processor, anchor=random.Random(3).choices(range(20, 90), k=5))
    chunk = engine.add(episode.pages[1].image())
    other = Engine(reference.adapter.model, reference.processor, anchor=())
    bare = other.add(episode.pages[1].image())
    whole = engine.prefill([engine.adapter.anchor, chunk, [5]], "full", template=False)
    taken = engine.prefill([engine.adapter.anchor, chunk, [5]], "blind", template=False)
    for exact, found in zip(whole.kv, taken.kv, strict=True):
        assert float((exact.keys - found.keys).abs().max()) <= 1e-5 * float(exact.keys.abs().max())
        assert float((exact.values - found.values).abs().max()) <= 1e-5 * float(exact.values.abs().max())
    assert any(not torch.allclose(one.values, two.values) for one, two in zip(chunk.rows, bare.rows, strict=True))


def test_chunks_of_another_anchor_are_not_found(reference: Engine, episode: Episode) -> None:
    picture, store = episode.pages[0].image(), reference.store.parent
    engines = [
        Engine(reference.adapter.model, reference.processor, store=store, anchor=ids) for ids in ((), (5,), (5, 6))
    ]
    assert len({engine.add(picture).id for engine in engines}) == 3
    assert engines[1].add(picture).id == engines[1].add(picture).id


def test_an_anchor_outside_the_vocabulary_is_refused(reference: Engine) -> None:
    with pytest.raises(EmblemaError, match="vocabulary"):
        Adapter(reference.adapter.model, anchor=(10**6,))


def test_a_prompt_that_begins_with_a_chunk_right_after_it_is_kept_as_a_prefix(
    reference: Engine, episode: Episode
) -> None:
    engine = Engine(reference.adapter.model, reference.processor, policy=Policy.quiet())
    parts = [*(engine.add(page.image()) for page in episode.pages), QUESTION]
    first = engine.prefill(parts, policy=replace(Policy.quiet(), query_share=0))
    assert first.usage.lane == "auto:leading+full" and first.plan.exact
    again = engine.prefill(parts)
    assert again.usage.lane == "auto:prefix" and again.usage.computed_tokens == 1
    full = engine.prefill(parts, "full")
    assert float((again.logits - full.logits).abs().max()) <= 1e-4 * float(full.logits.abs().max())
