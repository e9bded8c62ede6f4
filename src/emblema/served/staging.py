"""Rows that are read ahead: before a step takes them they are in memory, whole and verified, on every worker."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from emblema.errors import LoadError
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.link.plan import ChunkOrigin, LinkPlan, RowSource
from emblema.link.prompt import Prompt, Rows
from emblema.link.taken_rows import LinkJob, ModelGeometry, Resources, RowSink, TakenRows
from emblema.served.kept_prompts import KeptPromptRows, KeptSpan
from emblema.served.shards import ShardStore
from emblema.served.spans import taken_rows
from emblema.served.work_thread import log_failure

ROOM_SECONDS = 0.5
"""How long an order waits for room in memory that other requests' rows take."""


@dataclass(frozen=True, slots=True)
class StagingOrder:
    """What a request will take, to be read and verified before a step links it.

    Attributes:
        number: of the order; a request that is preempted gets another.
        request_id: of the engine.
        salt: of the tenant's store.
        prompt, plan: the request's.
        encodings: chunks whose encoder output may be needed, with the engine's name of the picture before each.
        awaited: whether the request waits until it is staged.
        kept: where rows of its conversation are, by the ids of its pieces.
    """

    number: int
    request_id: str
    salt: bytes
    prompt: Prompt
    plan: LinkPlan
    encodings: tuple[tuple[str, str], ...] = ()
    awaited: bool = True
    kept: Mapping[str, KeptSpan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What a request takes, held in memory until `end` is called.

    Attributes:
        order: what was ordered.
        rows: canonical rows by chunk.
        patches: by key.
        encodings: what the encoder made of a picture [media tokens, width], by the engine's name of it, if it is kept.
        held: leases of the rows.
    """

    order: StagingOrder
    rows: dict[str, KVRows]
    patches: dict[ArtifactKey, Patch]
    encodings: dict[str, Tensor]
    held: ExitStack

    def write(self, model: ModelGeometry, sink: RowSink, slots: Tensor, taken: tuple[Rows, ...]) -> None:
        """Write some of the taken rows, relocated and patched, at a request's slots [rows]."""
        prompt = self.order.prompt
        plan = taken_rows(self.order.plan, taken)
        rows = TakenRows(model, sink, slots, LinkJob(plan, prompt, Resources(self.patches, rows=self.rows)))
        for layer in range(len(model.layouts)):
            rows.write(layer)

    def end(self) -> None:
        """Let go of the rows."""
        self.held.close()


class RowStager:
    """Stages orders one after another on a thread of its own. All but that thread's work is for the model's thread.

    Args:
        store: where this rank's shares of chunks and patches are.

    Attributes:
        kept_rows: of conversations, this rank's shares.
    """

    def __init__(self, store: ShardStore) -> None:
        self._store, self.kept_rows = store, KeptPromptRows()
        self._changed = threading.Condition()
        # The numbers of orders that are wanted, by request, and what became of them.
        self._wanted: dict[str, int] = {}
        self._done: dict[str, StagedRows] = {}
        self._staged: list[int] = []
        self._unstaged: list[int] = []
        self._lost: list[str | ArtifactKey] = []
        self._orders: SimpleQueue[StagingOrder | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emblema-stage", daemon=True)
        self._thread.start()

    def stage(self, orders: Sequence[StagingOrder]) -> None:
        """Begin to read what requests take; an earlier order of a request is dropped, and one of nothing is staged."""
        for order in orders:
            self.drop(order.request_id)
            with self._changed:
                self._wanted[order.request_id] = order.number
            if order.plan.ranges or order.encodings:
                self._orders.put(order)
            else:
                self._finish(order, StagedRows(order, {}, {}, {}, ExitStack()))

    def drop(self, request_id: str) -> None:
        """Let go of a request's rows, staged or not."""
        with self._changed:
            self._wanted.pop(request_id, None)
            done = self._done.pop(request_id, None)
        if done is not None:
            done.end()

    def drop_all(self) -> None:
        """Let go of all requests' rows."""
        with self._changed:
            wanted = [*self._wanted]
        for request_id in wanted:
            self.drop(request_id)

    def get(self, request_id: str, seconds: float = 0.0) -> StagedRows | None:
        """Return what is staged for a request; None where nothing is.

        Args:
            request_id: of the engine.
            seconds: how long what is being staged is awaited, at most.
        """
        with self._changed:
            if seconds > 0:
                self._changed.wait_for(lambda: request_id in self._done or request_id not in self._wanted, seconds)
            return self._done.get(request_id)

    def wait(self, seconds: float) -> None:
        """Wait until nothing is being staged, so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted.keys() <= self._done.keys(), seconds)

    def take_reports(self) -> tuple[list[int], list[int]]:
        """Return the numbers of orders that were staged since the last call, and of those that could not be."""
        with self._changed:
            staged, unstaged = self._staged, self._unstaged
            self._staged, self._unstaged = [], []
        return staged, unstaged

    def take_lost(self) -> list[str | ArtifactKey]:
        """Return the ids of chunks and the keys of artifacts that were wanted and not there since the last call."""
        with self._changed:
            lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """End the thread, and let go of everything."""
        self._orders.put(None)
        self._thread.join()
        self.drop_all()

    # the thread

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            with self._changed:
                if self._wanted.get(order.request_id) != order.number:
                    continue
            held = ExitStack()
            try:
                with torch.inference_mode():
                    made = self._read(order, held)
            except Exception as error:
                # No error may end the server: the request is computed.
                held.close()
                log_failure("rows could not be read and are computed", error)
                self._finish(order, None)
            else:
                self._finish(order, made)

    def _finish(self, order: StagingOrder, made: StagedRows | None) -> None:
        with self._changed:
            wanted = self._wanted.get(order.request_id) == order.number
            if wanted and made is not None:
                self._done[order.request_id] = made
                self._staged.append(order.number)
            elif wanted:
                del self._wanted[order.request_id]
                self._unstaged.append(order.number)
            self._changed.notify_all()
        if not wanted and made is not None:
            made.end()

    def _lose(self, pieces: Iterable[str | ArtifactKey]) -> None:
        with self._changed:
            self._lost.extend(pieces)

    def _read(self, order: StagingOrder, held: ExitStack) -> StagedRows:
        store = self._store.tenant(order.salt)
        parts = [part for part in order.plan.ranges if part.source is RowSource.TAKEN]
        named = {part.origin.chunk for part in parts if isinstance(part.origin, ChunkOrigin)} - order.kept.keys()
        patches: dict[ArtifactKey, Patch] = {}
        rows: dict[str, KVRows] = self.kept_rows.read(order.kept)
        if named:
            lease = held.enter_context(store.lease(named, ROOM_SECONDS))
            if lease.missing:
                self._lose(lease.missing)
                raise LoadError(lease.missing[0], "it is not in the store any more")
            # A layer is verified as it arrives; reading them all waits for all.
            rows |= {chunk: tuple(found) for chunk, found in lease.rows.items()}
        keys = {part.patch.key for part in parts if part.patch is not None}
        for key in keys:
            patch = store.find_patch(key)
            if patch is None:
                self._lose([key])
                raise LoadError(key.chunk, f"the {key} is not in the store any more")
            patches[key] = patch
        encodings: dict[str, Tensor] = {}
        for identifier, chunk in order.encodings:
            found = store.find(chunk)
            if found is not None and found.encoded.embeds.shape[1] > 0:
                encodings[identifier] = found.encoded.embeds[found.encoded.visual]
                continue
            kept = self.kept_rows.encoding(chunk) if order.kept else None
            if kept is not None:
                encodings[identifier] = kept
        return StagedRows(order, rows, patches, encodings, held)
