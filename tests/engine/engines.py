"""Engines on the tiny random models of the matrix, and prompts of two pictures for them."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.tasks import Episode
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.session.linker import Linker
from emblema.session.patch_worker import PatchWorker
from emblema.session.policy_runtime import PolicyRuntime
from emblema.store.store import TenantStore
from tests.families import loaded, picture, words

AT_ONCE = Policy(sightings=1, forming_seconds=None, query_share=0, margin=0.0, kept=0.0)
"""Unknown combinations are computed in full, patches are formed at the first sighting, and every answer stands.

Of tiny random models any patch is kept: their rows are noise."""


@cache
def engine(name: str) -> Engine:
    """One engine for each family; its store is shared by the tests of a run."""
    item = loaded(name)
    return Engine(item.model, item.bundle)


def linker_on(name: str, store: TenantStore, policy: Policy | None = None) -> Linker:
    """A linker on a family's model, which learns nothing in the background unless a policy says so."""
    adapter = engine(name).adapter
    return Linker(adapter, store, PolicyRuntime(adapter, store, policy or Policy.quiet(), PatchWorker()))


def encoder_of(engine: Engine) -> nn.Module:
    """The vision encoder of an engine on the bundled model."""
    encoder: nn.Module = engine.adapter.model.model.visual
    return encoder


def first_layer_of(engine: Engine) -> nn.Module:
    """The decoder's first layer, of an engine on the bundled model."""
    layer: nn.Module = engine.adapter.model.model.language_model.layers[0]
    return layer


class Calls:
    """Counts how often a module runs."""

    def __init__(self, module: nn.Module) -> None:
        self.count = 0
        self._handle = module.register_forward_hook(self._called)

    def _called(self, *given: object) -> None:
        self.count += 1

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, *given: object) -> None:
        self._handle.remove()


def added(own: Engine, episode: Episode) -> list[Chunk]:
    """Chunks of an episode's pages."""
    return [chunk for page in episode.pages if isinstance(chunk := own.add(page.image()), Chunk)]


def pictures(name: str, count: int = 2, seed: int = 0) -> list[Chunk]:
    """Chunks of different pictures."""
    sizes = loaded(name).case.sizes
    chunks = [engine(name).add(picture(*sizes[index % 2], seed=seed + index)) for index in range(count)]
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)]


def text(count: int, seed: int = 0) -> TextPart:
    return TextPart(tuple(words(count, seed).tolist()))


def prompt_of(name: str, parts: list[Part], shift: int = 0) -> Prompt:
    """A prompt whose first token is at position `shift`."""
    prompt = Prompt.of(parts, engine(name).adapter.axes)
    segments = tuple(replace(segment, position=segment.position + shift) for segment in prompt.segments)
    return Prompt(segments, prompt.axes, prompt.next_position + shift)


def two_pages(name: str, shift: int = 0, seed: int = 0) -> Prompt:
    """Text, picture, text, picture, text."""
    first, second = pictures(name, seed=seed)
    return prompt_of(
        name, [text(5, seed), ChunkPart(first), text(3, seed + 1), ChunkPart(second), text(4, seed + 2)], shift
    )


def largest_error(left: Tensor, right: Tensor) -> float:
    """The largest difference, as a share of the largest entry."""
    return float((left.float() - right.float()).abs().max() / right.float().abs().max())


def kv_error(name: str, left: object, right: object) -> float:
    """The largest relative difference of two linked tables, over layers and slots."""
    errors = []
    for layer in range(len(engine(name).adapter.layouts)):
        one, other = left.table.read(layer), right.table.read(layer)  # type: ignore[attr-defined]
        errors += [largest_error(one.keys, other.keys), largest_error(one.values, other.values)]
    return max(errors)


def rows(count: int) -> Tensor:
    return torch.arange(count)
