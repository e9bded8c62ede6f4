"""What is measured: a model of a shape in an engine, prompts of chunks with random rows, and stock transformers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from benchmarks.cost.timing import Pace, interleaved
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.compact_map import CompactMap
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerLayout, LayerRows, MappedRows, StateMap
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.executor import embed_rows
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.link.strategies.base import Knowledge, Strategy, strategy_name
from emblema.link.strategies.registry import parse
from emblema.models.calibrate import cache_argument
from emblema.models.families.base import Prepared
from emblema.models.positions import Grid, chunk_positions
from emblema.store.settings import StoreSettings
from emblema.store.store import Store, TenantStore

BEFORE, QUESTION = 16, 32
"""Rows of text before the chunks, so that each has something to absorb, and after them."""
FIRST_TOKEN, TOKENS = 100, 600
"""The tokens of text, which are words in every vocabulary here."""
PATCH_SIZE = 1e-3
"""Deviation of the random patches' numbers."""


@dataclass(frozen=True, slots=True)
class CostPrompt:
    """Text, chunks and a question.

    Attributes:
        parts: as an engine takes them.
        chunks: the chunks among them.
        prompt: the same as rows.
    """

    parts: tuple[Any, ...]
    chunks: tuple[Chunk, ...]
    prompt: Prompt


