"""The memory of pairs: what a tenant's chunks take from single other chunks, learnt from prompts that were linked.

Several processes may learn for one tenant in one folder. They use one basis, the first that any of them made. Who
writes a chunk's pairs that another wrote since adds its own sightings to these.

Rows that a prompt computed in context, for whatever reason, leave their differences; see `kv/pairs.py`. What an entry
was learnt from is kept with it, by the ids of all chunks that it may hold traces of, and it goes with any of them.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from emblema.errors import EmblemaError, StoreError
from emblema.kv.artifacts import Artifact
from emblema.kv.layout import LayerLayout, all_finite
from emblema.kv.pairs import (
    PURITY,
    ChunkPairs,
    PairBasis,
    PairSighting,
    bounded,
    compose_pairs,
    learn,
    make_basis,
    met_often,
    sightings_of,
    turned,
    width_of,
    without,
)
from emblema.kv.patch import Patch
from emblema.link.policy.learning_budget import LearningBudget
from emblema.link.policy.policy import Policy
from emblema.link.taken_rows import ShareSample
from emblema.session.pair_bases import KeptBasis, PairBases
from emblema.session.pair_rows import LinkedRows
from emblema.session.pair_sampler import PairSampler, worth_of
from emblema.store.keys import ArtifactKey, ArtifactKind

log = logging.getLogger(__name__)

MOST_PENDING = 8
"""Prompts whose rows wait to be learnt from, at most; the oldest are learnt from at once."""
MOST_CHUNKS = 4096
"""Chunks whose pairs are in memory, at most; the least recently used leave."""
MOST_SERVED = 256
WAITING_SIGHTINGS = 64
"""Sightings of a chunk that are kept until they are written, to be added to what another process wrote: the latest."""
FLUSH_SECONDS = 30.0
"""Seconds between two writes of what was learnt; closing writes too."""
SAMPLE_BYTES = 64 * 2**20
"""Bytes of differences that wait for a basis, at most."""


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How pairs are learnt.

    Attributes:
        rank: directions of the basis; None for 64 where rows are latent (MLA) and 32 otherwise.
        exact: keep differences as they are; for tests and measurements of small models.
        noted_rows: rows of a prompt that are learnt from, at most.
        purity: share of a row's attention to all antecedents that one needs to be credited with its difference.
        basis_rows: after how many more rows a basis is made, and made again; it stays after the last.
        share: bytes of a chunk's pairs, as a share of its KV, at most; None for 10 % where rows are latent and 5 %
            otherwise.
        sightings: how often a chunk has to have been met with the antecedents that are there, on average, for its pairs
            to be served by `auto`; with each at least once.
    """

    rank: int | None = None
    exact: bool = False
    noted_rows: int = 128
    purity: float = PURITY
    basis_rows: tuple[int, ...] = (250, 1000, 8000)
    share: float | None = None
    sightings: float = 1.2


@dataclass(frozen=True, slots=True)
class PairStatistics:
    """Counts of one memory.

    Attributes:
        prompts, rows: learnt from.
        skipped: prompts not learnt from: a chunk was deleted or lost meanwhile, or rows were not finite.
        bases: bases made so far.
        chunks: chunks in memory with pairs.
        entries: their entries.
        bytes: their bytes.
    """

    prompts: int = 0
    rows: int = 0
    skipped: int = 0
    bases: int = 0
    chunks: int = 0
    entries: int = 0
    bytes: int = 0


class PairStore(Protocol):
    """Where a memory keeps its pairs: a tenant's store, or a view of one."""

    @property
    def deletions(self) -> object:
        """What is another value whenever `deleted` may say something else."""

    def deleted(self, chunks: Iterable[str]) -> frozenset[str]:
        """Return those of some chunks that were deleted."""

    def written(self, key: ArtifactKey) -> object:
        """Return what is another value whenever any process wrote another artifact with a key; None for none."""

    def read_artifact(self, key: ArtifactKey) -> Artifact | None:
        """Return the artifact of a key as it was written last; None where it is not stored."""

    def put_artifact(self, key: ArtifactKey, artifact: Artifact) -> bool:
        """Keep an artifact; returns whether it was kept."""

    def flush(self) -> None:
        """Return once all that was put is written; `StoreError` where some is not."""


