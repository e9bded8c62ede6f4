"""Rows of a tenant's latest prompts that workers hold, for requests that go on with a conversation and ask for them.

The scheduler's side knows what is kept, and sets it into prompts; the workers hold the rows, each those of its heads.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import KVRows, LayerRows
from emblema.link.kept_rows import TEXT, KeptConversation, KeptRows, PromptRun, new_id, place_kept, runs_of
from emblema.link.prompt import Prompt
from emblema.models.positions import chunk_positions
from emblema.served.model_spec import ModelSpec

MOST_PROMPTS = 64
MOST_BYTES = 2**30
"""Of rows, and of what the encoder made of pictures, that workers keep at most, all ranks together."""
MOST_FREE = 64
"""Pictures of prompts whose rows are not kept yet, of which a worker holds what the encoder made."""


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """Rows of a kept prompt: its name, and the first and the end of them."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KeepOrder:
    """A prompt whose rows are to be kept.

    Attributes:
        name: by which they are kept.
        blocks: the pages that they are in, in order.
        rows: how many.
        pictures: ids of its pictures' chunks, with the engine's name of the picture before each; what the encoder made
            of them is kept as long.
    """

    name: str
    blocks: tuple[int, ...]
    rows: int
    pictures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _KeptPrompt:
    """What is known of a prompt that is kept: its tenant's salt, its parts, and its rows' bytes."""

    salt: bytes
    conversation: KeptConversation
    bytes: int


class KeptPromptIndex:
    """Knows which prompts workers hold the rows of. Any thread may use it.

    Args:
        spec: of the model.
        most_bytes: of rows that are held at most.
    """

    def __init__(self, spec: ModelSpec, most_bytes: int = MOST_BYTES) -> None:
        self._spec, self._most_bytes = spec, most_bytes
        self._lock = threading.Lock()
        self._prompts: OrderedDict[str, _KeptPrompt] = OrderedDict()

    def place(
        self, salt: bytes, prompt: Prompt, trusted: frozenset[str], deleted: Callable[[frozenset[str]], frozenset[str]]
    ) -> tuple[Prompt, dict[str, KeptSpan]]:
        """Return a prompt with what is kept of its conversation, and where that is, by the ids of its pieces.

        Args:
            salt: of the tenant's store.
            prompt: what is asked.
            trusted: kinds of content whose rows may be taken after other pictures.
            deleted: returns which of some chunks the tenant has deleted; nothing that absorbed them is taken.
        """
        with self._lock:
            name = self._nearest(salt, prompt)
            kept = None if name is None else self._prompts[name].conversation
        if name is None or kept is None:
            return prompt, {}
        gone = deleted(kept.absorbed)
        placed, used = place_kept(prompt, kept.without(gone), trusted)
        spans = {id: KeptSpan(name, own.first, own.first + own.piece.tokens) for id, own in used.items()}
        return placed, spans

    def keep(self, salt: bytes, prompt: Prompt) -> tuple[str | None, tuple[str, ...]]:
        """Name a prompt that is kept from now on, in place of the one that it goes on with.

        Args:
            salt: of the tenant's store.
            prompt: it, with what was taken of its conversation in its place.

        Returns:
            The name, None where its rows are too many; and the names of prompts that are kept no longer.
        """
        shown = sum(int(chunk.encoded.visual.sum()) for _, chunk in prompt.chunk_segments)
        size = (prompt.tokens * self._spec.row_bytes + shown * self._spec.encoding_bytes) * self._spec.shards
        conversation = self._conversation(prompt)
        if not conversation.pictures or size > self._most_bytes:
            return None, ()
        with self._lock:
            before, name = self._nearest(salt, prompt), new_id()
            dropped = [] if before is None else [before]
            if before is not None:
                conversation = replace(conversation, past=self._prompts.pop(before).conversation.absorbed)
            self._prompts[name] = _KeptPrompt(salt, conversation, size)
            while len(self._prompts) > MOST_PROMPTS or self._bytes > self._most_bytes:
                dropped.append(self._prompts.popitem(last=False)[0])
        return name, tuple(dropped)

    @property
    def _bytes(self) -> int:
        return sum(kept.bytes for kept in self._prompts.values())

    def _nearest(self, salt: bytes, prompt: Prompt) -> str | None:
        """Return the tenant's kept prompt with most of a prompt's pictures, the latest of several."""
        names = {part.name for part in prompt.chunk_parts if part.name}
        best, most = None, 0
        for name, kept in self._prompts.items():
            shared = len(names & kept.conversation.pictures.keys()) if kept.salt == salt else 0
            if shared and shared >= most:
                best, most = name, shared
        return best

    def _conversation(self, prompt: Prompt) -> KeptConversation:
        """Return a prompt's pictures and texts, without rows."""
        runs, pictures = list[tuple[str, KeptRows]](), dict[str, KeptRows]()
        for run in runs_of(prompt):
            if run.name in pictures:
                continue
            kind = TEXT if run.part is None else run.part.chunk.kind
            piece = Chunk(new_id(), kind, self._spec.fingerprint, self._encoded(prompt, run), (), base=run.position)
            own = {run.name} if run.name else set()
            earlier = (pictures[name].absorbed for name in run.antecedents if name in pictures)
            rows = KeptRows(piece, run.written_after, frozenset({*own, *run.antecedents}).union(*earlier), run.start)
            runs.append((run.name, rows))
            if run.name:
                pictures[run.name] = rows
        return KeptConversation(tuple(runs))

    def _encoded(self, prompt: Prompt, run: PromptRun) -> Encoded:
        """Return token ids and positions of a run, without embeddings."""
        if run.part is not None:
            return run.part.chunk.encoded
        tokens = run.stop - run.start
        positions, span = chunk_positions(tokens, self._spec.axes)
        none = torch.zeros(tokens, dtype=torch.bool)
        embeds = torch.empty(tokens, 0, dtype=self._spec.dtype)
        groups = torch.full((tokens,), -1, dtype=torch.int64)
        return Encoded(prompt.token_ids[run.start : run.stop], embeds, positions, span, none, (), groups)


