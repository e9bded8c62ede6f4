"""One tenant's session on one model: what the engine, windows and streams are built on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from emblema.errors import ContextLengthError
from emblema.kv.chunk import EncodedChunk
from emblema.link.kept_rows import TEXT
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, Segment
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy, strategy_name
from emblema.link.strategies.query import QueryStrategy
from emblema.link.strategies.registry import parse
from emblema.media import MediaLimits
from emblema.media.given import GivenMedia
from emblema.models.adapter import Adapter
from emblema.models.decode_steps import step_recorder
from emblema.models.prepare import Preparer
from emblema.session.after_answer import do_idle_work
from emblema.session.chunk_builder import ChunkBuilder
from emblema.session.conversation_rows import ConversationRows
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.session.linker import Linker
from emblema.session.patch_worker import PatchWorker
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.prompt_reader import MediaReader, PromptLike, PromptReader
from emblema.session.replies import Piece, ReplyText, ReplyWriter
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.solo_decoding import SoloDecoding
from emblema.session.tool_calls import texts_in
from emblema.session.vocabulary import ClosedVocabulary, closed_vocabulary, texts_of
from emblema.store.store import TenantStore

DECODE_RESERVE = 256
"""Rows that a table keeps room for after the prompt before it has to grow."""


class Session:
    """Reads prompts, links them and decodes replies, for one tenant and one model.

    One thread owns the model, and with it all sessions on it.

    Args:
        adapter: the model.
        store: the tenant's store.
        preparer: prepares media for the encoder; None for a model that came without a processor.
        limits: bounds on media from outside.
        policy: bounds for `auto`.
        patch_worker, solo: shared by all sessions on the model.

    Attributes:
        adapter: the model.
        store: the tenant's store.
        limits: bounds on media from outside.
        chunk_builder: makes chunks of media.
        prompt_reader: reads parts and messages.
        linker: links prompts.
        policy_runtime: what `auto` decides by, and what was measured.
        conversations: rows of conversations that asked for them.
    """

    def __init__(
        self,
        adapter: Adapter,
        store: TenantStore,
        preparer: Preparer | None,
        limits: MediaLimits,
        policy: Policy,
        patch_worker: PatchWorker,
        solo: SoloDecoding | None = None,
    ) -> None:
        self.adapter, self.store, self.limits = adapter, store, limits
        self._solo = solo or SoloDecoding(adapter, None if adapter.sharded else step_recorder(adapter.device))
        self._preparer = preparer
        self._defer_idle = False
        self.chunk_builder = ChunkBuilder(adapter, preparer, store, limits, policy.changed, policy.changed_bytes)
        self.prompt_reader = PromptReader(preparer, limits.text_bytes)
        self.policy_runtime = PolicyRuntime(adapter, store, policy, patch_worker)
        self.linker = Linker(adapter, store, self.policy_runtime)
        self.conversations = ConversationRows(adapter, store)

    def on(self, store: TenantStore) -> "Session":
        """Return a session of another tenant on the same model."""
        runtime = self.policy_runtime
        other = Session(
            self.adapter, store, self._preparer, self.limits, runtime.policy, runtime.patch_worker,
            self._solo,
        )  # fmt: skip
        other.defer_idle(self._defer_idle)
        return other

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; ModelError if the model came without one."""
        return self.chunk_builder.preparer.tokenizer

    @cached_property
    def _vocabulary(self) -> ClosedVocabulary | None:
        return None if self._preparer is None else closed_vocabulary(self._preparer.tokenizer)

    def remark_on(self, prompt: PromptLike, tools: Sequence[Mapping[str, Any]] = ()) -> str | None:
        """Return what a reply says of a prompt's texts: the words that the model does not know; None for nothing."""
        return None if self._vocabulary is None else self._vocabulary.remark([*texts_of(prompt), *texts_in(tools)])

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a reply: those of the generation configuration, else the tokenizer's."""
        configured = getattr(getattr(self.adapter.model, "generation_config", None), "eos_token_id", None)
        found = configured if configured is not None else self.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's KV, all layers together."""
        return sum(layout.features for layout in self.adapter.layouts) * self.adapter.dtype.itemsize

    def read(
        self,
        parts: PromptLike,
        template: bool = True,
        *,
        prefill_media: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Prompt:
        """Read what a caller gives as a prompt.

        Args:
            parts: parts of one user turn, or messages in OpenAI's form.
            template: wrap parts by the model's chat template.
            prefill_media: prefill media alone that the store does not know, as a strategy that takes canonical rows
                needs it; else the encoder alone runs for them, and they are computed in their place.
            tools: functions that messages may call, in OpenAI's form.

        Raises:
            PromptError: the prompt is empty or of another shape.
            ContextLengthError: it is longer than the model's context.
            MediaError: media cannot be read.
        """
        with self.adapter.weights.unchanging():
            return self.prompt_of(self.prompt_reader.parts(parts, template, self._media_reader(prefill_media), tools))

    def prompt_of(self, parts: Iterable[Part]) -> Prompt:
        """Lay parts out as a prompt.

        Raises:
            PromptError: the prompt is empty.
            ContextLengthError: it is longer than the model's context.
        """
        prompt = Prompt.of(parts, self.adapter.axes)
        longest = max(prompt.tokens, prompt.next_position)
        if longest > self.adapter.context_length:
            raise ContextLengthError(
                f"the prompt takes {longest} positions; the model's context holds {self.adapter.context_length}"
            )
        return prompt

    def refuse_without_room(self, prompt: Prompt, new_tokens: int) -> None:
        """Refuse a prompt after which so many tokens do not fit.

        Raises:
            ContextLengthError: the model's context has no room for them.
        """
        room = self.room_after(prompt)
        if new_tokens > room:
            context = self.adapter.context_length
            raise ContextLengthError(
                f"a reply of up to {new_tokens} tokens is asked for, but after the prompt the model's context of "
                f"{context} has room for {room}: ask for fewer, or shorten the prompt"
            )

    def room_after(self, prompt: Prompt) -> int:
        """Return how many tokens fit after a prompt."""
        return self.adapter.context_length - max(prompt.tokens, prompt.next_position)

    def link(self, request: LinkRequest, *, learn_later: bool = False) -> Prefill:
        """Link a prompt, with the rows of its conversation where it asks for survivors; see `Linker.link`.

        With `learn_later` it is learnt from in `after_answer`, or when the next prompt is linked.
        """
        exact = strategy_name(request.strategy) in ("full", "prefix")
        if request.survivors == "drop" or exact or request.table is not None:
            return self.linker.link(request, learn_later=learn_later)
        kinds = {TEXT, *(part.chunk.kind for part in request.prompt.chunk_parts)}
        trusted = frozenset(kind for kind in kinds if self.trusts(kind, Lane.SURVIVOR, request.strategy))
        prompt, strategy = self.conversations.place(request.prompt, trusted), request.strategy
        strategy = parse(strategy) if isinstance(strategy, str) else strategy
        strategy = replace(strategy, kept=True) if isinstance(strategy, QueryStrategy | Auto) else strategy
        if not isinstance(strategy, Auto):
            # What is new is computed after what was kept; canonical rows have seen nothing of it.
            prompt = prompt.map_chunks(_computed_in_place)
        placed = replace(request, prompt=prompt, strategy=strategy)
        prefill = self.linker.link(placed, learn_later=learn_later)
        self.conversations.keep(prefill)
        return prefill

    def decode(self, prefill: Prefill, sampling: Sampling, began: float) -> Iterator[Piece]:
        """Make the first token after a prefill, and return the reply's pieces, one for every token.

        A piece that shows no text yet is empty; the last piece holds the reply.

        Args:
            prefill: a linked prompt.
            sampling: how tokens are chosen.
            began: `time.perf_counter` at the caller's call, for the time to first token.
        """
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        tokens = self._solo.tokens(start, Sampler(sampling), self.end_tokens)
        return self.writer(prefill, sampling, began).pieces(tokens)

    def writer(self, prefill: Prefill, sampling: Sampling, began: float) -> ReplyWriter:
        """Return what writes the reply after a prefill; arguments as for `decode`."""
        text = ReplyText(self.tokenizer, self.end_tokens, sampling)
        return ReplyWriter(text, prefill, began)

    def trusts(self, kind: str, lane: Lane, strategy: str | Strategy) -> bool:
        """Return whether a strategy may take a kind of content by a lane.

        `auto` asks what was measured of the lane, under its bounds; any other strategy takes what there is.
        """
        if strategy_name(strategy) != "auto":
            return True
        return self.policy_runtime.trusts(kind, lane, strategy.policy if isinstance(strategy, Auto) else None)

    def defer_idle(self, deferred: bool) -> None:
        """Leave the idle work to a caller of `idle`, or (False) do it after each answer."""
        self._defer_idle = deferred

    def after_answer(self) -> None:
        """Learn from the prompt, and do the idle work unless it is left to the caller."""
        self.linker.catch_up()
        if not self._defer_idle:
            self.idle()

    def idle(self) -> None:
        """Do the idle work, on the thread that owns the model: make chunks of seen media, and compare an answer."""
        do_idle_work(
            self.policy_runtime,
            lambda prompt, strategy: self.linker.link(LinkRequest(prompt, strategy, compared=True)),
        )

    def _media_reader(self, prefill_media: bool) -> MediaReader:
        """Return a reader of one prompt's media; a piece that occurs twice is made once."""
        builder = self.chunk_builder
        made: dict[str, ChunkPart] = {}

        def read(item: GivenMedia) -> Sequence[ChunkPart]:
            if isinstance(item.source, EncodedChunk):
                item.settings.refuse_all("media that are encoded")
                return [builder.part_of(builder.encoded(item.source))]
            pending = builder.prepare(item.source, kind=item.kind, settings=item.settings).chunks
            for chunk in pending:
                if chunk.ids[0] not in made:
                    made[chunk.ids[0]] = ChunkPart(builder.build(chunk)) if prefill_media else builder.part_of(chunk)
                if builder.pictures.is_alike(chunk.ids[0]):
                    # The next one like it finds this one stored.
                    self.policy_runtime.new_media.expect(chunk.ids[0])
            parts = [made[chunk.ids[0]] for chunk in pending]
            # Rows on a slower tier are loaded while the prompt's next media are encoded and prefilled.
            self.store.prefetch(part.chunk.id for part in parts if part.state is RowState.CANONICAL)
            return parts

        return read


def _computed_in_place(segment: Segment, part: ChunkPart) -> ChunkPart:
    """Return a part whose canonical rows are not taken."""
    return replace(part, state=RowState.MISSING) if part.state is RowState.CANONICAL and not part.slid else part
