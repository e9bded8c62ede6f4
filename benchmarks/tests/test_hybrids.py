"""HYPIC's method beside ours: what it composes is exact where nothing has conditioned a chunk."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.fidelity.arms import arm_of
from benchmarks.hybrids.hypic import Hypic, state_after, state_map
from benchmarks.hybrids.run import shapes
from benchmarks.tasks import generate
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.models.linear_attention import find_state_mixer
from training.families import HYBRID
from training.folder import write_folder


@cache
def engine() -> Engine:
    """Random weights in the shape of `reference-hybrid`."""
    torch.manual_seed(3)
    with TemporaryDirectory() as folder:
        write_folder(HYBRID, HYBRID.new_model(), Path(folder))
        return Engine.load(folder, anchor=())


def pages() -> list[Chunk]:
    """A legend, or two, and a map."""
    episode = next(iter(generate("maps", 5, 1)))
    added = [engine().add(page.image()) for page in episode.pages]
    return [chunk for chunk in added if isinstance(chunk, Chunk)]


def question() -> TextPart:
    text = "what colour is under the moon ?<|im_end|>\n<|im_start|>assistant\n"
    return TextPart(tuple(engine().template.tokenizer(text)["input_ids"]))


def test_it_is_an_arm_of_the_bench() -> None:
    assert arm_of("hypic-8") == Hypic(8)


def test_a_chunk_at_the_beginning_of_a_prompt_is_exact_whatever_the_seam() -> None:
    adapter = engine().adapter
    prompt = Prompt.of([ChunkPart(pages()[0]), question()], adapter.axes)
    table = adapter.table(prompt.tokens)
    table.allocate(torch.arange(prompt.tokens))
    encoded = pages()[0].encoded
    ids = torch.tensor(question().token_ids)
    embeds = torch.cat((encoded.embeds, adapter.embed(ids)))
    hidden = adapter.decoder(
        inputs_embeds=embeds[None], position_ids=prompt.positions[:, None], use_cache=False
    ).last_hidden_state[0]
    expected = adapter.logits(hidden[-1:])[0]
    for seam in (1, 8, 66):
        assert float((Hypic(seam).logits(adapter, prompt) - expected).abs().max()) < 1e-3


def test_two_chunks_see_each_other_in_the_seam_alone() -> None:
    adapter, (first, *_, last) = engine().adapter, pages()
    prompt = Prompt.of([ChunkPart(first), ChunkPart(last), question()], adapter.axes)
    found = [Hypic(seam).logits(adapter, prompt) for seam in (1, 8)]
    assert all(bool(logits.isfinite().all()) for logits in found)
    assert float((found[0] - found[1]).abs().max()) > 0


@torch.no_grad()
def test_a_map_of_a_state_holds_for_any_state_before() -> None:
    adapter, chunk = engine().adapter, pages()[0]
    rows = adapter.prefill(chunk.encoded)[0]
    for index, layout in enumerate(adapter.layouts):
        if layout.kind == "linear":
            mixer = find_state_mixer(adapter.layers[index])
            found = state_map(mixer, layout, rows[index])
            before = torch.randn(found.state.shape, generator=torch.Generator().manual_seed(index))
            expected = state_after(mixer, layout, rows[index], before)
            assert float((found.apply(before) - expected).abs().max()) < 1e-5 * float(expected.abs().max())
            assert float((expected - found.state).abs().max()) > 0


def test_bytes_at_published_shapes_are_counted_by_the_code() -> None:
    """At Qwen3.5-9B's shapes a state and its operator take 101 MB in float32, by hand 24 layers of 32 heads."""
    rows = {row["model"]: row for row in shapes()}
    assert rows["Qwen3.5-9B"]["whole MB"] == 24 * 32 * 2 * 128 * 128 * 4 / 1e6
    assert all(0.28 < row["map MB"] / row["whole MB"] < 0.3 for row in rows.values())
