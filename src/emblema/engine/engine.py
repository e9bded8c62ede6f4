"""The embedded engine: load a model, add media once, ask about them anywhere in a prompt."""

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, Unpack, overload

import torch
from torch import nn

from emblema.engine.generation import GenerateRequest
from emblema.engine.retrieval import Retrieval, RetrievingReply, question_of
from emblema.engine.tenant_store import StoreLike, find_tenant_store
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.library.dynamic import DynamicLibrary
from emblema.library.embedders import Embedder
from emblema.library.libraries import libraries_of
from emblema.library.static import StaticLibrary
from emblema.library.tenant_model import TenantModel
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.strategies.auto import bounded
from emblema.link.strategies.base import Strategy, strategy_name
from emblema.media import MediaLimits
from emblema.models.adapter import Adapter
from emblema.models.load import DeviceMap, load_model
from emblema.models.prepare import Preparer
from emblema.models.selfcheck import SelfCheck, selfcheck
from emblema.session.after_answer import make_media
from emblema.session.anchor import find_anchor
from emblema.session.chat_template import ChatTemplate
from emblema.session.decoding import Sampling, SamplingKnobs
from emblema.session.patch_worker import PatchWorker
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.prompt_reader import PromptLike, PromptPart
from emblema.session.replies import Piece, Reply, last_reply
from emblema.session.requests import LinkRequest, Prefill, SurvivorChoice
from emblema.session.session import DECODE_RESERVE, Session
from emblema.session.turn_tokenizer import TurnTokenizer
from emblema.session.warm_parts import behind_text, find_warm_parts
from emblema.store.record import Terms
from emblema.store.settings import StoreSettings
from emblema.store.store import Store, TenantStore
from emblema.store.warm_parts import WarmParts
from emblema.stream.method import Method
from emblema.stream.settings import StreamSettings, change_settings
from emblema.stream.stream import Stream
from emblema.window.budget import WindowBudget
from emblema.window.staleness import Cascade
from emblema.window.window import Window


