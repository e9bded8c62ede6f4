"""The embedded engine: load a model, add media once, ask about them anywhere in a prompt."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import torch
from torch import nn

from emblema.engine.decoding import Sampler, Sampling, SamplingKnobs
from emblema.engine.linker import Linker
from emblema.engine.reader import PromptLike, PromptReader
from emblema.engine.replies import Piece, Prefill, Reply, TextStream, last_of, stream_reply
from emblema.engine.replying import Replying
from emblema.engine.retrieval import RequestReader, Retrieval, question_of
from emblema.engine.storing import StoreLike, open_store, shelf_of, view_of
from emblema.engine.template import ChatTemplate
from emblema.engine.workshop import Workshop
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.library import DynamicLibrary, Embedder, Maker, StaticLibrary
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Strategy
from emblema.link.trace import Usage
from emblema.media import MediaLimits
from emblema.models.adapter import Adapter
from emblema.models.load import load_model
from emblema.models.prepare import Preparer
from emblema.models.selfcheck import SelfCheck, selfcheck
from emblema.store.record import Terms
from emblema.store.view import View

DECODE_RESERVE = 256
"""Rows that a table keeps room for before it has to grow."""


class Engine:
    """A model with a store of chunks. One thread owns a model; an engine keeps no state on it.

    Args:
        model: a transformers vision-language model in memory.
        processor: its processor, or anything with an `image_processor` and a `tokenizer`; without one only prompts of
            token ids can be prefilled.
        store: where chunks live: a store, one tenant's view of a store, or a folder to keep them in; in memory by
            default.
        limits: bounds on media from outside.
        salt: the tenant's secret; ids made under different salts never meet. A view has its own.

    Raises:
        UnsupportedModelError: a layer of the model cannot be relocated; the message names it.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        store: StoreLike | None = None,
        limits: MediaLimits | None = None,
        salt: bytes = b"",
    ) -> None:
        self.adapter = Adapter(model)
        self.selfcheck: SelfCheck = selfcheck(self.adapter)
        self._own = open_store(store)
        self.store: View = view_of(store if self._own is None else self._own, salt)
        preparer = None if processor is None else Preparer(processor, self.adapter.model.config)
        self._workshop = Workshop(self.adapter, preparer, self.store, limits or MediaLimits())
        self._reader = PromptReader(preparer, self._add_from_message)
        self._linker = Linker(self.adapter, self.store)

    @classmethod
    def load(
        cls,
        name: str | Path = "reference",
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        store: StoreLike | None = None,
        limits: MediaLimits | None = None,
        salt: bytes = b"",
    ) -> Self:
        """An engine on the bundled model (`reference`), a Hugging Face id, or a folder.

        Raises:
            ModelError: the model cannot be loaded, or is not supported.
        """
        model, processor = load_model(name, device=device, dtype=dtype)
        return cls(model, processor, store=store, limits=limits, salt=salt)

    def add(
        self,
        source: Any = None,
        *,
        kind: str | None = None,
        text: str | None = None,
        fps: float = 1.0,
        frames_per_segment: int = 2,
        terms: Terms | None = None,
    ) -> Chunk | Clip:
        """Encode and prefill a piece of media once; found again by its content next time.

        Args:
            source: path, bytes or URL of a picture, video, PDF or recording; a PIL picture or an array; or a piece that
                `encode` made, which is only prefilled.
            kind: `image`, `video`, `document` or `audio`; told by the content when left out.
            text: a text passage instead of a source.
            fps: frames a second to sample a video at.
            frames_per_segment: frames of a video in one chunk.
            terms: how long to keep what is made, and how dearly; the store's own by default.

        Returns:
            A chunk; for a video or document a clip, whose members are the segments or pages.

        Raises:
            MediaError: the source cannot be read or is outside the limits.
            PromptError: neither or both of source and text are given.
        """
        if (source is None) == (text is None):
            raise PromptError("engine.add takes a source or text=, one of the two")
        if text is not None:
            return self._workshop.add(self._workshop.passage(self._reader.passage(text)), terms)
        if isinstance(source, EncodedChunk):
            return self._workshop.rebuild(source, terms)
        return self._workshop.add(self._workshop.work(source, kind, fps, frames_per_segment), terms)

    def encode(
        self, source: Any, *, kind: str | None = None, fps: float = 1.0, frames_per_segment: int = 2
    ) -> tuple[EncodedChunk, ...]:
        """Run the encoder alone: what `add` would prefill, a piece for each chunk. `add` takes each of them back later.

        Raises:
            MediaError: as `add`.
        """
        return self._workshop.encode(self._workshop.work(source, kind, fps, frames_per_segment))

    @cached_property
    def files(self) -> StaticLibrary:
        """The tenant's own files: `add`, `list`, `delete`, and by name a part of a prompt; see `StaticLibrary`."""
        return StaticLibrary(shelf_of(self.store.store), self._maker)

    def collection(self, name: str, embedder: Embedder | None = None) -> DynamicLibrary:
        """A reference collection of the shared library; an engine on `store.shared` may change it.

        Args:
            name: of the collection.
            embedder: how its chunks are searched for; by default in the model's own attention space.

        Raises:
            StoreError: this is no name.
        """
        return DynamicLibrary(shelf_of(self.store.store), name, self._maker, embedder)

    @property
    def _maker(self) -> Maker:
        return Maker(self.store, self.adapter, self.add, self._reader.passage)

    def prompt(self, parts: PromptLike, *, template: bool = True) -> Prompt:
        """A prompt as rows, from parts (one user turn) or messages in OpenAI's form.

        Raises:
            PromptError: the prompt is empty or longer than the model's context.
        """
        prompt = Prompt.of(self._reader.parts(parts, template), self.adapter.axes)
        longest = max(prompt.tokens, prompt.next_position)
        if longest > self.adapter.context_length:
            raise PromptError(
                f"the prompt takes {longest} positions; the model's context holds {self.adapter.context_length}"
            )
        return prompt

    def prefill(
        self, parts: PromptLike, strategy: str | Strategy = "auto", *, template: bool = True, reserve: int = 0
    ) -> Prefill:
        """Link a prompt: every row computed or taken as the strategy says.

        Args:
            parts: parts of a prompt, or messages.
            strategy: a strategy's name, such as `full` or `patch-25%`; see `emblema.strategies()`.
            template: wrap parts by the model's chat template.
            reserve: rows to keep room for after the prompt.

        Raises:
            PromptError, StrategyError: the prompt or the strategy's name is not right, or a chunk is another model's.
        """
        began = time.perf_counter()
        if not 0 <= reserve <= self.adapter.context_length:
            raise PromptError(
                f"reserve is {reserve}: it must lie between 0 and the context of {self.adapter.context_length}"
            )
        return self._prefill(self.prompt(parts, template=template), strategy, reserve, began)

    def _prefill(self, prompt: Prompt, strategy: str | Strategy, reserve: int, began: float) -> Prefill:
        outcome = self._linker.link(prompt, strategy, reserve)
        usage = Usage.of(
            outcome.plan,
            outcome.linked.trace,
            forming=outcome.forming,
            recaptured=outcome.recaptured,
            seconds=time.perf_counter() - began,
            fallback=outcome.fallback,
        )
        return Prefill(prompt, outcome.plan, usage, outcome.linked)

    @overload
    def generate(
        self,
        parts: PromptLike,
        strategy: str | Strategy = ...,
        *,
        stream: Literal[False] = ...,
        template: bool = ...,
        retrieval: Retrieval | None = ...,
        **sampling: Unpack[SamplingKnobs],
    ) -> Reply: ...

    @overload
    def generate(
        self,
        parts: PromptLike,
        strategy: str | Strategy = ...,
        *,
        stream: Literal[True],
        template: bool = ...,
        retrieval: Retrieval | None = ...,
        **sampling: Unpack[SamplingKnobs],
    ) -> Iterator[Piece]: ...

    def generate(
        self,
        parts: PromptLike,
        strategy: str | Strategy = "auto",
        *,
        stream: bool = False,
        template: bool = True,
        retrieval: Retrieval | None = None,
        **sampling: Unpack[SamplingKnobs],
    ) -> Reply | Iterator[Piece]:
        """Answer a prompt: prefill, then decode greedily or by sampling.

        Args:
            parts: parts of a prompt, or messages.
            strategy: a strategy's name.
            stream: hand back the pieces as they are made.
            template: wrap parts by the model's chat template.
            retrieval: answers requests that the model writes on the way: what is found is linked at the current
                position by the same strategy, and decoding goes on.
            sampling: `max_new_tokens` (128), `temperature` (0: greedy), `top_p`, `stop`, `seed`; see `Sampling`.

        Returns:
            A reply, or with `stream=True` its pieces, the last of which holds the reply.

        Raises:
            PromptError, StrategyError: the prompt, a sampling knob or the strategy's name is not right.
        """
        steps = self.steps(parts, strategy, Sampling.of(**sampling), template=template, retrieval=retrieval)
        pieces = (piece for piece in steps if piece or piece.reply is not None)
        return pieces if stream else last_of(pieces)

    def steps(
        self,
        parts: PromptLike,
        strategy: str | Strategy = "auto",
        sampling: Sampling | None = None,
        *,
        template: bool = True,
        retrieval: Retrieval | None = None,
    ) -> Iterator[Piece]:
        """As `generate` with `stream=True`, with a piece for every token: one that shows no text yet is empty."""
        began = time.perf_counter()
        sampling = Sampling() if sampling is None else sampling
        prompt = self.prompt(parts, template=template)
        room = self.adapter.context_length - max(prompt.tokens, prompt.next_position)
        if sampling.max_new_tokens > room:
            raise PromptError(
                f"max_new_tokens is {sampling.max_new_tokens}, but the model's context has room for {room}"
            )
        prefill = self._prefill(prompt, strategy, min(sampling.max_new_tokens, DECODE_RESERVE), began)
        ends = self.end_tokens
        replying = self._replying(parts, prefill, strategy, Sampler(sampling), retrieval)
        tokens = replying.tokens()
        first = next(tokens)
        replying.usage = replace(replying.usage, ttft_seconds=time.perf_counter() - began)
        stream = TextStream(self._workshop.preparer.tokenizer, sampling.stop)
        return stream_reply(chain([first], tokens), stream, replying, ends)

    def _replying(
        self,
        parts: PromptLike,
        prefill: Prefill,
        strategy: str | Strategy,
        sampler: Sampler,
        retrieval: Retrieval | None,
    ) -> Replying:
        fixed = (self.adapter, self._linker, prefill, strategy, sampler, self.end_tokens)
        if retrieval is None:
            return Replying(*fixed)
        reader = RequestReader(retrieval, self._workshop.preparer.tokenizer, question_of(parts))
        around = self._reader.written(retrieval.before), self._reader.written(retrieval.after)
        return Replying(*fixed, retrieval, reader, around)

    def _add_from_message(self, source: Any, *, kind: str | None = None) -> Chunk | Clip:
        piece = self.add(source, kind=kind)
        # What is on a slower tier comes while the next of the prompt's media are encoded and prefilled.
        self.store.prefetch(chunk.id for chunk in (piece if isinstance(piece, Clip) else [piece]))
        return piece

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; ModelError if the model came without a processor."""
        return self._reader.template

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a reply: those of the generation configuration, else the tokenizer's."""
        configured = getattr(getattr(self.adapter.model, "generation_config", None), "eos_token_id", None)
        found = configured if configured is not None else self._workshop.preparer.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    def forget_prompts(self) -> None:
        """Forget what was kept of earlier prompts for `prefix`; chunks and patches stay."""
        self._linker.forget_prompts()

    def close(self) -> None:
        """Give back what the engine alone holds: the kept prompts, and a store that it opened itself, made durable.

        The model, and a store that was handed in, stay the caller's.
        """
        self.forget_prompts()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
