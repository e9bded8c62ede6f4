"""The worker's side: rows go from the store into pages before a forward, chunks and patches into the store after it."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from torch import Tensor

from emblema.errors import LoadError
from emblema.kv.device_copies import HostCopier
from emblema.kv.layout import LayerRows
from emblema.link.prompt import Rows, Segment
from emblema.served.captures import ChunkCapture
from emblema.served.keeping import PieceKeeper
from emblema.served.model_spec import ModelSpec
from emblema.served.shards import ShardStore
from emblema.served.staging import RowStager, StagingOrder
from emblema.served.work_thread import log_failure
from emblema.vllm.pages import Pages
from emblema.vllm.step_metadata import SidePrompt, StepMetadata, WorkerReport

_log = logging.getLogger(__name__)
IDLE_SECONDS, BURST_SECONDS = 0.05, 0.2
"""A worker without a step for so long is idle; the second where requests come densely."""
FORMING_SHARE = 0.05
"""Share of the time in which patches are formed while the worker is not idle, and the same to read rows for them
after steps of several requests."""
PRESSED_SECONDS = 2.0
"""For how long requests come densely before either is done beside them: a burst is over sooner."""
STAGING_SECONDS = 0.01
"""How long a step without rows waits for what it is to stage, and any step for encoder outputs that are under way."""


class KVWorker:
    """Loads and saves rows of one rank's pages. Patches are formed while the worker is idle, and else in a small share
    of the time.

    Args:
        spec: of this rank's model.
        store: where this rank's shares of chunks are.
        block_size: rows of a page.
        encoder_output: finds what the encoder made of a picture, by vLLM's digest of it; None where that is gone.
        pages: makes the pages; called when they are first needed, as the model's layers are ready only then.
        copier: brings rows to the host; by default the one of the model's device.

    Attributes:
        stopped: whether nothing is taken or kept any more.
        stager: reads what requests take.
        keeper: stores chunks and forms patches.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: ShardStore,
        block_size: int,
        encoder_output: Callable[[str], Tensor | None],
        pages: Callable[[ModelSpec], Pages],
        copier: HostCopier | None = None,
    ) -> None:
        self.store = store
        self._spec, self._block_size = spec, block_size
        self._make_pages, self._encoder_output = pages, encoder_output
        self._pages: Pages | None = None
        self.stopped = False
        self.stager = RowStager(store)
        self.keeper = PieceKeeper(spec, store, copier, self._turn)
        self._report = WorkerReport()
        self._stepped, self._form_from, self._read_from, self._closing = 0.0, 0.0, 0.0, False
        self._pressed = False

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
        self.stager.kept_rows.drop(step.forgotten)
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
        if not self.stopped:
            _log.warning("emblema: nothing is linked or kept from here on: %s", reason)
        self.stopped = True
        self.stager.drop_all()

    def give_up(self, captures: Iterable[ChunkCapture]) -> None:
        """Report chunks as done with whose rows are not made."""
        self._report.captured.update({capture.chunk.id: 1 for capture in captures})

    def take(self, name: str, prompt: SidePrompt, taken: tuple[Rows, ...]) -> dict[str, Tensor]:
        """Write the rows that a prompt takes into its pages; see `StagedPrompts`."""
        staged = self.stager.get(name)
        if staged is None:
            raise LoadError(name, "its rows are not staged")
        if taken:
            slots = self.pages.slots(prompt.blocks, staged.order.prompt.tokens)
            staged.write(self._spec, self.pages, slots, taken)
        held = staged.encodings
        return {each.name: held[each.known_as] for each in prompt.features if each.known_as in held}

    def keep_encodings(self, chunks: Iterable[tuple[str, str]]) -> None:
        """Keep what the encoder made of pictures for their conversation; see `StagedPrompts`."""
        for name, chunk in chunks:
            encoding = self._encoder_output(name)
            if encoding is not None:
                self.stager.kept_rows.put_encoding(chunk, self.keeper.copy_encoding(encoding))

    def encodings(self, request_id: str) -> Mapping[str, Tensor]:
        """Return what is staged of what the encoder made, by vLLM's names of the request's pictures.

        What is being staged is awaited for a moment.
        """
        staged = self.stager.get(request_id, STAGING_SECONDS)
        return {} if staged is None else staged.encodings

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
        for capture in captured:
            read = partial(self._read, capture.blocks, len(capture.anchor), capture.tokens)
            self.keeper.keep_chunk(capture.salt, capture.chunk, read, self._encoder_output(capture.identifier))
        self.keep_encodings(step.kept_pictures)
        for kept in step.keeps:
            # Of a picture that another request had encoded before.
            self.keep_encodings(each for each in kept.pictures if not self.stager.kept_rows.has_encoding(each[1]))
            self.stager.kept_rows.put(kept, self.keeper.copy(self._read(kept.blocks, 0, kept.rows)))
        for prompt in step.patches:
            began = time.monotonic()
            if not prompt.alone and began < self._read_from:
                self.keeper.drop()
                continue
            read = partial(self._read_segment, prompt.blocks)
            self.keeper.form_patches(prompt.salt, prompt.prompt, prompt.needs, read)
            self._read_from = max(self._read_from, began + (time.monotonic() - began) / FORMING_SHARE)

    def _read_segment(self, blocks: tuple[int, ...], segment: Segment) -> list[LayerRows]:
        return self._read(blocks, segment.start, segment.stop)

    def _read(self, blocks: tuple[int, ...], start: int, stop: int) -> list[LayerRows]:
        """Return copies of some rows, by layer."""
        places = self.pages.locate(self.pages.slots(blocks, stop)[start:])
        return [self.pages.read(layer, places) for layer in range(len(self._spec.layouts))]

    def close(self) -> None:
        """Store what was read, and close the store."""
        self.stager.close()
        self._closing = True
        self.keeper.close()
        self.store.close()

    # the keeper's thread

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
