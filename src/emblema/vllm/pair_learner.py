"""The worker's side of the memory of pairs: rows that a reading computed in context are learnt from, on a thread."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.host_copies import HostCopier, PendingCopies
from emblema.kv.layout import KVRows, LayerRows
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt, Rows, Segment
from emblema.link.row_shares import RowShares, noted_layers, noted_rows, owners_of
from emblema.link.second_pass import spanned_rows
from emblema.link.taken_rows import ShareSample
from emblema.models.attention import AntecedentAttention, attention_weights
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.staging import StagedRows
from emblema.plugin.stored_pairs import StoredPairs, TenantPairs, unfit_for_pairs
from emblema.plugin.work_thread import WorkThread, log_failure
from emblema.session.pair_memory import PairMemory, PairSettings
from emblema.session.pair_rows import noted_chunks, teaches, witnesses_of
from emblema.session.pair_sampler import PairSampler
from emblema.store import Store
from emblema.store.store import TenantStore
from emblema.vllm.pages import Pages
from emblema.vllm.step_costs import StepWork
from emblema.vllm.waiting_rows import WaitingRows

WAITING_BYTES = 64 * 2**20
"""Rows that may wait to be learnt from; those of a prompt that find no room are let go."""
KEPT_BYTES = 64 * 2**20
"""Pairs of a tenant that may wait to be written; more are written at once."""
MOST_TENANTS, MOST_SAMPLERS = 16, 256
"""Tenants whose pairs are being learnt, and whose budgets are kept; the least recent ones' are written and let go."""
SECONDS = 1.0
"""How often it is looked whether pairs are due to be written."""


class NotedShares:
    """What some computed rows of one prompt attend of the chunks before them; for the model's thread.

    No error in here reaches an answer: nothing is learnt from the rows then.

    Args:
        prompt: the prompt.
        salt: of the tenant's store.
        sample: how many rows are noted.
        witnesses: see `LinkedRows`.
        layers: that are noted.
        device: of the pages.

    Attributes:
        seconds: of the processor, that noting took.
    """

    def __init__(
        self,
        prompt: Prompt,
        salt: bytes,
        sample: ShareSample,
        witnesses: frozenset[str],
        layers: frozenset[int],
        device: torch.device,
    ) -> None:
        self.prompt, self.salt, self.witnesses = prompt, salt, witnesses
        self.seconds = 0.0
        self._sample, self._layers, self._device = sample, layers, device
        self._rows = torch.empty(0, dtype=torch.int64)
        self._attention: AntecedentAttention | None = None
        self._count, self._failed = 0, False

    @property
    def chosen(self) -> bool:
        """Whether `choose` was called."""
        return self._attention is not None

    def choose(self, runs: Sequence[Rows]) -> None:
        """Take the rows that are computed in context."""
        with self.guarded():
            rows, owners = spanned_rows(runs), owners_of(self.prompt)
            self._rows = rows[noted_rows(self.prompt, rows, self._sample)]
            own = owners[self._rows].to(self._device)
            self._attention = AntecedentAttention(owners.to(self._device), own, len(self.prompt.chunk_segments))

    def computed_plainly(self) -> "NotedShares":
        """Return what notes the same prompt where all its rows are computed: they hold traces of its chunks alone."""
        names = frozenset(part.name for part in self.prompt.chunk_parts)
        return NotedShares(self.prompt, self.salt, self._sample, names, self._layers, self._device)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Have an error within mean that nothing is learnt; blocks may lie inside each other."""
        began, before = time.thread_time(), self.seconds
        try:
            yield
        except Exception as error:
            self._failed = True
            log_failure("what rows attend is not known, and nothing is learnt from them", error)
        self.seconds = before + time.thread_time() - began

    def notes(self, layer: int) -> bool:
        """Return whether what rows attend is noted in a layer."""
        return layer in self._layers and self._attention is not None and not self._failed

    def note(self, layer: int, run: Tensor, queries: Tensor, keys: Tensor, scale: float) -> None:
        """Note what rows attend in a layer, if they are noted there.

        Args:
            layer: the layer.
            run: [some] int64 on the CPU, the rows in order.
            queries: [heads, some, width].
            keys: those of all rows up to the last of them [key heads, rows, width].
            scale: of the products of both.
        """
        if self._attention is None or not self.notes(layer):
            return
        with self.guarded():
            places = torch.isin(self._rows, run).nonzero().squeeze(1)
            if len(places):
                stop, own = keys.shape[1], self._rows[places]
                rows, numbers = own.to(queries.device), torch.arange(stop, device=queries.device)
                mask = torch.zeros(len(rows), stop, device=queries.device)
                mask[numbers[None] > rows[:, None]] = float("-inf")
                chosen = torch.searchsorted(run, own).to(queries.device)
                weights = attention_weights(queries.index_select(1, chosen), keys, mask, scale)
                self._attention.add(layer, places, weights)
                self._count += len(places)

    @property
    def shares(self) -> RowShares | None:
        """What was noted, on the CPU; None where not every row was seen."""
        whole = self._count == len(self._rows) * len(self._layers)
        if self._attention is None or self._failed or not whole or len(self._rows) == 0:
            return None
        return RowShares(self._rows, self._attention.mass.cpu(), self._attention.alone.cpu(), self.seconds)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Rows that were computed in context, on their way to the host.

    Attributes:
        noted: the reading's.
        shares: what they attended.
        sampler: of their tenant.
        copies: the keys of all layers, then the values of all.
        size: their bytes.
    """

    noted: NotedShares
    shares: RowShares
    sampler: PairSampler
    copies: PendingCopies
    size: int


