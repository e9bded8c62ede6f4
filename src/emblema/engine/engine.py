"""The embedded engine: load a model, add media once, ask about them anywhere in a prompt."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Unpack, overload

from emblema.engine.decoding import Sampler, Sampling, SamplingKnobs
from emblema.engine.intake import MediaEngine
from emblema.engine.reader import PromptLike
from emblema.engine.replies import Piece, Prefill, Reply, TextStream, last_of, stream_reply
from emblema.engine.replying import Replying
from emblema.engine.retrieval import RequestReader, Retrieval, question_of
from emblema.engine.streams import StreamHost
from emblema.engine.template import ChatTemplate
from emblema.engine.windows import EngineHost
from emblema.errors import PromptError
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.strategies.auto import Auto, bounded
from emblema.link.strategies.base import Strategy
from emblema.link.trace import Usage
from emblema.stream.settings import StreamSettings, changed
from emblema.stream.stream import Stream
from emblema.window.budget import WindowBudget
from emblema.window.graph import Cascade
from emblema.window.window import Window

DECODE_RESERVE = 256
"""Rows that a table keeps room for before it has to grow."""


class Engine(MediaEngine):
    """A model with a store of chunks. One thread owns a model; an engine keeps no state on it.

    Args:
        model: a transformers vision-language model in memory.
        processor: its processor, or anything with an `image_processor` and a `tokenizer`; without one only prompts of
            token ids can be prefilled.
        store: where chunks live: a store, one tenant's view of a store, or a folder to keep them in; in memory by
            default.
        limits: bounds on media from outside.
        salt: the tenant's secret; ids made under different salts never meet. A view has its own.
        policy: bounds for `auto`, and for what it does behind the answers.

    Raises:
        UnsupportedModelError: a layer of the model cannot be relocated; the message names it.
    """

    def prompt(self, parts: PromptLike, *, template: bool = True) -> Prompt:
        """A prompt as rows, from parts (one user turn) or messages in OpenAI's form; its media are added to the store.

        Raises:
            PromptError: the prompt is empty or longer than the model's context.
        """
        return self._read(parts, template, eager=True)

    def _read(self, parts: PromptLike, template: bool, *, eager: bool) -> Prompt:
        read = self._media_reader(eager=eager)
        return self._fitting(Prompt.of(self._reader.parts(parts, template, read), self.adapter.axes))

    def _fitting(self, prompt: Prompt) -> Prompt:
        longest = max(prompt.tokens, prompt.next_position)
        if longest > self.adapter.context_length:
            raise PromptError(
                f"the prompt takes {longest} positions; the model's context holds {self.adapter.context_length}"
            )
        return prompt

    def prefill(
        self,
        parts: PromptLike,
        strategy: str | Strategy = "auto",
        *,
        template: bool = True,
        reserve: int = 0,
        policy: Policy | None = None,
    ) -> Prefill:
        """Link a prompt: every row computed or taken as the strategy says.

        Args:
            parts: text, token ids, chunks and clips, pictures and paths of media, and what `encode` made; or messages.
                Under `auto` media that the store does not know are encoded and computed in their place; seen again,
                they are added to it behind the answer. Other strategies add them first.
            strategy: a strategy's name, such as `full` or `patch-25%`; see `emblema.strategies()`.
            template: wrap parts by the model's chat template.
            reserve: rows to keep room for after the prompt.
            policy: bounds for `auto`; the engine's by default.

        Raises:
            PromptError, StrategyError: the prompt or the strategy's name is not right, or a chunk is another model's.
        """
        began = time.perf_counter()
        if not 0 <= reserve <= self.adapter.context_length:
            raise PromptError(
                f"reserve is {reserve}: it must lie between 0 and the context of {self.adapter.context_length}"
            )
        chosen = bounded(strategy, policy)
        prefill = self._prefill(self._read(parts, template, eager=not _is_auto(chosen)), chosen, reserve, began, True)
        self._rest()
        return prefill

    def _prefill(
        self, prompt: Prompt, strategy: str | Strategy, reserve: int, began: float, inline_media: bool = False
    ) -> Prefill:
        outcome = self._linker.link(prompt, strategy, reserve, inline_media=inline_media)
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
        policy: Policy | None = ...,
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
        policy: Policy | None = ...,
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
        policy: Policy | None = None,
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
            policy: bounds for `auto`; the engine's by default.
            sampling: `max_new_tokens` (128), `temperature` (0: greedy), `top_p`, `stop`, `seed`; see `Sampling`.

        Returns:
            A reply, or with `stream=True` its pieces, the last of which holds the reply.

        Raises:
            PromptError, StrategyError: the prompt, a sampling knob or the strategy's name is not right.
        """
        chosen = bounded(strategy, policy)
        steps = self.steps(parts, chosen, Sampling.of(**sampling), template=template, retrieval=retrieval)
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
        prompt = self._read(parts, template, eager=not _is_auto(strategy))
        self._refuse_without_room(prompt, sampling.max_new_tokens)
        prefill = self._prefill(prompt, strategy, min(sampling.max_new_tokens, DECODE_RESERVE), began, True)
        ends = self.end_tokens
        replying = self._replying(parts, prefill, strategy, Sampler(sampling), retrieval)
        tokens = replying.tokens()
        first = next(tokens)
        replying.usage = replace(replying.usage, ttft_seconds=time.perf_counter() - began)
        stream = TextStream(self.tokenizer, sampling.stop)
        return self._then_rest(stream_reply(chain([first], tokens), stream, replying, ends))

    def _then_rest(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        yield from pieces
        self._rest()

    def _refuse_without_room(self, prompt: Prompt, most: int) -> None:
        room = self.adapter.context_length - max(prompt.tokens, prompt.next_position)
        if most > room:
            raise PromptError(f"max_new_tokens is {most}, but the model's context has room for {room}")

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
        reader = RequestReader(retrieval, self.tokenizer, question_of(parts))
        around = self._reader.written(retrieval.before), self._reader.written(retrieval.after)
        return Replying(*fixed, retrieval, reader, around)

    def window(
        self,
        *,
        budget: WindowBudget | None = None,
        system: str | None = None,
        template: bool = True,
        cascade: Cascade | None = None,
    ) -> Window[Prefill, Reply]:
        """A window on a growing context: append to it, slide it, reorder and recall, fork it, and ask; see `Window`.

        Args:
            budget: what it may hold.
            system: text in front of the user's turn.
            template: write parts as the model's chat template does; without it they are taken as they are.
            cascade: whose rows are formed anew when what stands before them has changed; by default what the policy
                says: survivors keep theirs while those are trusted.

        Raises:
            CapacityError: the template's opening alone does not fit into the budget.
            PromptError: the template refuses the system turn.
        """
        return Window.of(EngineHost(self, template, system), budget or WindowBudget(), cascade)

    def stream(
        self,
        method: str = "mosaic",
        settings: StreamSettings | None = None,
        *,
        system: str | None = None,
        template: bool = True,
        **changes: Any,
    ) -> Stream:
        """A stream of frames to be asked at any time; see `Stream`.

        Args:
            method: how frames that leave the window are remembered; see `emblema.stream.methods`.
            settings: how much is seen, and how clusters are kept.
            system: text in front of the user's turn.
            template: write the turn as the model's chat template does; without it the question is taken as it is.
            changes: single settings by name, such as `budget=32`.

        Raises:
            StreamError: there is no such method or setting.
            UnsupportedModelError: the model's layers cannot read a memory.
            PromptError: the template refuses the system turn.
        """
        return Stream(StreamHost(self, template, system), method, changed(settings or StreamSettings(), changes))

    def load_stream(self, name: str, *, system: str | None = None, template: bool = True) -> Stream:
        """A stream that `Stream.save` wrote to this engine's folder; it goes on as it was.

        Raises:
            StreamError: there is none of that name, or it was another model's or another template's.
            StoreError: it is damaged.
        """
        return Stream.load(StreamHost(self, template, system), name)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; ModelError if the model came without a processor."""
        return self._reader.template

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a reply: those of the generation configuration, else the tokenizer's."""
        configured = getattr(getattr(self.adapter.model, "generation_config", None), "eos_token_id", None)
        found = configured if configured is not None else self.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])


def _is_auto(strategy: str | Strategy) -> bool:
    return strategy.strip() == "auto" if isinstance(strategy, str) else isinstance(strategy, Auto)
