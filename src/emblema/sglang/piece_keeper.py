"""What is made of computed rows, behind the model: a thread of its own stores chunks and forms patches."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.host_copies import PendingCopies
from emblema.link.prompt import Prompt
from emblema.plugin.copied_rows import CopiedRows, layers_of
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.patch_forming import form_prompt_patches
from emblema.plugin.request_plan import PatchNeed
from emblema.plugin.work_thread import WorkThread
from emblema.store import Store

WAITING_PROMPTS = 16
WAITING_BYTES = 256 * 2**20
"""Rows that may wait to be stored or formed into patches. A piece that alone is larger waits alone."""


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
    copied: dict[int, PendingCopies]
    size: int


class PieceKeeper:
    """Stores chunks and forms patches, one after another.

    Args:
        spec: of the model.
        store: where they are kept.

    Attributes:
        dropped: chunks and prompts that were not kept for want of room.
    """

    def __init__(self, spec: ModelSpec, store: Store) -> None:
        self._spec, self._store = spec.on(torch.device("cpu")), store
        self.dropped = 0
        self._waiting_bytes = 0
        self._changed = threading.Lock()
        # Of the thread: prompts whose chunks are not all stored yet.
        self._prompts: deque[ComputedPrompt] = deque()
        self._thread = WorkThread("emblema-keep", "a piece could not be kept")

    def take_room(self, size: int) -> bool:
        """Count rows that are to be copied; False where too many wait."""
        with self._changed:
            room = self._waiting_bytes == 0 or self._waiting_bytes + size <= WAITING_BYTES
            self._waiting_bytes += size if room else 0
            self.dropped += not room
        return room

    def keep_chunk(self, salt: bytes, chunk: Chunk, rows: PendingCopies, encoding: Tensor | None, size: int) -> None:
        """Store a chunk with its rows, for which room was taken, and with what the encoder made of it."""
        self._thread.put(partial(self._keep_chunk, salt, chunk, rows, encoding, size))

    def form_patches(self, prompt: ComputedPrompt) -> None:
        """Form the patches of a prompt once its chunks are stored; room was taken for its rows."""
        self._thread.put(partial(self._await_chunks, prompt))

    def forget(self, salt: bytes, chunks: Sequence[str]) -> None:
        """Delete chunks once what was given before is stored, and form no patch of a prompt that waits for one."""
        self._thread.put(partial(self._forget, salt, frozenset(chunks)))

    def drain(self) -> None:
        """Wait until all that was given so far is stored, or waits for chunks."""
        self._thread.drain()

    def close(self) -> None:
        """Store what was given, and end the thread."""
        self._thread.close()

    # the thread

    def _leave(self, size: int) -> None:
        with self._changed:
            self._waiting_bytes -= size

    def _keep_chunk(self, salt: bytes, chunk: Chunk, rows: PendingCopies, encoding: Tensor | None, size: int) -> None:
        try:
            encoded = chunk.encoded
            if encoding is not None and encoding.dim() == 2 and len(encoding) == int(encoded.visual.sum()):
                embeds = torch.zeros(encoded.tokens, encoding.shape[1], dtype=self._spec.dtype)
                embeds[encoded.visual] = encoding.to("cpu", self._spec.dtype)
                encoded = replace(encoded, embeds=embeds)
            self._store.tenant(salt).put(replace(chunk, encoded=encoded, rows=layers_of(rows)))
        finally:
            self._leave(size)
        self._form_ready()

    def _await_chunks(self, prompt: ComputedPrompt) -> None:
        self._prompts.append(prompt)
        if len(self._prompts) > WAITING_PROMPTS:
            self._leave(self._prompts.popleft().size)
            self.dropped += 1
        self._form_ready()

    def _forget(self, salt: bytes, chunks: frozenset[str]) -> None:
        waiting, self._prompts = self._prompts, deque()
        for prompt in waiting:
            if prompt.salt == salt and chunks & {chunk.id for _, chunk in prompt.prompt.chunk_segments}:
                self._leave(prompt.size)
            else:
                self._prompts.append(prompt)
        store = self._store.tenant(salt)
        for chunk in chunks:
            store.delete(chunk)

    def _form_ready(self) -> None:
        """Form the patches of prompts whose chunks are all stored by now; the others wait."""
        waiting, self._prompts = self._prompts, deque()
        for prompt in waiting:
            store = self._store.tenant(prompt.salt)
            names = {chunk.id for _, chunk in prompt.prompt.chunk_segments}
            if names - store.held(names).keys():
                self._prompts.append(prompt)
                continue
            try:
                copied = {start: CopiedRows(start, layers_of(rows)) for start, rows in prompt.copied.items()}
                form_prompt_patches(self._spec, prompt.prompt, prompt.needs, copied, store)
            finally:
                self._leave(prompt.size)
