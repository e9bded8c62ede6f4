"""Chunks and patches made of rows that an engine computed: a thread behind the model stores and forms them."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from emblema.errors import LoadError
from emblema.kv.chunk import Chunk
from emblema.kv.device_copies import HostCopier, PendingCopies
from emblema.kv.layout import LayerRows
from emblema.kv.patch import form_patch
from emblema.link.forming import deficits_of
from emblema.link.prompt import Prompt, Segment
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import PatchNeed
from emblema.served.shards import ShardStore, TenantShards
from emblema.served.work_thread import WorkThread
from emblema.store.store import TenantStore

WAITING_PROMPTS = 16
WAITING_BYTES = 256 * 2**20
"""Rows that may wait to be stored or formed into patches. A piece that alone is larger waits alone."""


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of one chunk in its prompt, copied from pages; `read` counts rows from the prompt's start, as a table's."""

    start: int
    layers: tuple[LayerRows, ...]

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows:
        rows = self.layers[layer]
        return rows.slice(start - self.start, rows.tokens if stop is None else stop - self.start)


@dataclass(frozen=True, slots=True)
class ComputedPrompt:
    """A prompt that was computed plainly, of whose rows patches are formed.

    Attributes:
        salt: of the tenant's store.
        prompt: it.
        needs: the patches.
        copied: rows of its chunks that have any, by where they start.
        size: bytes of these.
    """

    salt: bytes
    prompt: Prompt
    needs: tuple[PatchNeed, ...]
    copied: dict[int, CopiedRows]
    size: int

    @property
    def chunks(self) -> set[str]:
        """Ids of its chunks."""
        return {chunk.id for _, chunk in self.prompt.chunk_segments}


