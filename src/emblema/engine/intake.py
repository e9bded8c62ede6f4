"""What an engine takes in: media, made into chunks once and kept in a store, files and collections."""

from copy import copy
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from emblema.engine.conversation import MediaReader
from emblema.engine.linker import Linker
from emblema.engine.reader import PromptReader
from emblema.engine.storing import StoreLike, open_store, shelf_of, view_of
from emblema.engine.upkeep.former import PatchWorker
from emblema.engine.upkeep.upkeep import PolicyRuntime
from emblema.engine.workshop import ChunkBuilder
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.library import DynamicLibrary, Embedder, Maker, StaticLibrary
from emblema.link.policy.costs import Costs
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, RowState
from emblema.media import MediaLimits
from emblema.models.adapter import Adapter
from emblema.models.load import load_model
from emblema.models.prepare import Preparer
from emblema.models.selfcheck import SelfCheck, selfcheck
from emblema.store.record import Terms
from emblema.store.store import Store
from emblema.store.tenant import TenantStore


class MediaEngine:
    """The half of an engine that holds the model and the store, and takes media in. See `Engine`."""

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        store: StoreLike | None = None,
        limits: MediaLimits | None = None,
        salt: bytes = b"",
        policy: Policy | None = None,
    ) -> None:
        self.adapter = Adapter(model)
        self.selfcheck: SelfCheck = selfcheck(self.adapter)
        self._own = open_store(store)
        # Set by whoever calls `idle` himself.
        self._served = False
        self._policy, self._former, self._costs = policy or Policy(), PatchWorker(), Costs()
        preparer = None if processor is None else Preparer(processor, self.adapter.model.config)
        self._furnish(view_of(store if self._own is None else self._own, salt), preparer, limits or MediaLimits())

    def _furnish(self, view: TenantStore, preparer: Preparer | None, limits: MediaLimits) -> None:
        self.store = view
        self._preparer, self._limits = preparer, limits
        self._workshop = ChunkBuilder(self.adapter, preparer, view, limits)
        self._reader = PromptReader(preparer)
        self._upkeep = PolicyRuntime(self.adapter, view, self._policy, self._former, self._costs)
        self._linker = Linker(self.adapter, view, self._upkeep)

    def on(self, store: Store | TenantStore) -> Self:
        """The same model for another tenant: an engine on that view, or on a store, to be used from the same thread.

        Raises:
            EmblemaError: this is no store.
        """
        other = copy(self)
        other._own = None
        other.__dict__.pop("files", None)
        other._furnish(view_of(store, b""), self._preparer, self._limits)
        return other

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
        policy: Policy | None = None,
    ) -> Self:
        """An engine on the bundled model (`reference`), a Hugging Face id, or a folder.

        Raises:
            ModelError: the model cannot be loaded, or is not supported.
        """
        model, processor = load_model(name, device=device, dtype=dtype)
        return cls(model, processor, store=store, limits=limits, salt=salt, policy=policy)

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

    @property
    def processor(self) -> Any:
        """The model's processor; ModelError if the model came without one."""
        return self._workshop.preparer.processor

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; ModelError if the model came without one."""
        return self._workshop.preparer.tokenizer

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

    def _media_reader(self, *, eager: bool) -> MediaReader:
        """Reads the media of one prompt.

        Args:
            eager: prefill alone what the store does not know, as a strategy that takes canonical rows has to; else the
                encoder alone runs for it, and it is computed where it stands.
        """
        held: dict[str, ChunkPart] = {}

        def read(source: Any, *, kind: str | None = None) -> list[ChunkPart]:
            if isinstance(source, EncodedChunk):
                return [self._workshop.part(source)]
            work = self._workshop.work(source, kind, fps=1.0, frames_per_segment=2)
            for draft in work.drafts:
                if draft.ids[0] not in held:
                    held[draft.ids[0]] = ChunkPart(self._workshop.made(draft)) if eager else self._workshop.laid(draft)
            parts = [held[draft.ids[0]] for draft in work.drafts]
            # What is on a slower tier comes while the next of the prompt's media are encoded and prefilled.
            self.store.prefetch(part.chunk.id for part in parts if part.state is RowState.CANONICAL)
            return parts

        return read

    def forget_prompts(self) -> None:
        """Forget what was kept of earlier prompts for `prefix`; chunks and patches stay."""
        self._linker.forget_prompts()

    @property
    def policy(self) -> PolicyRuntime:
        """What `auto` decides by for this tenant: bounds, measurements and counters; see `PolicyRuntime`."""
        return self._upkeep

    def idle(self) -> None:
        """Do what waits for a moment in which nobody waits for an answer; from the thread that owns the model."""
        self._linker.idle()

    def _rest(self) -> None:
        """Behind an answer; whoever serves several callers says himself when nobody waits."""
        if not self._served:
            self.idle()

    def settle(self) -> None:
        """Do what waits, until the patches of all that was computed in context so far are formed."""
        self.idle()
        self._former.settle()

    def close(self) -> None:
        """Give back what the engine alone holds: the kept prompts, and a store that it opened itself, made durable.

        Patches under way are formed first. The model, and a store that was handed in, stay the caller's.
        """
        self._former.close(self.store if self._own is None else None)
        self.forget_prompts()
        # A store in memory alone has nothing to write and nothing to end.
        if self._own is not None and self._own.disk is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