class Engine:
    """A model with a store of chunks. One thread owns a model; an engine keeps no state on it.

    Args:
        model: a transformers vision-language model in memory.
        processor: its processor, or anything with an `image_processor` and a `tokenizer`; without one only prompts of
            token ids can be prefilled.
        store: where chunks live: a store, one tenant's store, or a folder to keep them in; in memory by default.
        limits: bounds on media from outside.
        salt: the tenant's secret; ids made under different salts never meet. A tenant's store has its own.
        policy: bounds for `auto`, and for what it does after the answers.
        anchor: token ids that chunks are prefilled after; None for what the chat template begins a prompt with.

    Attributes:
        session: the tenant's session: reads, links and decodes.
        selfcheck: what the model was checked for.

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
        policy: Policy | None = None,
        anchor: Sequence[int] | None = None,
    ) -> None:
        preparer = None if processor is None else Preparer(processor, model.config)
        adapter = Adapter(model, find_anchor(preparer) if anchor is None else anchor)
        self.selfcheck: SelfCheck = selfcheck(adapter)
        self._own_store = None
        if store is None or isinstance(store, str | Path):
            layer_devices = adapter.devices if adapter.sharded else ()
            self._own_store = Store(store, settings=StoreSettings(device=adapter.device, layer_devices=layer_devices))
        self.session = Session(
            adapter,
            find_tenant_store(store if self._own_store is None else self._own_store, salt, adapter.device),
            preparer,
            limits or MediaLimits(),
            policy or Policy(),
            PatchWorker(),
        )

    @classmethod
    def load(
        cls,
        name: str | Path = "reference",
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: DeviceMap | None = None,
        max_memory: Mapping[int | str, int | str] | None = None,
        store: StoreLike | None = None,
        limits: MediaLimits | None = None,
        salt: bytes = b"",
        policy: Policy | None = None,
        anchor: Sequence[int] | None = None,
    ) -> Self:
        """Return an engine on a bundled model (`reference`) or a pretrained one, a Hugging Face id, or a folder.

        With `device_map="auto"` the layers of a model that is too large for one GPU are shared out over several, and
        each layer's rows are where it is; see `load_model`.

        Raises:
            ModelError: the model cannot be loaded, or is not supported.
        """
        model, processor = load_model(name, device, dtype, device_map, max_memory)
        return cls(model, processor, store=store, limits=limits, salt=salt, policy=policy, anchor=anchor)

    def on(self, store: Store | TenantStore) -> Self:
        """Return an engine on the same model for another tenant, to be used from the same thread.

        Raises:
            EmblemaError: this is no store.
        """
        other = copy(self)
        other._own_store = None
        other.__dict__.pop("files", None)
        other.session = self.session.on(find_tenant_store(store, b"", self.adapter.device))
        return other

    @property
    def adapter(self) -> Adapter:
        """The model."""
        return self.session.adapter

    @property
    def store(self) -> TenantStore:
        """The tenant's store."""
        return self.session.store

    @property
    def policy(self) -> Policy:
        """Bounds for `auto`."""
        return self.session.policy_runtime.policy

    @property
    def policy_runtime(self) -> PolicyRuntime:
        """What `auto` has measured for this tenant, and its counters."""
        return self.session.policy_runtime

    @property
    def processor(self) -> Any:
        """The model's processor; ModelError if the model came without one."""
        return self.session.chunk_builder.preparer.processor

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; ModelError if the model came without one."""
        return self.session.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template; ModelError if the model came without a processor."""
        return self.session.prompt_reader.template

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a reply."""
        return self.session.end_tokens

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
        """Encode and prefill a piece of media once; it is found again by its content next time.

        Args:
            source: path, bytes, URL or file object of a picture, video, PDF or recording; a PIL picture, array or
                tensor, or a list of them for a clip; or a piece that `encode` made, which is only prefilled.
            kind: `image`, `video`, `document` or `audio`; recognised by its content if left out.
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
        builder = self.session.chunk_builder
        if text is not None:
            return builder.add(builder.prepare_text(self.session.prompt_reader.passage(text)), terms)
        if isinstance(source, EncodedChunk):
            return builder.build(builder.encoded(source), terms)
        return builder.add(builder.prepare(source, kind=kind, fps=fps, frames_per_segment=frames_per_segment), terms)

    def encode(
        self, source: Any, *, kind: str | None = None, fps: float = 1.0, frames_per_segment: int = 2
    ) -> tuple[EncodedChunk, ...]:
        """Run the encoder alone and return a piece for each chunk; `add` takes each of them back later.

        Raises:
            MediaError: as `add`.
        """
        builder = self.session.chunk_builder
        return builder.encode(builder.prepare(source, kind=kind, fps=fps, frames_per_segment=frames_per_segment))

    @cached_property
    def files(self) -> StaticLibrary:
        """The tenant's own files: `add`, `list`, `delete`, and by name a part of a prompt; see `StaticLibrary`."""
        return StaticLibrary(libraries_of(self.store.parent), self._tenant_model)

    def collection(self, name: str, embedder: Embedder | None = None) -> DynamicLibrary:
        """Return a reference collection of the shared library; an engine on `store.shared` may change it.

        Args:
            name: of the collection.
            embedder: how its chunks are searched for; by default in the model's own attention space.

        Raises:
            StoreError: this is no name.
        """
        return DynamicLibrary(libraries_of(self.store.parent), name, self._tenant_model, embedder)

    @property
    def collections(self) -> tuple[str, ...]:
        """Names of the shared library's collections that hold anything."""
        return DynamicLibrary.names(libraries_of(self.store.parent), self._tenant_model)

    @property
    def _tenant_model(self) -> TenantModel:
        return TenantModel(self.store, self.adapter, self.add, self.session.prompt_reader.passage, self.warm)

    @property
    def order_strategy(self) -> str:
        """The strategy that forms every patch of a prompt's order, at the policy's share of the bytes."""
        return f"patch-{100 * self.policy.share:g}%"

    def warm(self, parts: Sequence[PromptPart]) -> WarmParts:
        """Make parts ready for questions that show them in this order: their rows, and a patch for each.

        Takes a prefill and the forming of the patches, and returns when they are in the store. They may be evicted
        like any other; a library's `keep_order` pins them.

        Args:
            parts: text, chunks and clips. A prompt takes the patches wherever the chunks stand in this order.

        Raises:
            PromptError: the parts are longer than the model's context.
        """
        prompt = self.prefill(parts, policy=replace(self.policy, forming_seconds=None), keep=True).prompt
        self.settle()
        # Where an earlier prompt was taken as a prefix nothing was computed, and nothing formed.
        parts = behind_text(parts, prompt, self.adapter.anchor)
        return find_warm_parts(self.store, self.prefill(parts, self.order_strategy).prompt)

    def prompt(self, parts: PromptLike, *, template: bool = True) -> Prompt:
        """Return a prompt as rows, from parts (one user turn) or messages in OpenAI's form; its media are added.

        Raises:
            PromptError: the prompt is empty or longer than the model's context.
        """
        return self.session.read(parts, template)

    def prefill(
        self,
        parts: PromptLike,
        strategy: str | Strategy = "auto",
        *,
        template: bool = True,
        reserve: int = 0,
        policy: Policy | None = None,
        keep: bool = False,
        survivors: SurvivorChoice = "drop",
    ) -> Prefill:
        """Link a prompt: every row is computed or taken as the strategy says.

        Args:
            parts: text, token ids, chunks and clips, pictures and paths of media, and what `encode` made; or messages.
                Under `auto` media that the store does not know are encoded and computed in their place; seen again,
                they are added to it after the answer. Other strategies add them first.
            strategy: a strategy's name, such as `full` or `patch-25%`; see `emblema.link.strategies.registry`.
            template: wrap parts by the model's chat template.
            reserve: rows to keep room for after the prompt.
            policy: bounds for `auto`; the engine's by default.
            keep: this combination will come again: what `auto` does not know of it is computed in full, and prefix and
                patches are kept at once.
            survivors: `keep` takes the rows that an earlier request of the conversation had for its pictures, as a
                window does; they remember pictures that this request may not show. By default an answer depends only
                on what its request shows.

        Raises:
            PromptError, StrategyError: the prompt or the strategy's name is not right, or a chunk is another model's.
        """
        began = time.perf_counter()
        if not 0 <= reserve <= self.adapter.context_length:
            raise PromptError(
                f"reserve is {reserve}: it must lie between 0 and the context of {self.adapter.context_length}"
            )
        chosen = bounded(strategy, policy, self.policy if keep else None)
        prompt = self.session.read(parts, template, prefill_media=strategy_name(chosen) != "auto")
        request = LinkRequest(prompt, chosen, reserve, inline_media=True, survivors=survivors, began=began)
        prefill = self.session.link(request)
        self.session.after_answer()
        return prefill

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
        keep: bool = ...,
        survivors: SurvivorChoice = ...,
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
        keep: bool = ...,
        survivors: SurvivorChoice = ...,
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
        keep: bool = False,
        survivors: SurvivorChoice = "drop",
        **sampling: Unpack[SamplingKnobs],
    ) -> Reply | Iterator[Piece]:
        """Answer a prompt: prefill, then decode greedily or by sampling.

        Args:
            parts: parts of a prompt, or messages.
            strategy: a strategy's name.
            stream: return the pieces as they are made.
            template: wrap parts by the model's chat template.
            retrieval: answers requests that the model writes on the way: what is found is linked at the current
                position by the same strategy, and decoding goes on.
            policy: bounds for `auto`; the engine's by default.
            keep: this combination will come again; see `prefill`.
            survivors: `keep` takes rows of the conversation so far; see `prefill`.
            sampling: `max_new_tokens` (128), `temperature` (0: greedy), `top_p`, `stop`, `seed`; see `Sampling`.

        Returns:
            A reply, or with `stream=True` its pieces, the last of which holds the reply.

        Raises:
            PromptError, StrategyError: the prompt, a sampling knob or the strategy's name is not right.
        """
        chosen = bounded(strategy, policy, self.policy if keep else None)
        asked = GenerateRequest(parts, chosen, Sampling.of(**sampling), template, retrieval, survivors)
        steps = self.steps(asked)
        pieces = (piece for piece in steps if piece or piece.reply is not None)
        return pieces if stream else last_reply(pieces)

    def steps(self, request: GenerateRequest) -> Iterator[Piece]:
        """Answer as `generate` with `stream=True`, with a piece for every token; one without text yet is empty."""
        began = time.perf_counter()
        prefill = self.begin(request, began)
        if request.retrieval is None:
            pieces = self.session.decode(prefill, request.sampling, began)
        else:
            pieces = self.retrieving(prefill, request).pieces(began)
        return self._then_idle(pieces)

    def begin(self, request: GenerateRequest, began: float, reserve: int = DECODE_RESERVE) -> Prefill:
        """Link the prompt of a request, with room to decode after it. It is learnt from in `Session.after_answer`.

        Args:
            request: what is asked.
            began: `time.perf_counter` at the caller's call.
            reserve: rows to keep room for after the prompt; fewer where fewer can come.

        Raises:
            PromptError, StrategyError: the prompt or the strategy's name is not right.
        """
        session, most = self.session, request.sampling.max_new_tokens
        exact_media = strategy_name(request.strategy) != "auto"
        reserve, kept = min(most, reserve), request.survivors
        with session.adapter.weights.unchanging():
            prompt = session.read(request.parts, request.template, prefill_media=exact_media, tools=request.tools)
            session.refuse_without_room(prompt, 1 if request.shorten else most)
            link = LinkRequest(prompt, request.strategy, reserve, inline_media=True, survivors=kept, began=began)
            prefill = session.link(link, learn_later=True)
        return replace(prefill, remark=session.remark_on(request.parts, request.tools))

    def retrieving(self, prefill: Prefill, request: GenerateRequest) -> RetrievingReply:
        """Return a reply in which the model's own requests are answered.

        Raises:
            PromptError: the request has no retrieval.
        """
        if request.retrieval is None:
            raise PromptError("the request has no retrieval: name what the model may search")
        question, sampling = question_of(request.parts), request.sampling
        return RetrievingReply(self.session, prefill, request.strategy, sampling, request.retrieval, question)

    def _then_idle(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        yield from pieces
        self.session.after_answer()

    def window(
        self,
        *,
        budget: WindowBudget | None = None,
        system: str | None = None,
        template: bool = True,
        cascade: Cascade | None = None,
    ) -> Window:
        """Return a window on a growing context: append, slide, reorder and recall, fork, and ask; see `Window`.

        Args:
            budget: what it may hold.
            system: text before the user's turn.
            template: write parts as the model's chat template does; without it they are taken as they are.
            cascade: whose rows are formed again when what precedes them has changed; by default what the policy says:
                survivors keep theirs while those are trusted.

        Raises:
            CapacityError: the template's opening alone does not fit into the budget.
            PromptError: the template refuses the system turn.
        """
        tokenizer = TurnTokenizer(self.session.prompt_reader, template, system)
        return Window(self.session, tokenizer, budget or WindowBudget(), cascade)

    def stream(
        self,
        method: str | type[Method] = "mosaic",
        settings: StreamSettings | None = None,
        *,
        system: str | None = None,
        template: bool = True,
        **changes: Any,
    ) -> Stream:
        """Return a stream of frames to be asked at any time; see `Stream`.

        Args:
            method: how frames that leave the window are remembered: `mosaic`, `mosaic-paper`, or a class of your own.
            settings: how much is seen and kept.
            system: text before the user's turn.
            template: write the turn as the model's chat template does; without it the question is taken as it is.
            changes: single settings by name, such as `budget=32`.

        Raises:
            StreamError: there is no such method or setting.
            UnsupportedModelError: the model's layers cannot read a memory, or are on several devices.
            PromptError: the template refuses the system turn.
        """
        chosen = change_settings(settings or StreamSettings(), changes)
        return Stream(self.session, method, chosen, template, system)

    def load_stream(self, name: str, *, system: str | None = None, template: bool = True) -> Stream:
        """Load a stream that `Stream.save` wrote to this engine's folder; it goes on as it was.

        Raises:
            StreamError: there is none of that name, or it was another model's or another template's.
            StoreError: it is damaged.
        """
        return Stream.load(self.session, name, template, system)

    def forget_prompts(self) -> None:
        """Forget what was kept of earlier prompts for `prefix`; chunks and patches stay."""
        self.session.linker.forget_prompts()

    def defer_idle(self, deferred: bool) -> None:
        """Leave the idle work to a caller of `idle`, or (False) do it after each answer."""
        self.session.defer_idle(deferred)

    def idle(self) -> None:
        """Do the idle work, on the thread that owns the model: make chunks of seen media, and compare an answer."""
        self.session.idle()

    def make_media(self) -> None:
        """Do of the idle work what requests that wait gain from: make chunks of media that came a second time."""
        make_media(self.policy_runtime)

    def settle(self) -> None:
        """Do the idle work, and wait until the queued patches are formed."""
        self.idle()
        self.policy_runtime.patch_worker.settle()

    def close(self) -> None:
        """Drop the kept prompts, and flush and close a store that the engine opened itself.

        Queued patches are formed first. The model, and a store that was handed in, stay the caller's.
        """
        self.policy_runtime.patch_worker.close(self.store if self._own_store is None else None)
        self.forget_prompts()
        # A store in memory alone has nothing to write and nothing to end.
        if self._own_store is not None and self._own_store.disk is not None:
            self._own_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