class PieceKeeper:
    """Stores chunks and forms patches, one after another; what finds no room to wait is dropped, and counted.

    Prompts that wait for their chunks make room for what is newer. All but the thread's work is for the model's thread.

    Args:
        spec: of the model, on its device.
        store: where this rank's shares are kept.
        copier: brings rows to the host; by default the one of the model's device.
        turn: each patch is formed within what it returns.

    Attributes:
        most: bytes of rows that may wait.
        held: bytes that wait now.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: ShardStore,
        copier: HostCopier | None = None,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        # Patches are formed in host memory, beside the model.
        self._spec, self._store, self._turn = spec.on(torch.device("cpu")), store, turn
        self._copier = copier or HostCopier.of(spec.device)
        self.most, self.held, self._dropped = WAITING_BYTES, 0, 0
        self._changed = threading.Lock()
        # Prompts whose chunks are not all stored yet; the thread appends, any thread may take the oldest away.
        self._prompts: deque[ComputedPrompt] = deque()
        self._thread = WorkThread("emblema-keep", "a piece could not be kept")

    def keep_chunk(
        self, salt: bytes, chunk: Chunk, read: Callable[[], Sequence[LayerRows]], encoding: Tensor | None
    ) -> None:
        """Store a chunk with its rows, as captured, and what the encoder made of it.

        Args:
            salt: of the tenant's store.
            chunk: ids and geometry.
            read: returns copies of its rows, by layer.
            encoding: [media tokens, width]; None where it is not kept.
        """
        size = chunk.tokens * self._spec.row_bytes
        if self._take_room(size):
            with self._leaving_on_error(size):
                rows = self._copy(read())
                encoded = self._copier.copy(() if encoding is None else (encoding,))
            self._thread.put(partial(self._keep_chunk, salt, chunk, rows, encoded, size))

    def form_patches(
        self, salt: bytes, prompt: Prompt, needs: tuple[PatchNeed, ...], read: Callable[[Segment], Sequence[LayerRows]]
    ) -> None:
        """Form patches of a prompt that was computed, once its chunks are stored.

        Args:
            salt: of the tenant's store.
            prompt: it.
            needs: the patches.
            read: returns copies of the rows of a chunk's segment, by layer.
        """
        wanted = {key.chunk for key, _, _ in needs}
        segments = [segment for segment, chunk in prompt.chunk_segments if chunk.id in wanted]
        size = self._spec.row_bytes * sum(segment.stop - segment.start for segment in segments)
        if self._take_room(size):
            with self._leaving_on_error(size):
                copied = {segment.start: self._copy(read(segment)) for segment in segments}
            self._thread.put(partial(self._await_chunks, salt, prompt, needs, copied, size))

    def forget(self, salt: bytes, chunks: Iterable[str]) -> None:
        """Delete chunks once what was given before is stored, and form no patch of a prompt that waits for one."""
        self._thread.put(partial(self._forget, salt, frozenset(chunks)))

    def drop(self) -> None:
        """Count a piece that is not kept."""
        with self._changed:
            self._dropped += 1

    def take_dropped(self) -> int:
        """Return how many chunks and prompts were not kept for want of room since the last call."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
            return dropped

    def drain(self) -> None:
        """Wait until all that was given so far is stored, or waits for chunks."""
        self._thread.drain()

    def close(self) -> None:
        """Store what was given, and end the thread."""
        self._thread.close()

    def copy(self, layers: Sequence[LayerRows]) -> Callable[[], tuple[LayerRows, ...]]:
        """Begin to copy rows to the host; return what returns them there, for any thread."""
        return partial(layers_of, self._copy(layers))

    def copy_encoding(self, encoding: Tensor) -> Callable[[], Tensor]:
        """Begin to copy what the encoder made of a picture to the host; as `copy`."""
        copies = self._copier.copy((encoding,))
        return lambda: copies.take()[0]

    def _copy(self, layers: Sequence[LayerRows]) -> PendingCopies:
        """Return copies under way to the host: the keys of all layers, then the values of all."""
        return self._copier.copy([*(rows.keys for rows in layers), *(rows.values for rows in layers)])

    def _take_room(self, size: int) -> bool:
        """Count rows that are to be read, if there is room; the oldest prompts that wait for chunks make it."""
        while True:
            with self._changed:
                if not self.held or self.held + size <= self.most:
                    self.held += size
                    return True
            if not self._drop_oldest():
                self.drop()
                return False

    def _drop_oldest(self) -> bool:
        try:
            oldest = self._prompts.popleft()
        except IndexError:
            return False
        self._leave(oldest.size)
        self.drop()
        return True

    def _leave(self, size: int) -> None:
        with self._changed:
            self.held -= size

    @contextmanager
    def _leaving_on_error(self, size: int) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._leave(size)
            raise

    # the thread

    def _keep_chunk(self, salt: bytes, chunk: Chunk, rows: PendingCopies, encoding: PendingCopies, size: int) -> None:
        try:
            encoded = chunk.encoded
            output = next(iter(encoding.take()), torch.empty(0))
            fits = output.dim() == 2 and len(output) == int(encoded.visual.sum()) and output.dtype == self._spec.dtype
            if fits:
                embeds = torch.zeros(encoded.tokens, output.shape[1], dtype=output.dtype)
                embeds[encoded.visual] = output
                encoded = replace(encoded, embeds=embeds)
            canonical = self._spec.canonical(layers_of(rows), encoded.positions)
            self._store.tenant(salt).put(replace(chunk, encoded=encoded, rows=canonical))
        finally:
            self._leave(size)
        self._form_ready()

    def _await_chunks(
        self, salt: bytes, prompt: Prompt, needs: tuple[PatchNeed, ...], copied: dict[int, PendingCopies], size: int
    ) -> None:
        with self._leaving_on_error(size):
            rows = {start: CopiedRows(start, layers_of(pending)) for start, pending in copied.items()}
        self._prompts.append(ComputedPrompt(salt, prompt, needs, rows, size))
        if len(self._prompts) > WAITING_PROMPTS:
            self._drop_oldest()
        self._form_ready()

    def _forget(self, salt: bytes, chunks: frozenset[str]) -> None:
        for prompt in self._take_waiting():
            if prompt.salt == salt and chunks & prompt.chunks:
                self._leave(prompt.size)
            else:
                self._prompts.append(prompt)
        store = self._store.tenant(salt)
        for chunk in chunks:
            store.delete(chunk)

    def _form_ready(self) -> None:
        """Form the patches of prompts whose chunks are all stored by now; the others wait."""
        for prompt in self._take_waiting():
            store = self._store.tenant(prompt.salt)
            if prompt.chunks - store.held(prompt.chunks).keys():
                self._prompts.append(prompt)
                continue
            try:
                form_prompt_patches(self._spec, prompt.prompt, prompt.needs, prompt.copied, store, self._turn)
            finally:
                self._leave(prompt.size)

    def _take_waiting(self) -> Iterator[ComputedPrompt]:
        """Yield each prompt that waits now, taken away; fewer where the model's thread takes some meanwhile."""
        for _ in range(len(self._prompts)):
            try:
                yield self._prompts.popleft()
            except IndexError:
                return


def layers_of(pending: PendingCopies) -> tuple[LayerRows, ...]:
    """Return every layer's rows when they are in host memory."""
    copies = pending.take()
    half = len(copies) // 2
    return tuple(LayerRows(keys, values) for keys, values in zip(copies[:half], copies[half:], strict=True))


def form_prompt_patches(
    spec: ModelSpec,
    prompt: Prompt,
    needs: Iterable[PatchNeed],
    copied: Mapping[int, CopiedRows],
    store: TenantStore | TenantShards,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Form patches of a prompt's chunks and keep them; a need that no chunk of the prompt has is left out.

    Args:
        spec: of the model, where the rows are.
        prompt: it.
        needs: the patches.
        copied: rows of the chunks in the prompt, by where they start.
        store: has the chunks' own rows, and keeps the patches.
        turn: each patch is formed within what it returns.

    Raises:
        LoadError: the store has a chunk no more; patches before it are kept.
    """
    places: dict[tuple[str, tuple[str, ...]], Segment] = {}
    for segment, chunk in prompt.chunk_segments:
        places.setdefault((chunk.id, prompt.antecedents(segment)), segment)
    for key, rank, layers in needs:
        place = places.get((key.chunk, key.antecedents))
        if place is None:
            continue
        with turn(), store.lease([key.chunk]) as lease:
            if lease.missing:
                raise LoadError(key.chunk, "it is not in the store any more")
            deficits = deficits_of(spec, copied[place.start], prompt, place, lease.rows[key.chunk], set(layers))
            store.put_artifact(key, form_patch(deficits, rank, spec.dtype))
