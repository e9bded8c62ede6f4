"""The worker's side: rows go from the store into pages before a forward, chunks and patches into the store after it."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.chunk import Encoded
from emblema.kv.host_copies import HostCopier, PendingCopies
from emblema.plugin.copied_rows import CopiedRows, layers_of
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.patch_forming import form_prompt_patches
from emblema.plugin.shards import ShardStore
from emblema.plugin.staging import RowStager, StagingOrder
from emblema.plugin.stored_pairs import StoredPairs
from emblema.plugin.work_thread import WorkThread, log_failure
from emblema.vllm.pages import Pages
from emblema.vllm.pair_learner import PairLearner
from emblema.vllm.step_costs import StepWork
from emblema.vllm.step_metadata import ChunkCapture, PatchCapture, RowLoad, StepMetadata, WorkerReport
from emblema.vllm.waiting_rows import WaitingRows

_log = logging.getLogger(__name__)
WAITING_PROMPTS = 16
WAITING_BYTES = 256 * 2**20
"""Rows that may wait to be stored or formed into patches. A piece that alone is larger waits alone."""
IDLE_SECONDS, BURST_SECONDS = 0.05, 0.2
"""A worker without a step for so long is idle; the second where requests come densely."""
FORMING_SHARE = 0.05
"""Share of the time in which patches are formed while the worker is not idle, and the same to read rows for them
after steps of several requests."""
PRESSED_SECONDS = 2.0
"""For how long requests come densely before either is done beside them: a burst is over sooner."""
STAGING_SECONDS = 0.01
"""How long a step without rows waits for what it is to stage, and any step for encoder outputs that are under way."""


Agree = Callable[[list[bool]], list[bool]]
"""Returns which of some facts are so on all workers; all call it together."""


@dataclass(frozen=True, slots=True)
class WaitingPrompt:
    """A prompt that patches are formed of: its chunks' rows by where they start, and their bytes."""

    capture: PatchCapture
    copied: dict[int, CopiedRows]
    size: int


