"""The tiers that outlast the process, disk first, then remote: queried in that order; every record is verified."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import torch

from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.keys import ArtifactKey
from emblema.store import codec
from emblema.store.arriving import ArrivingRows
from emblema.store.deletion_feed import Freshness
from emblema.store.disk.entry import terms_of
from emblema.store.format import is_passing
from emblema.store.handles import ReadRows, StoredRows
from emblema.store.identity import artifact_id
from emblema.store.pieces import CachedPiece
from emblema.store.record import Name, Record, RecordHeader, RecordReader, RecordTier, RemoteTier, Terms, is_id
from emblema.store.settings import StoreSettings
from emblema.store.statistics import StoreCounters
from emblema.store.uploads import LayerUploader

if TYPE_CHECKING:
    from emblema.store.disk import DiskEntry, DiskTier

log = logging.getLogger(__name__)

T = TypeVar("T")

DISK, REMOTE = "disk", "remote"

HEADER_KEYS = 4096
"""Keys read from headers of artifacts that are remembered."""


class TierStack:
    """Disk and remote, either of which may be missing.

    No call is made while the cache's lock is held: tiers wait for devices and have locks of their own. What fails is
    counted, and logged once for each tier and kind of call until that succeeds again.
    """

    def __init__(
        self,
        disk: "DiskTier | None",
        remote: RemoteTier | None,
        counters: StoreCounters,
        freshness: Freshness | None = None,
    ) -> None:
        self.disk = disk
        self.freshness = freshness or Freshness()
        self.remote = remote
        both: dict[str, RecordTier | None] = {DISK: disk, REMOTE: remote}
        self.tiers = {label: tier for label, tier in both.items() if tier is not None}
        self.counters = counters
        self._lock = threading.Lock()
        # Tier and kind of call whose last call failed.
        self._failing: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self.tiers)

    def read(self, id: str, owners: Sequence[str], parse: Callable[[str, RecordReader], T]) -> T | None:
        """Return what `parse` makes of the first record of an id that it can read; None where no tier has one.

        Args:
            owners: whose record is taken, in order.
            parse: is called with the tier's label and an open record. A record for which it raises EmblemaError,
                OSError or ValueError is distrusted, and the next tier is asked.
        """
        for label, owner in product(self.tiers, owners):
            reader = self._open(label, id, owner)
            if reader is None:
                continue
            try:
                return parse(label, reader)
            except (EmblemaError, OSError, ValueError) as error:
                self.distrust(label, id, reader.header.owner, error)
            finally:
                reader.close()
        return None

    def _open(self, label: str, id: str, owner: str) -> RecordReader | None:
        if not is_id(id) or (label == DISK and not self.freshness.current):
            return None
        try:
            reader = self.tiers[label].open(id, owner)
        except (EmblemaError, OSError) as error:
            self.counters.add(owner, "load_failures")
            self.note_failure(label, "open", error, owner)
            return None
        self._note_success(label, "open")
        if reader is not None and (reader.header.id, reader.header.owner) != (id, owner):
            reader.close()
            self.distrust(label, id, owner, LoadError(id, "another piece was in its place"))
            return None
        return reader

    def ask_index(self, ask: "Callable[[DiskTier], T]", otherwise: T) -> T:
        """Return what the disk's index says; another value where it is not trusted, is missing or does not answer."""
        if self.disk is None or not self.freshness.current:
            return otherwise
        try:
            return ask(self.disk)
        except (EmblemaError, OSError) as error:
            self.note_failure(DISK, "look-up", error, None)
            return otherwise

    def entry(self, id: str, owner: str) -> "DiskEntry | None":
        """Return what the disk's index says of an owner's piece; files are not touched."""
        entry = self.ask_index(lambda disk: disk.entry(id), None) if is_id(id) else None
        return entry if entry is not None and entry.owner == owner else None

    def names_on_disk(self, names: Collection[Name]) -> frozenset[Name]:
        """Return those of some pieces that the disk's index has; one question for all, and files are not touched."""
        ids = sorted({id for _, id in names if is_id(id)})
        found: Sequence[DiskEntry] = self.ask_index(lambda disk: disk.entries_of(ids), []) if ids else []
        return frozenset((entry.owner, entry.id) for entry in found) & frozenset(names)

    def with_artifacts(self, chunks: Iterable[str]) -> frozenset[str]:
        """Return those of some chunks that any artifact on disk was made from; files are not touched."""
        ids = [chunk for chunk in chunks if is_id(chunk)]
        return self.ask_index(lambda disk: disk.has_patches(ids), frozenset()) if ids else frozenset()

    def entries(self, owner: str | None = None) -> "Sequence[DiskEntry]":
        """Return the disk's entries of an owner, or of all, trusted or not."""
        return [] if self.disk is None else list(self.disk.entries(owner=owner))

    def artifact_ids(self, chunk: str) -> Sequence[str]:
        """Return ids of the patches and other artifacts on disk that were made from a chunk."""
        return [] if self.disk is None else list(self.disk.patches_of(chunk))

    def holds(self, id: str, owner: str) -> bool:
        """Return whether a tier has an owner's piece."""
        if self.entry(id, owner) is not None:
            return True
        reader = None if self.remote is None else self._open(REMOTE, id, owner)
        if reader is None:
            return False
        reader.close()
        return True

    def distrust(self, label: str, id: str, owner: str, error: Exception) -> None:
        """Set aside and count a record that could not be read or did not verify."""
        self.counters.add(owner, "load_failures")
        log.warning("%s: %s", label, error)
        try:
            reason = getattr(error, "reason", str(error))
            if label == DISK and self.disk is not None and not is_passing(error):
                self.disk.quarantine(id, reason)
                self.counters.add(owner, "quarantined")
            elif label == REMOTE and self.remote is not None and self.remote.quarantine(id, owner, reason):
                self.counters.add(owner, "quarantined")
        except (EmblemaError, OSError) as failure:
            self.note_failure(label, "quarantine", failure, owner)

    def write(self, label: str, record: Record, terms: Terms) -> None:
        """Keep a record in one tier; as RecordTier.write."""
        self.tiers[label].write(record, terms)
        self._note_success(label, "write")

    def delete(self, names: Sequence[Name], *, here: bool = False) -> bool:
        """Delete pieces from every tier in this order, each even where an earlier one failed; `here` from disk alone.

        Returns:
            Whether anything was there.

        Raises:
            StoreError: a tier could not be reached, so that a piece may still be there.
        """
        found, failures = False, []
        for owner, id in names:
            unreachable = []
            for label, tier in self.tiers.items() if is_id(id) else ():
                if here and label == REMOTE:
                    continue
                try:
                    found |= tier.delete(id, owner)
                except (EmblemaError, OSError) as error:
                    self.note_failure(label, "delete", error, owner)
                    unreachable.append(f"{label} ({error})")
            if unreachable:
                failures.append(f"{id[:12]} is out of use, but could not be deleted from {' and '.join(unreachable)}")
        if failures:
            raise StoreError(f"{failures[0]}: delete it again")
        return found

    def maintain(self, what: str, call: "Callable[[DiskTier], object]") -> None:
        """Call the disk, if there is one; a failure is noted and is not raised."""
        if self.disk is None:
            return
        try:
            call(self.disk)
        except (EmblemaError, OSError) as error:
            self.note_failure(DISK, what, error, None)
        else:
            self._note_success(DISK, what)

    def note_failure(self, label: str, what: str, error: Exception, owner: str | None) -> None:
        """Count a tier's failure; log it unless the last call of its kind failed too."""
        if label == REMOTE and owner is not None:
            self.counters.add(owner, "remote_failures")
        with self._lock:
            known = (label, what) in self._failing
            self._failing.add((label, what))
        if not known:
            log.warning("%s tier, %s: %s", label, what, error)

    def _note_success(self, label: str, what: str) -> None:
        if self._failing:
            with self._lock:
                self._failing.discard((label, what))

    def close(self) -> None:
        """Close all tiers."""
        for tier in self.tiers.values():
            tier.close()