class PairLearner:
    """Learns the pairs of all tenants of one worker, and writes them to the store's folder.

    Args:
        store: the worker's.
        spec: of the model, on the host.
        copier: brings rows to the host.
        settings: how pairs are learnt.
        policy: what learning may cost.
    """

    def __init__(
        self,
        store: Store,
        spec: ModelSpec,
        copier: HostCopier,
        settings: PairSettings | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._store, self._spec, self._copier = store, spec, copier
        self.settings, self._policy = settings or PairSettings(), policy or Policy()
        self.waiting = WaitingRows(WAITING_BYTES)
        # The model's thread's own.
        self._samplers: OrderedDict[bytes, PairSampler] = OrderedDict()
        self._seconds = self._computed = 0.0
        self._stopped = False
        # The learning thread's own.
        self._pairs = StoredPairs(store, spec)
        self._memories: OrderedDict[str, PairMemory] = OrderedDict()
        self._thread = WorkThread(
            "emblema-learn", "pairs could not be learnt", lambda: SECONDS if self._memories else None, self._write
        )

    @property
    def noted_layers(self) -> frozenset[int]:
        """Layers whose attention is noted."""
        return noted_layers(len(self._spec.layouts))

    # the model's thread

    def begin(self, staged: StagedRows, device: torch.device, on_credit: bool = True) -> NotedShares | None:
        """Return what notes the rows of a reading that begins; None where it is not to be learnt from.

        Args:
            staged: what the reading takes.
            device: of the pages.
            on_credit: whether it may be learnt from before that was earned.
        """
        order = staged.order
        if self._stopped or order.worth <= 0 or unfit_for_pairs(self._spec) or not teaches(order.plan):
            return None
        witnesses = witnesses_of(order.prompt, order.plan, staged.learnt_from.get)
        sample = self._sampler(order.salt).next(order.worth, self._policy, on_credit)
        if witnesses is None or sample is None:
            return None
        return NotedShares(order.prompt, order.salt, sample, witnesses, self.noted_layers, device)

    def observe_step(self, work: StepWork, seconds: float) -> None:
        """Note how long a step took."""
        if work.read:
            # Later steps count more.
            self._seconds = 0.99 * self._seconds + seconds * work.read / work.rows
            self._computed = 0.99 * self._computed + work.read

    def earn(self, salt: bytes, rows: int) -> None:
        """Count the rows of an answer, of whose cost learning may take a share."""
        if self._computed:
            self._sampler(salt).budget.earn(rows * self._seconds / self._computed)

    def take(self, noted: NotedShares, pages: Pages, blocks: Sequence[int]) -> None:
        """Have rows that a reading has computed learnt from.

        Args:
            noted: what they attended.
            pages: of the worker.
            blocks: the request's pages in order.
        """
        shares, began = noted.shares, time.thread_time()
        if shares is None or self._stopped:
            return
        features = sum(layout.features for layout in self._spec.layouts)
        size = len(shares.rows) * features * self._spec.dtype.itemsize
        if not self.waiting.take(size):
            self.waiting.drop()
            return
        try:
            places = pages.locate(pages.slots(blocks, noted.prompt.tokens)[shares.rows])
            rows = [pages.read(layer, places) for layer in range(len(self._spec.layouts))]
            copies = self._copier.copy([*(layer.keys for layer in rows), *(layer.values for layer in rows)])
        except Exception as error:
            self.waiting.leave(size)
            log_failure("rows could not be read, and nothing is learnt from them", error)
            return
        sampler = self._sampler(noted.salt)
        self._thread.put(partial(self._learn, ComputedRows(noted, shares, sampler, copies, size)))
        sampler.budget.spend(noted.seconds + time.thread_time() - began)

    def _sampler(self, salt: bytes) -> PairSampler:
        sampler = self._samplers.setdefault(salt, PairSampler(self.settings.noted_rows))
        self._samplers.move_to_end(salt)
        while len(self._samplers) > MOST_SAMPLERS:
            self._samplers.popitem(last=False)
        return sampler

    def stop(self) -> None:
        """Learn from nothing that is computed from now on."""
        self._stopped = True

    def drain(self) -> None:
        """Wait until all that was taken is learnt from and written."""
        self._thread.put(partial(self._write, now=True))
        self._thread.drain()

    def close(self) -> None:
        """Learn from what was taken, and write it."""
        self._thread.put(partial(self._write, now=True))
        self._thread.close()

    # the learning thread

    def _learn(self, computed: ComputedRows) -> None:
        noted, shares = computed.noted, computed.shares
        tenant = self._store.tenant(noted.salt)
        memory = self._memory(tenant, computed.sampler)
        chunks = {segment.start: chunk.id for segment, chunk in noted.prompt.chunk_segments}

        def canonical(segment: Segment) -> Chunk | None:
            return tenant.find(chunks[segment.start])

        try:
            copies = computed.copies.take()
            half = len(copies) // 2
            layers = [LayerRows(*pair) for pair in zip(copies[:half], copies[half:], strict=True)]

            def read(indices: Tensor) -> KVRows:
                return tuple(layer.select(indices) for layer in layers)

            with memory.budget.learning():
                rows = noted_chunks(self._spec, noted.prompt, shares, read, canonical, noted.witnesses)
            if rows is not None:
                memory.add(rows)
                memory.settle()
        finally:
            self.waiting.leave(computed.size)
        if memory.statistics.bytes > KEPT_BYTES:
            self._flush(memory)

    def _memory(self, tenant: TenantStore, sampler: PairSampler) -> PairMemory:
        spec, owner = self._spec, tenant.owner
        if owner not in self._memories:
            store = TenantPairs(self._pairs, partial(self._store.tenant, tenant.salt))
            made = PairMemory(
                lambda: store, spec.fingerprint, spec.layouts, spec.dtype, [spec.device] * len(spec.layouts),
                self._pairs.bases, owner, self.settings, sampler,
            )  # fmt: skip
            self._memories[owner] = made
        self._memories.move_to_end(owner)
        while len(self._memories) > MOST_TENANTS:
            self._flush(self._memories.popitem(last=False)[1])
        return self._memories[owner]

    def _write(self, now: bool = False) -> None:
        """Write what is due, or all."""
        for memory in self._memories.values():
            if now or memory.waiting:
                self._flush(memory)

    def _flush(self, memory: PairMemory) -> None:
        """Write a tenant's pairs; they are read from the folder again when they are needed."""
        memory.flush()
        memory.release()