class KVWorker:
    """Loads and saves rows of one rank's pages. A thread of its own stores chunks and forms patches.

    At most `WAITING_BYTES` of rows wait for that thread: what does not fit is dropped, and counted. Patches are formed
    while the worker is idle, and else in a small share of the time.

    Args:
        spec: of this rank's model.
        store: where this rank's shares of chunks are.
        block_size: rows of a page.
        encoder_output: finds what the encoder made of a picture, by vLLM's digest of it; None where that is gone.
        pages: makes the pages; called when they are first needed, as the model's layers are ready only then.
        agree: see `Agree`.
        copier: brings rows to the host; by default the one of the model's device.

    Attributes:
        stopped: whether nothing is taken or kept any more.
        learner: learns pairs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: ShardStore,
        block_size: int,
        encoder_output: Callable[[str], Tensor | None],
        pages: Callable[[ModelSpec], Pages],
        agree: Agree = list,
        copier: HostCopier | None = None,
    ) -> None:
        self.store = store
        self._spec, self._block_size = spec, block_size
        self._make_pages, self._encoder_output = pages, encoder_output
        self._pages: Pages | None = None
        self.stopped = False
        self._agree = agree
        # Patches are formed in host memory, beside the model.
        self._host_spec, self._copier = spec.on(torch.device("cpu")), copier or HostCopier.of(spec.device)
        self.stager = RowStager(store, StoredPairs(store.whole, self._host_spec))
        self.learner = PairLearner(store.whole, self._host_spec, self._copier)
        self._report = WorkerReport()
        self.waiting = WaitingRows(WAITING_BYTES)
        # Prompts whose chunks are not all stored yet; the thread appends, any thread may take the oldest away.
        self._prompts: deque[WaitingPrompt] = deque()
        self._stepped, self._form_from, self._read_from, self._closing = 0.0, 0.0, 0.0, False
        self._pressed = False
        self._thread = WorkThread("emblema-keep", "a piece could not be kept")

    @property
    def spec(self) -> ModelSpec:
        """Of this rank's model."""
        return self._spec

    @property
    def pages(self) -> Pages:
        """The pages, measured."""
        if self._pages is None:
            self._pages = self._make_pages(self._spec)
        return self._pages

    def begin_step(self, step: StepMetadata) -> None:
        """Begin to stage what is ordered, let go of what is not wanted, and take chunks to prefill alone."""
        self._note(step)
        for request_id in step.dropped:
            self.stager.drop(request_id)
        if self.stopped:
            self._report.unstaged.update(order.number for order in step.stagings)
            return
        self.stager.stage([self._lacking(order) for order in step.stagings])
        if not step.computes and step.stagings:
            self.stager.wait(STAGING_SECONDS)

    def _lacking(self, order: StagingOrder) -> StagingOrder:
        """Return an order without the encoder outputs that the runner has, unless these may be gone when it is due."""
        if order.awaited:
            return order
        return replace(
            order, encodings=tuple(each for each in order.encodings if self._encoder_output(each[0]) is None)
        )

    def stop(self, reason: str) -> None:
        """Take and keep nothing from now on; what was read before is still stored."""
        self.learner.stop()
        if not self.stopped:
            _log.warning("emblema: nothing is linked or kept from here on: %s", reason)
        self.stopped = True
        self.stager.drop_all()

    def give_up(self, captures: Iterable[ChunkCapture]) -> None:
        """Report chunks as done with whose rows are not made."""
        self._report.captured.update({capture.chunk.id: 1 for capture in captures})

    @torch.inference_mode()
    def write(self, loads: Sequence[RowLoad], blocks: Mapping[str, Sequence[int]]) -> bool:
        """Write staged rows into pages, before the forward; return whether that was done, on all workers or on none.

        Args:
            loads: of the step.
            blocks: requests' pages, in order.
        """
        late = {load.request_id: load.first for load in loads if load.taken[0][0] < load.first}
        (written,) = self._agree([self._write(loads, blocks, {})])
        if not written:
            self._report.failed.update(load.request_id for load in loads)
        elif late:
            # These rows are there, computed, and nobody would compute them again: they are written when nothing fails.
            self._write([load for load in loads if load.request_id in late], blocks, late)
        return written

    def _write(self, loads: Sequence[RowLoad], blocks: Mapping[str, Sequence[int]], until: Mapping[str, int]) -> bool:
        """Write the taken rows of a step, or those before some row, by request; return whether that went well."""
        try:
            for load in loads:
                staged = self.stager.get(load.request_id)
                if staged is None:
                    raise EmblemaError(f"request {load.request_id} is to take rows that are not staged")
                stop = until.get(load.request_id)
                if stop is None:
                    taken = tuple((max(row, load.first), end) for row, end in load.taken if end > load.first)
                else:
                    taken = tuple((row, min(end, stop)) for row, end in load.taken if row < stop)
                if taken:
                    slots = self.pages.slots(blocks[load.request_id], staged.order.prompt.tokens)
                    staged.write(self._spec, self.pages, slots, taken)
        except Exception as error:
            # No error may end the server: the rows are computed.
            log_failure("rows could not be written and are computed", error)
            return False
        return True

    def encodings(self, request_id: str) -> Mapping[str, Tensor]:
        """Return what is staged of what the encoder made, by vLLM's names of the request's pictures.

        What is being staged is awaited for a moment.
        """
        staged = self.stager.get(request_id, STAGING_SECONDS)
        return {} if staged is None else staged.encodings

    def observe_step(self, work: StepWork, seconds: float) -> None:
        """Report what an earlier step did and how long it took."""
        self._report.steps.append((work, seconds))
        self.learner.observe_step(work, seconds)

    def take_report(self) -> WorkerReport:
        """Return what was done since the last call."""
        report, self._report = self._report, WorkerReport()
        staged, unstaged = self.stager.take_reports()
        report.staged = dict.fromkeys(staged, 1)
        report.unstaged |= set(unstaged)
        report.lost = set(self.stager.take_lost())
        return report

    def _note(self, step: StepMetadata) -> None:
        """Note when a step was there, and from when on rows may be read and patches formed beside dense requests."""
        if not step.computes:
            return
        before, self._stepped = self._stepped, time.monotonic()
        now = self._stepped
        if step.pressed and (not self._pressed or now - before >= BURST_SECONDS):
            self._form_from = max(self._form_from, now + PRESSED_SECONDS)
            self._read_from = max(self._read_from, now + PRESSED_SECONDS)
        self._pressed = step.pressed

    def save(self, step: StepMetadata, captured: Sequence[ChunkCapture] = ()) -> None:
        """Read what the forward made, after it; the thread stores it.

        Args:
            step: the step.
            captured: chunks whose rows are all in their pages since.
        """
        # Whatever comes of them, their pages are not needed any more.
        self.give_up(captured)
        if self.stopped:
            return
        try:
            self._save(step, captured)
        except Exception as error:
            # A server that cannot store what it computes still serves.
            log_failure("rows could not be read", error)

    def _save(self, step: StepMetadata, captured: Sequence[ChunkCapture]) -> None:
        row = self._spec.dtype.itemsize * sum(layout.features for layout in self._spec.layouts)
        for capture in captured:
            size = capture.chunk.tokens * row
            if self._take_room(size):
                with self._leaving_on_error(size):
                    rows = self._read(capture.blocks, 0, capture.chunk.tokens)
                    output = self._encoder_output(capture.identifier)
                    encoding = self._copier.copy(() if output is None else (output,))
                self._thread.put(partial(self._put, capture, rows, encoding, size))
        for prompt in step.patches:
            began = time.monotonic()
            if not prompt.alone and began < self._read_from:
                self.waiting.drop()
                continue
            wanted = {key.chunk for key, _, _ in prompt.needs}
            segments = [segment for segment, chunk in prompt.prompt.chunk_segments if chunk.id in wanted]
            size = row * sum(segment.stop - segment.start for segment in segments)
            if self._take_room(size):
                with self._leaving_on_error(size):
                    copied = {
                        segment.start: self._read(prompt.blocks, segment.start, segment.stop) for segment in segments
                    }
                self._thread.put(partial(self._await_chunks, prompt, copied, size))
                self._read_from = max(self._read_from, began + (time.monotonic() - began) / FORMING_SHARE)

    def _take_room(self, size: int) -> bool:
        """Count rows that are to be read, if there is room; the oldest prompts that wait for chunks make it."""
        while not self.waiting.take(size):
            try:
                oldest = self._prompts.popleft()
            except IndexError:
                self.waiting.drop()
                return False
            self._forget(oldest)
        return True

    @contextmanager
    def _leaving_on_error(self, size: int) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.waiting.leave(size)
            raise

    def _forget(self, prompt: WaitingPrompt) -> None:
        self.waiting.leave(prompt.size)
        self.waiting.drop()

    def take_dropped(self) -> int:
        """Return how many chunks and prompts were not kept for want of room since the last call."""
        return self.waiting.take_dropped()

    def _read(self, blocks: tuple[int, ...], start: int, stop: int) -> PendingCopies:
        """Return copies of some rows, under way to the host: the keys of all layers, then the values of all."""
        places = self.pages.locate(self.pages.slots(blocks, stop)[start:])
        rows = [self.pages.read(layer, places) for layer in range(len(self._spec.layouts))]
        return self._copier.copy([*(layer.keys for layer in rows), *(layer.values for layer in rows)])

    def drain(self) -> None:
        """Wait until all that was read is stored and learnt from, or has failed to be."""
        self.learner.drain()
        self._thread.drain()

    def close(self) -> None:
        """Store what was read, and what was learnt from it, and close the store."""
        self.learner.close()
        self.stager.close()
        self._closing = True
        self._thread.close()
        self.store.close()

    # the thread

    def _put(self, capture: ChunkCapture, rows: PendingCopies, encoding: PendingCopies, size: int) -> None:
        try:
            encoded = self._encoded(capture.chunk.encoded, *encoding.take())
            chunk = replace(capture.chunk, encoded=encoded, rows=layers_of(rows))
            self.store.tenant(capture.salt).put(chunk)
        finally:
            self.waiting.leave(size)
        self._form_patches()

    def _encoded(self, encoded: Encoded, output: Tensor | None = None) -> Encoded:
        """Return an encoding with the encoder's output in the rows of its media tokens; as it is without a fit one."""
        media = int(encoded.visual.sum())
        if output is None or output.dim() != 2 or len(output) != media or output.dtype != self._spec.dtype:
            return encoded
        embeds = torch.zeros(encoded.tokens, output.shape[1], dtype=output.dtype)
        embeds[encoded.visual] = output
        return replace(encoded, embeds=embeds)

    def _await_chunks(self, capture: PatchCapture, copied: dict[int, PendingCopies], size: int) -> None:
        with self._leaving_on_error(size):
            rows = {start: CopiedRows(start, layers_of(pending)) for start, pending in copied.items()}
        self._prompts.append(WaitingPrompt(capture, rows, size))
        if len(self._prompts) > WAITING_PROMPTS:
            with suppress(IndexError):
                self._forget(self._prompts.popleft())
        self._form_patches()

    def _form_patches(self) -> None:
        """Form the patches of prompts whose chunks are all stored by now; the others wait."""
        for _ in range(len(self._prompts)):
            try:
                prompt = self._prompts.popleft()
            except IndexError:
                return
            store = self.store.tenant(prompt.capture.salt)
            held = store.held(chunk.id for _, chunk in prompt.capture.prompt.chunk_segments)
            if any(chunk.id not in held for _, chunk in prompt.capture.prompt.chunk_segments):
                self._prompts.append(prompt)
                continue
            try:
                wanted = prompt.capture
                form_prompt_patches(self._host_spec, wanted.prompt, wanted.needs, prompt.copied, store, self._turn)
            finally:
                self.waiting.leave(prompt.size)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Form a patch when it may be, and rest after it for as long as its share of the time asks."""
        self._rest()
        began = time.thread_time()
        yield
        rest = (time.thread_time() - began) * (1 / FORMING_SHARE - 1)
        self._form_from = max(self._form_from, time.monotonic() + rest)

    def _rest(self) -> None:
        """Wait until the worker is idle, or forming has its share of the time again."""
        while not self._closing:
            now = time.monotonic()
            idle = BURST_SECONDS if self._pressed else IDLE_SECONDS
            if now >= self._form_from or now - self._stepped >= idle:
                return
            time.sleep(IDLE_SECONDS / 5)