class TierReader:
    """Reads pieces from the slower tiers. Records that do not verify are distrusted; the next tier is asked.

    Args:
        tiers: the slower tiers.
        settings: say where rows are wanted, and the terms of records that carry none.
        rows: reads the rows of the chunks that are found.
    """

    def __init__(self, tiers: TierStack, settings: StoreSettings, rows: ReadRows) -> None:
        self._tiers, self._settings, self._rows = tiers, settings, rows
        self._device = settings.resolve_device()
        self._pinned = settings.pinned and all(each.type == "cpu" for each in settings.devices)
        self._lock = threading.Lock()
        # Keys read from headers, by id, which is a digest of the key.
        self._keys: OrderedDict[str, ArtifactKey] = OrderedDict()

    def read_chunk(self, id: str, owners: Sequence[str]) -> CachedPiece | None:
        """Return the first owner's chunk without its rows, or None."""

        def parse(label: str, reader: RecordReader) -> CachedPiece | None:
            header = reader.header
            if header.kind != "chunk":
                return None
            rows = StoredRows(header.owner, id, codec.layer_bytes(header), self._rows)
            encoded = move_encoding(codec.read_encoded(reader), self._device)
            piece = self._piece(label, header)
            piece.chunk = Chunk(id, codec.chunk_kind(header), header.model, encoded, rows)
            return piece

        return self._tiers.read(id, owners, parse)

    def read_artifact(self, id: str, owner: str, key: ArtifactKey) -> CachedPiece | None:
        """Return the owner's artifact of a key, or None."""

        def parse(label: str, reader: RecordReader) -> CachedPiece:
            found, patch = codec.read_artifact(reader)
            if found != key:
                raise StoreError(f"{id[:12]} holds another patch than its name says")
            piece = self._piece(label, reader.header)
            # Each layer where that layer's rows are.
            piece.key, piece.artifact = key, patch.spread(self._settings.row_devices(len(patch.layers)))
            return piece

        return self._tiers.read(id, (owner,), parse)

    def read_key(self, id: str, owner: str) -> ArtifactKey | None:
        """Return the key of an owner's artifact from its header alone, or None where it is damaged or gone."""
        with self._lock:
            if id in self._keys:
                return self._keys[id]

        def parse(label: str, reader: RecordReader) -> ArtifactKey:
            key = codec.artifact_key(reader)
            if artifact_id(key, owner) != id:
                raise StoreError(f"{id[:12]} holds another patch than its name says")
            return key

        key = self._tiers.read(id, (owner,), parse)
        if key is not None:
            with self._lock:
                self._keys[id] = key
                while len(self._keys) > HEADER_KEYS:
                    self._keys.popitem(last=False)
        return key

    def read_rows(self, piece: CachedPiece, rows: ArrivingRows) -> str:
        """Read a chunk's rows layer by layer into `rows`; returns the label of the tier that had them.

        Raises:
            LoadError: no tier has rows that verify.
        """
        error = LoadError(piece.id, "it is in no tier any more")

        def parse(label: str, reader: RecordReader) -> str:
            nonlocal error
            try:
                if codec.layer_bytes(reader.header) != piece.sizes:
                    raise LoadError(reader.header.id, "its layers have other sizes than before")
                uploader = LayerUploader(self._settings.row_devices(len(piece.sizes)), piece.sizes)
                for index, layer in enumerate(codec.read_layers(reader)):
                    if rows.failed is not None:
                        break
                    if self._pinned:
                        rows.arrive(index, layer.pinned())
                    else:
                        rows.arrive(index, *uploader.upload(index, layer))
                uploader.finish()
            except LoadError as failure:
                error = failure
                raise
            except (EmblemaError, OSError) as failure:
                error = LoadError(piece.id, str(failure))
                raise error from None
            return label

        label = self._tiers.read(piece.id, (piece.owner,), parse)
        if label is None:
            raise error
        return label

    def _piece(self, label: str, header: RecordHeader) -> CachedPiece:
        """Return a record's piece; terms in the disk's index include the pin.

        Raises:
            ValueError: the terms in the header are malformed.
        """
        entry, now = self._tiers.entry(header.id, header.owner) if label == DISK else None, self._settings.clock()
        terms = terms_of(header, self._settings.terms) if entry is None else entry.terms
        piece = CachedPiece(header.owner, header.id, terms, header.created, min(header.created, now), now)
        piece.saved = {label}
        return piece


def move_encoding(encoded: Encoded, device: torch.device) -> Encoded:
    """Return an encoding with its embeddings on a device; the same one where they are there already."""
    if encoded.embeds.device == device:
        return encoded
    deepstack = tuple(features.to(device) for features in encoded.deepstack)
    return replace(encoded, embeds=encoded.embeds.to(device), deepstack=deepstack)