class PairMemory:
    """One tenant's pairs on one model. Any thread may delete from it; all else is for the thread that owns the model.

    Args:
        store: returns the tenant's store; None once it is gone.
        model: the model's fingerprint.
        layouts, dtype: of the model.
        devices: of its layers.
        bases: keeps the basis beside the store's files.
        owner: digest of the tenant.
        settings: how pairs are learnt.
        sampler: says what is learnt from; one of its own by default.

    Attributes:
        sampler: holds learning to a share of what the tenant's answers cost.
    """

    def __init__(
        self,
        store: Callable[[], PairStore | None],
        model: str,
        layouts: Sequence[LayerLayout],
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        bases: PairBases,
        owner: str,
        settings: PairSettings | None = None,
        sampler: PairSampler | None = None,
    ) -> None:
        self.settings, self.model = settings or PairSettings(), model
        self._store, self._layouts, self._dtype, self._devices = store, tuple(layouts), dtype, tuple(devices)
        self._latent = layouts[0].kind == "latent"
        self._bases, self._owner = bases, owner
        # Guards what follows; never held while the store is called.
        self._lock = threading.Lock()
        self._chunks: OrderedDict[str, ChunkPairs | None] = OrderedDict()
        self._dirty: set[str] = set()
        # What was stored of each chunk when it was read or written, and what was learnt of it since.
        self._stamps: dict[str, object] = {}
        self._sightings: dict[str, deque[PairSighting]] = {}
        self._most_bytes: dict[str, int] = {}
        self._pending: deque[LinkedRows] = deque()
        self._sample: list[tuple[Tensor, LinkedRows | None, frozenset[str]]] = []
        self._served: OrderedDict[ArtifactKey, frozenset[str]] = OrderedDict()
        self._deletions: object = None
        self._kept = bases.load(owner, model, width_of(layouts))
        self._right: tuple[tuple[Tensor, Tensor], ...] = ()
        if self.settings.exact:
            basis = PairBasis(torch.eye(width_of(layouts)), exact=True)
            self._kept = KeptBasis(basis, made=len(self.settings.basis_rows))
        self._use_basis()
        self._counts = PairStatistics()
        self.sampler = sampler or PairSampler(self.settings.noted_rows)
        self._flushed = self._released = time.monotonic()

    @property
    def budget(self) -> LearningBudget:
        """What learning may cost."""
        return self.sampler.budget

    @property
    def statistics(self) -> PairStatistics:
        """Plain counters."""
        with self._lock:
            held = [pairs for pairs in self._chunks.values() if pairs is not None]
            entries = sum(len(pairs.places) for pairs in held)
            size = sum(pairs.bytes for pairs in held)
            bases = 0 if self._kept is None else self._kept.made
            return replace(self._counts, bases=bases, chunks=len(held), entries=entries, bytes=size)

    @property
    def basis(self) -> PairBasis | None:
        """The basis; None before enough rows were seen."""
        return None if self._kept is None else self._kept.basis

    # Serving.

    def find(self, key: ArtifactKey) -> Patch | None:
        """Return the patch of a chunk after those of some antecedents that are known; None where none is.

        Args:
            key: of the kind PAIRS, with the antecedents that are there.
        """
        pairs = self._pairs(key.chunk)
        if pairs is None or key.model != self.model:
            return None
        composed = compose_pairs(pairs, key.antecedents, self._right)
        if composed is None:
            return None
        with self._lock:
            self._served[key] = composed.witnesses
            self._served.move_to_end(key)
            while len(self._served) > MOST_SERVED:
                self._served.popitem(last=False)
        return composed.patch

    def knows(self, key: ArtifactKey) -> bool:
        """Return whether a chunk was met with each of the antecedents, and often enough to be served from memory."""
        pairs = self._pairs(key.chunk)
        return pairs is not None and met_often(pairs, key.antecedents, self.settings.sightings)

    def witnesses(self, key: ArtifactKey) -> frozenset[str] | None:
        """Return the chunks that a served patch was learnt from; None where it is not known any more."""
        with self._lock:
            return self._served.get(key)

    def _pairs(self, chunk: str) -> ChunkPairs | None:
        """Return what is known of a chunk, read from the store at the first call."""
        self.settle()
        with self._lock:
            if chunk in self._chunks:
                self._chunks.move_to_end(chunk)
                return self._chunks[chunk]
        store, basis = self._store(), self.basis
        if store is None or basis is None:
            return None
        pairs = self._read(store, chunk)
        with self._lock:
            self._chunks.setdefault(chunk, pairs)
            clean = (name for name in list(self._chunks) if name not in self._dirty)
            while len(self._chunks) > MOST_CHUNKS and (oldest := next(clean, None)) is not None:
                del self._chunks[oldest]
                self._stamps.pop(oldest, None)
            return self._chunks.get(chunk)

    def _read(self, store: PairStore, chunk: str) -> ChunkPairs | None:
        """Return what is stored of a chunk, on the present basis; None where nothing is, or on an unknown one.

        What was learnt where a chunk was that is deleted by now is left out.
        """
        key = self._key(chunk)
        stamp = store.written(key)
        found = None if stamp is None else store.read_artifact(key)
        with self._lock:
            self._stamps[chunk] = stamp
        if not isinstance(found, ChunkPairs):
            return None
        for gone in store.deleted(found.sources):
            found = without(found, gone)
        return self._current(found)

    def _current(self, pairs: ChunkPairs) -> ChunkPairs | None:
        """Return pairs on the present basis; None where they belong to an unknown one."""
        return None if self._kept is None else self._kept.hold(pairs)

    def _key(self, chunk: str) -> ArtifactKey:
        return ArtifactKey(self.model, chunk, kind=ArtifactKind.PAIR)

    # Learning.

    def next_sample(self, keys: Iterable[ArtifactKey], policy: Policy, *, on_credit: bool = True) -> ShareSample | None:
        """Return which rows of the next prompt are learnt from; None for none. See `PairSampler.next`.

        Args:
            keys: of the kind PAIRS, of the prompt's chunks.
            policy: bounds of the request.
            on_credit: whether it may be learnt from before that was earned.
        """
        return self.sampler.next(worth_of(self._met(key) for key in keys if key.antecedents), policy, on_credit)

    def _met(self, key: ArtifactKey) -> int:
        """Return how many prompts a chunk was learnt from with the antecedent that it was met with least."""
        pairs = self._pairs(key.chunk)
        return 0 if pairs is None else min(sightings_of(pairs, key.antecedents))

    def add(self, rows: LinkedRows) -> None:
        """Have rows learnt from when there is time, or when the memory is asked next."""
        with self._lock:
            self._pending.append(rows)
        if len(self._pending) > MOST_PENDING:
            self.settle()

    @property
    def waiting(self) -> bool:
        """Whether there is something to learn or to write."""
        return bool(self._pending) or (bool(self._dirty) and time.monotonic() - self._flushed > FLUSH_SECONDS)

    @torch.inference_mode()
    def settle(self) -> None:
        """Learn from all rows that wait, and drop what was deleted."""
        self._sweep()
        while True:
            with self._lock:
                if not self._pending:
                    return
                rows = self._pending.popleft()
            with self.budget.learning():
                self._take(rows)

    def _take(self, rows: LinkedRows) -> None:
        store = self._store()
        try:
            gone = store is None or bool(store.deleted(rows.witnesses))
            differences = torch.empty(0) if gone else rows.differences(self._layouts)
        except EmblemaError:
            gone = True
        if gone or not all_finite([differences]):
            self._counts = replace(self._counts, skipped=self._counts.skipped + 1)
            return
        counts = self._counts
        self._counts = replace(counts, prompts=counts.prompts + 1, rows=counts.rows + len(differences))
        if self._kept is None:
            self._sample_rows(differences, rows, rows.witnesses, 1.0)
            return
        if self._kept.made < len(self.settings.basis_rows):
            self._sample_rows(differences, None, rows.witnesses, 0.25)
        self._learn(rows, differences)

    def _sample_rows(
        self, differences: Tensor, rows: LinkedRows | None, witnesses: frozenset[str], share: float
    ) -> None:
        """Keep a share of some differences for the next basis, which is made once there are enough."""
        made = 0 if self._kept is None else self._kept.made
        order = torch.randperm(len(differences), generator=torch.Generator().manual_seed(self._counts.rows))
        count = max(1, round(share * len(order)))
        with self._lock:
            self._sample.append((differences[order[:count]] if rows is None else differences, rows, witnesses))
            # What was deleted meanwhile has left the sample, and does not count.
            sampled = sum(len(part) for part, _, _ in self._sample)
        if sampled >= min(share * self.settings.basis_rows[made], self._most_sampled):
            self._make_basis(made + 1)

    @property
    def _most_sampled(self) -> int:
        return max(256, SAMPLE_BYTES // (4 * width_of(self._layouts)))

    def _make_basis(self, made: int) -> None:
        """Make the basis of the sample, and learn from what waited for it, or turn what is known to it."""
        with self._lock:
            sample, self._sample = self._sample, []
        if not sample:
            return
        rank = self.settings.rank or (64 if self._latent else 32)
        basis = make_basis(torch.cat([differences for differences, _, _ in sample]), rank)
        before = None if self._kept is None else self._kept.basis
        turn = None if before is None else before.directions @ basis.directions.T
        own = KeptBasis(basis, made, None if before is None else before.id, turn)
        self._change_basis(self._bases.save(self._owner, self.model, own))
        for differences, rows, _ in sample:
            if rows is not None:
                self._learn(rows, differences)

    def _change_basis(self, kept: KeptBasis) -> None:
        """Use another basis, and turn all to it that is on the one before."""
        before, self._kept = self._kept, kept
        if before is not None and before.basis.id == kept.basis.id:
            return
        self._use_basis()
        if before is None:
            with self._lock:
                self._chunks.clear()
            return
        turn = before.basis.directions @ kept.basis.directions.T
        with self._lock:
            for chunk, pairs in self._chunks.items():
                self._chunks[chunk] = None if pairs is None else turned(pairs, turn, kept.basis.id)
                self._dirty.update([chunk] if pairs is not None else [])
            for sightings in self._sightings.values():
                for index, sighting in enumerate(sightings):
                    sightings[index] = replace(sighting, coefficients=sighting.coefficients @ turn)

    def _use_basis(self) -> None:
        if self._kept is not None:
            right = self._kept.basis.right_factors(self._layouts, self._dtype)
            placed = zip(right, self._devices, strict=True)
            self._right = tuple((keys.to(device), values.to(device)) for (keys, values), device in placed)

    def _learn(self, rows: LinkedRows, differences: Tensor) -> None:
        basis = self.basis
        if basis is None:
            return
        parts = basis.coefficients(differences).split([len(shares.rows) for shares in rows.chunks])
        for shares, coefficients in zip(rows.chunks, parts, strict=True):
            chunk = shares.chunk
            known = self._loaded(chunk.id) or ChunkPairs.empty(chunk.tokens, basis)
            sighting = PairSighting(
                shares.antecedents, shares.rows, coefficients, shares.mass, shares.alone, rows.witnesses
            )
            most = int((self.settings.share or (0.10 if self._latent else 0.05)) * chunk.bytes)
            more = self._learnt(known, sighting, most)
            with self._lock:
                self._chunks[chunk.id] = more
                self._chunks.move_to_end(chunk.id)
                self._dirty.add(chunk.id)
                if self._bases.shared:
                    self._most_bytes[chunk.id] = most
                    self._sightings.setdefault(chunk.id, deque(maxlen=WAITING_SIGHTINGS)).append(sighting)

    def _learnt(self, pairs: ChunkPairs, sighting: PairSighting, most: int) -> ChunkPairs:
        more = learn(pairs, sighting, self.settings.purity)
        return more if self.settings.exact else bounded(more, most)

    def _loaded(self, chunk: str) -> ChunkPairs | None:
        with self._lock:
            if chunk in self._chunks:
                return self._chunks[chunk]
        store = self._store()
        return None if store is None else self._read(store, chunk)

    # Forgetting and keeping.

    def forget(self, chunk: str) -> None:
        """Drop all that was learnt of a chunk, or where it was there. On any thread."""
        with self._lock:
            self._pending = deque(rows for rows in self._pending if chunk not in rows.witnesses)
            self._sample = [part for part in self._sample if chunk not in part[2]]
            self._served.clear()
            self._chunks.pop(chunk, None)
            self._dirty.discard(chunk)
            self._sightings.pop(chunk, None)
            for sightings in self._sightings.values():
                kept = [sighting for sighting in sightings if chunk not in sighting.witnesses]
                sightings.clear()
                sightings.extend(kept)
            for name, pairs in list(self._chunks.items()):
                left = None if pairs is None else without(pairs, chunk)
                if left is not pairs:
                    self._chunks[name] = left
                    self._dirty.add(name)

    def _sweep(self) -> None:
        """Drop what chunks were deleted from, where the deletion was not told."""
        store = self._store()
        if store is None or store.deletions == self._deletions:
            return
        self._deletions = store.deletions
        with self._lock:
            names = {name for pairs in self._chunks.values() if pairs is not None for name in pairs.sources}
            names.update(self._chunks, *(rows.witnesses for rows in self._pending), *(part[2] for part in self._sample))
        for name in store.deleted(names):
            self.forget(name)

    def flush(self) -> None:
        """Write what has changed; what another process wrote of these chunks meanwhile is kept in it.

        A failure is only reported: what was not written is written the next time.
        """
        self.settle()
        store = self._store()
        self._flushed = time.monotonic()
        if store is None or not self._dirty:
            return
        try:
            with self.budget.learning(), self._bases.held():
                self._write(store)
        except (OSError, StoreError) as error:
            log.warning("pairs of %s were not written: %s", self._owner[:12], error)

    def _write(self, store: PairStore) -> None:
        """Write what has changed, while no other process does."""
        if self._kept is not None:
            self._change_basis(self._bases.keep(self._owner, self.model, self._kept))
        with self._lock:
            names = set(self._dirty)
            changed = {name: pairs for name in names if (pairs := self._chunks.get(name)) is not None}
        for name, pairs in list(changed.items()):
            changed[name] = more = self._joined(store, name, pairs)
            with self._lock:
                if self._chunks.get(name) is not pairs:
                    # Something was deleted meanwhile.
                    del changed[name]
                    continue
                self._chunks[name] = more
            if len(more.places):
                store.put_artifact(self._key(name), more)
        failure: StoreError | None = None
        try:
            if self._bases.shared:
                store.flush()
        except StoreError as error:
            # It may be of other pieces: what is there was written, and is not added once more.
            failure = error
        stamps = {name: store.written(self._key(name)) for name in changed}
        with self._lock:
            lacking = {name for name in stamps if failure is not None and stamps[name] == self._stamps.get(name)}
            self._stamps |= stamps
            for name in names - lacking:
                if self._chunks.get(name) is changed.get(name):
                    self._dirty.discard(name)
                    self._sightings.pop(name, None)
        if failure is not None:
            raise failure

    def _joined(self, store: PairStore, name: str, pairs: ChunkPairs) -> ChunkPairs:
        """Return a chunk's pairs with what another process wrote of it since they were read."""
        before = self._stamps.get(name)
        if not self._bases.shared or store.written(self._key(name)) == before:
            return pairs
        stored = self._read(store, name)
        if stored is None:
            return pairs
        with self._lock:
            since = list(self._sightings.get(name, ()))
        for sighting in since:
            stored = self._learnt(stored, sighting, self._most_bytes[name])
        return stored

    def release(self) -> None:
        """Let go of what the store has, which is read again when it is needed, and of a basis that is not the kept one.

        So memories of several processes on one folder come to what all of them learnt.
        """
        with self._lock:
            self._chunks = OrderedDict((name, pairs) for name, pairs in self._chunks.items() if name in self._dirty)
            self._stamps = {name: stamp for name, stamp in self._stamps.items() if name in self._dirty}
            self._most_bytes = {name: most for name, most in self._most_bytes.items() if name in self._dirty}
        kept = None if self.settings.exact else self._bases.load(self._owner, self.model, width_of(self._layouts))
        if kept is not None and (self._kept is None or kept.made >= self._kept.made):
            self._change_basis(kept)

    def idle(self) -> None:
        """Learn from what waits, and write what has changed if it was not written lately."""
        self.settle()
        if self.waiting:
            self.flush()
        if self._bases.shared and not self._dirty and time.monotonic() - self._released > FLUSH_SECONDS:
            self._released = time.monotonic()
            self.release()