def picture_sides(tokens: int) -> tuple[int, int]:
    """Return height and width in tokens of a picture of `tokens` tokens with its two markers, or a few fewer."""
    height = isqrt(max(1, tokens - 2))
    return height, max(1, (tokens - 2) // height)


def chunk_sizes(tokens: int, count: int) -> list[int]:
    """Return the tokens of each of `count` chunks that have so many together, as even as can be."""
    return [tokens // count + (place < tokens % count) for place in range(count)]


def link_seconds(engine: Engine, parts: Sequence[Any], strategy: str | Strategy) -> float:
    """Link parts by a strategy; return the seconds from the call to the logits.

    Raises:
        EmblemaError: something else was done than the strategy says, so that there is nothing to report.
    """
    name, usage = strategy_name(strategy), engine.prefill(parts, strategy, template=False).usage
    other = usage.forming_tokens or usage.recaptured_tokens or usage.captured_tokens or not usage.finite
    if other or usage.lane != name or (name.startswith("patch-") and not usage.patched_tokens):
        raise EmblemaError(f"{name} could not be measured: {usage}")
    return usage.ttft_seconds


class CostSubject:
    """A model of a shape, in an engine without background work.

    Args:
        name: of the shape.
        model: of that shape.
        seed: of everything random.

    Attributes:
        engine: with a store in the device's memory.
        adapter: the engine's.
        device, dtype: the model's.
    """

    def __init__(self, name: str, model: Any, seed: int) -> None:
        self.name, self.model = name, model
        self._generator = torch.Generator().manual_seed(seed)
        device = next(model.parameters()).device
        store = Store(device_bytes=None, settings=StoreSettings(device=device, prefix_bytes=2**30))
        self.engine = Engine(model, None, store=store, policy=Policy.quiet())
        self.adapter = self.engine.adapter
        self.device, self.dtype = self.adapter.device, self.adapter.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's KV, all layers together."""
        return self.engine.session.row_bytes

    @property
    def decoder_parameters(self) -> int:
        """The decoder's parameters that a token goes through, the output's matrix with them and experts all counted."""
        inputs = self.adapter.decoder.get_input_embeddings().weight
        outputs = self.model.get_output_embeddings().weight
        held = sum(weights.numel() for weights in self.adapter.decoder.parameters())
        return held - int(inputs.numel()) + int(outputs.numel())

    def numbers(self, *size: int) -> Tensor:
        """Return normally distributed numbers on the device, in the model's dtype."""
        seed = int(torch.randint(2**62, (), generator=self._generator))
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*size, generator=generator, device=self.device, dtype=self.dtype)

    def token_ids(self, count: int) -> list[int]:
        """Return ids of random words."""
        known = min(TOKENS, self.adapter.vocab_size - FIRST_TOKEN)
        return (torch.randint(known, (count,), generator=self._generator) + FIRST_TOKEN).tolist()

    def media(self, tokens: int) -> Prepared:
        """Return a picture of random pixels for the encoder, of `tokens` tokens with its markers or a few fewer."""
        config = self.model.config
        vision = config.vision_config
        height, width = picture_sides(tokens)
        patches, side = 4 * height * width, int(vision.patch_size)
        if hasattr(vision, "temporal_patch_size"):
            pixels = self.numbers(patches, 3 * int(vision.temporal_patch_size) * side**2)
        else:
            pixels = self.numbers(patches, 3, side, side)
        ids = [config.vision_start_token_id, *[config.image_token_id] * (height * width), config.vision_end_token_id]
        features = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 2 * height, 2 * width]])}
        return Prepared("image", torch.tensor(ids), features, (Grid(1, 1, height, width),))

    def encoded(self, tokens: int) -> Encoded:
        """Return what the decoder would be fed for a picture of `tokens` tokens, at random."""
        grid = Grid(1, 1, *picture_sides(tokens))
        positions, span = chunk_positions(tokens, self.adapter.axes, (grid,))
        visual = torch.zeros(tokens, dtype=torch.bool)
        visual[1 : 1 + grid.tokens] = True
        ids = torch.full((tokens,), FIRST_TOKEN)
        ids[visual] = int(self.model.config.image_token_id)
        weights = self.adapter.decoder.get_input_embeddings().weight
        size = float(weights[FIRST_TOKEN : FIRST_TOKEN + TOKENS].detach().float().std())
        depth = len(getattr(self.model.config.vision_config, "deepstack_visual_indexes", ()) or ())
        embeds = self.numbers(tokens, self.adapter.hidden_size) * size
        deepstack = tuple(self.numbers(grid.tokens, self.adapter.hidden_size) * size for _ in range(depth))
        return Encoded(ids, embeds, positions, span, visual, deepstack, torch.full((tokens,), -1))

    def chunk(self, tokens: int) -> Chunk:
        """Return a chunk of random rows, under an id of its own; it is in no store."""
        name = torch.randint(256, (32,), generator=self._generator, dtype=torch.uint8).numpy().tobytes().hex()
        rows = tuple(self.rows(layout, tokens) for layout in self.adapter.layouts)
        return Chunk(name, "image", self.adapter.fingerprint, self.encoded(tokens), rows)

    def rows(self, layout: LayerLayout, tokens: int) -> LayerRows:
        """Return random rows of a chunk in a layer; where it keeps a map of a state, one that no head forgets."""
        state, count = layout.state, layout.front + layout.edge if layout.is_mapped(tokens) else tokens
        rows = LayerRows(*(self.numbers(heads, count, width) for heads, width in (layout.keys, layout.values)))
        if state is None or not layout.is_mapped(tokens):
            return rows
        own = self.numbers(state.heads, state.key_width, state.value_width)
        decay = self.numbers(state.heads, state.key_width, state.key_width) / (2 * state.key_width**0.5)
        each = StateMap(layout.front, tokens, own, decay, torch.arange(state.heads, device=self.device))
        held = CompactMap.of(each) if layout.compact else each
        return MappedRows(rows.keys, rows.values, (held,), layout.edge)

    def knowledge(self) -> Knowledge:
        """Return what a strategy may ask of the engine's store, without kept prompts."""
        find = self.engine.store.find_patch
        return Knowledge(self.adapter.fingerprint, self.adapter.layouts, find, lambda prompt: None)

    def patches(self, chunks: Sequence[Chunk], rank_of: Callable[[Chunk], int]) -> dict[ArtifactKey, Patch]:
        """Return a random patch of each chunk after those before it, of a rank (0: none)."""

        def factors(tokens: int, rank: int, heads: int, width: int) -> Factors:
            held = min(rank, tokens, heads * width)
            left, right = self.numbers(tokens, held), self.numbers(held, heads * width)
            return Factors(left * PATCH_SIZE, right * PATCH_SIZE)

        found: dict[ArtifactKey, Patch] = {}
        for place, chunk in enumerate(chunks):
            size = (chunk.tokens, rank_of(chunk))
            if size[1]:
                key = ArtifactKey(chunk.model, chunk.id, tuple(other.id for other in chunks[:place]))
                found[key] = Patch(
                    tuple(
                        None
                        if layout.is_mapped(chunk.tokens)
                        else LayerPatch(factors(*size, *layout.keys), factors(*size, *layout.values))
                        for layout in self.adapter.layouts
                    )
                )
        return found

    @contextmanager
    def prompt(
        self, tokens: int, chunks: int, *, patches: Sequence[str] = (), store: TenantStore | None = None
    ) -> Iterator[CostPrompt]:
        """Yield a prompt whose chunks are in a store (the engine's by default) for as long as the block runs.

        Args:
            tokens: rows of it, text and question with them.
            chunks: how many there are.
            patches: names of strategies whose patches are stored, at random; one patch of the largest rank serves all.
            store: where the chunks are kept.
        """
        view = self.engine.store if store is None else store
        held = tuple(view.put(self.chunk(size)) for size in chunk_sizes(tokens - BEFORE - QUESTION, chunks))
        parts = (self.token_ids(BEFORE), *held, self.token_ids(QUESTION))
        found = CostPrompt(parts, held, self.laid_out(parts))
        made = self.patches(held, lambda chunk: max((self.rank(name, chunk.tokens) for name in patches), default=0))
        for key, patch in made.items():
            view.put_artifact(key, patch)
        try:
            yield found
        finally:
            self.engine.forget_prompts()
            for chunk in held:
                view.delete(chunk.id)

    def laid_out(self, parts: Sequence[Any]) -> Prompt:
        """Return parts as rows."""
        return Prompt.of(
            (ChunkPart(part) if isinstance(part, Chunk) else TextPart(tuple(part)) for part in parts),
            self.adapter.axes,
        )

    def rank(self, strategy: str, tokens: int) -> int:
        """Return the rank that a strategy of patches has for a chunk of so many tokens."""
        rank: int = parse(strategy).rank_for(tokens, self.knowledge())  # type: ignore[attr-defined]
        return rank

    def link(self, prompt: CostPrompt, strategy: str | Strategy) -> float:
        """Link a prompt by a strategy; return the seconds from the call to its logits."""
        return link_seconds(self.engine, prompt.parts, strategy)

    def embeds(self, prompt: Prompt) -> Tensor:
        """Return what a decoder is fed for all of a prompt, [1, rows, hidden]."""
        return embed_rows(self.adapter, prompt, torch.arange(prompt.tokens))[0][None]

    @torch.inference_mode()
    def stock_forward(self, embeds: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Run rows through the stock decoder as transformers does, and return the last one's logits.

        Features that some families add to early layers are left out, which is the quicker for it.

        Args:
            embeds: [1, rows, hidden].
            positions: [axes, rows].
            cache: a `DynamicCache` with the rows before these; it is added to.
        """
        ids = positions.to(self.device)
        output = self.adapter.decoder(
            inputs_embeds=embeds,
            position_ids=ids if self.adapter.axes == 1 else ids[:, None],
            use_cache=True,
            **{cache_argument(self.adapter.decoder): cache},
        )
        return self.adapter.logits(output.last_hidden_state[0, -1:])[0]

    def stock_prefill(self, prompt: Prompt) -> None:
        """Prefill a prompt as transformers does, from its embeddings."""
        from transformers import DynamicCache

        self.stock_forward(self.embeds(prompt), prompt.positions, DynamicCache())

    def reprefill(self, tokens: int, pace: Pace) -> float:
        """Return the seconds of prefilling `tokens` rows again: `full`, or transformers, whichever is quicker."""
        with self.prompt(max(tokens, BEFORE + QUESTION + 4), 1) as prompt:
            stock, full = partial(self.stock_prefill, prompt.prompt), partial(self.link, prompt, "full")
            found = interleaved({"stock": stock, "full": full}, self.device, pace)
        return min(found.median("stock"), found.median("full"))