class KeptPromptRows:
    """The rows of kept prompts that one worker holds in host memory, and what the encoder made of their pictures.

    Any thread may read them. What is held is given as functions that return it once it is in host memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, Callable[[], Sequence[LayerRows]]] = {}
        self._shown: dict[str, tuple[str, ...]] = {}
        # The latest at the end.
        self._encodings: dict[str, Callable[[], Tensor]] = {}

    def put(self, order: KeepOrder, rows: Callable[[], Sequence[LayerRows]]) -> None:
        """Hold the rows of a prompt."""
        with self._lock:
            self._rows[order.name], self._shown[order.name] = rows, tuple(chunk for _, chunk in order.pictures)
            self._let_go()

    def put_encoding(self, chunk: str, encoding: Callable[[], Tensor]) -> None:
        """Hold what the encoder made of a picture [media tokens, width], by its chunk's id."""
        with self._lock:
            self._encodings.pop(chunk, None)
            self._encodings[chunk] = encoding
            self._let_go()

    def has_encoding(self, chunk: str) -> bool:
        """Return whether what the encoder made of a picture is held."""
        with self._lock:
            return chunk in self._encodings

    def drop(self, names: Iterable[str]) -> None:
        """Let go of prompts."""
        with self._lock:
            for name in names:
                self._rows.pop(name, None)
                self._shown.pop(name, None)

    def encoding(self, chunk: str) -> Tensor | None:
        """Return what the encoder made of a picture; None where that is not held."""
        with self._lock:
            found = self._encodings.get(chunk)
        return None if found is None else found()

    def _let_go(self) -> None:
        """Let go of what the encoder made of pictures that no prompt here shows, but for the latest of them."""
        shown = {chunk for chunks in self._shown.values() for chunk in chunks}
        free = [chunk for chunk in self._encodings if chunk not in shown]
        for chunk in free[: max(0, len(free) - MOST_FREE)]:
            del self._encodings[chunk]

    def read(self, spans: Mapping[str, KeptSpan]) -> dict[str, KVRows]:
        """Return the rows of some spans, by the ids that they have here.

        Raises:
            LoadError: a prompt is not held any more.
        """
        found: dict[str, KVRows] = {}
        for id, span in spans.items():
            with self._lock:
                rows = self._rows.get(span.name)
            if rows is None:
                raise LoadError(span.name, "the conversation's rows are not held any more")
            found[id] = tuple(layer.slice(span.start, span.stop) for layer in rows())
        return found
