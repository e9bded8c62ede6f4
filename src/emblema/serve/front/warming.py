"""Parts that an engine is shown once: the plugin within makes their rows and patches, which can be kept."""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from emblema.errors import BusyError, MediaError
from emblema.kv.keys import ArtifactKey
from emblema.link.policy.policy import Policy
from emblema.serve.caches import CachePart
from emblema.serve.faults import ServeError
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.engine_api import give_options, report_of
from emblema.serve.keys import Tenant, store_salts
from emblema.served.shards import shard_ids, shard_key
from emblema.session.warm_parts import TEXT
from emblema.store.disk.entry import DiskEntry
from emblema.store.identity import artifact_id, owner_digest
from emblema.store.store import Store
from emblema.store.warm_parts import WarmParts
from emblema.work_pool import WorkPool

Ask = Callable[[Tenant, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Has the engine answer a tenant's chat request; raises ServeError where it refuses."""
PICTURES_AT_ONCE = 16
"""Pictures that are shown together while some of them have no rows yet; the plugin lets only so many wait."""
SHOWN_AT_MOST = 8
"""How often parts are shown: rows that found no room to wait are read from a later request."""
KEEPING_SECONDS = 15.0
"""How long rows and patches of one request are awaited before the parts are shown again."""
KNOWN_PARTS = 8_192
"""Parts that were shown alone and are known again."""
NOT_KEPT = "not_kept"
"""The code of the error for parts of which the plugin keeps nothing."""
ROWS_ALONE = "blind"
"""A strategy that forms no patches."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ShownParts:
    """What the plugin says of parts that were shown.

    Attributes:
        model: the model's fingerprint.
        chunks: ids of their chunks, in order.
        tokens: rows of these.
        forming: ids of chunks whose patches are being formed.
        stored: whether nothing was lacking when they were shown.
        shards: workers that the model's heads are split over; each stores a share of every piece.
    """

    model: str
    chunks: tuple[str, ...]
    tokens: int
    forming: frozenset[str]
    stored: bool
    shards: int

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the chunks' rows, every rank's."""
        return tuple(id for chunk in self.chunks for id in shard_ids(chunk, self.shards))

    def patches(self, owner: str) -> dict[str, tuple[str, ...]]:
        """Return the ids of an owner's patches of this order, every rank's, by chunk; one that comes twice by its first
        place."""
        ids: dict[str, tuple[str, ...]] = {}
        for index, chunk in enumerate(self.chunks):
            if chunk not in ids:
                key = ArtifactKey(self.model, chunk, self.chunks[:index])
                ids[chunk] = tuple(artifact_id(shard_key(key, rank), owner) for rank in range(self.shards))
        return ids


class PartWarmer:
    """Has rows and patches made by showing parts to the engine, and waits until they are on disk.

    Args:
        store: on the plugin's folder; it makes nothing.
        engine: that makes them.
        ask: has the engine answer a tenant's request.
        pool: looks at the disk.
    """

    def __init__(self, store: Store, engine: EngineClient, ask: Ask, pool: WorkPool) -> None:
        self._store, self._engine, self._ask, self._pool = store, engine, ask, pool
        # By owner and digest of a part that was shown alone: its chunk and the rows of it.
        self._known: OrderedDict[tuple[str, bytes], ShownParts] = OrderedDict()

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Show parts in their order until their rows and patches are on disk, and return what is there.

        Patches that could not be formed are left out: requests compute those rows, and leave the patches.

        Args:
            tenant: whose they are.
            parts: texts, and files that are pictures.

        Raises:
            ServeError: there is no such file, the engine refuses the parts, or the plugin keeps nothing of them.
            MediaError: a file is no picture.
            BusyError: rows were not kept, as others wait.
        """
        content = [
            {"type": "text", "text": value} if kind == "text" else {"type": "input_image", "file_id": value}
            for kind, value in parts
        ]
        files = list(dict.fromkeys(value for kind, value in parts if kind == "file"))
        for start in range(0, len(files) if len(files) > PICTURES_AT_ONCE else 0, PICTURES_AT_ONCE):
            group = [{"type": "input_image", "file_id": id} for id in files[start : start + PICTURES_AT_ONCE]]
            await self._show_until_kept(tenant, group, ROWS_ALONE)
        # A picture that leads is exact and gets no patch: behind a text it does.
        behind = content if content[0]["type"] == "text" else [{"type": "text", "text": TEXT}, *content]
        return (await self._show_until_kept(tenant, behind, f"patch-{100 * Policy().share:g}%"))[0]

    async def warm_part(self, tenant: Tenant, part: Mapping[str, Any]) -> tuple[WarmParts, bool]:
        """Have the rows of a picture on disk, and return what is there and whether it had to be shown for that.

        Args:
            tenant: whose it is.
            part: as a chat request has it, with its data.

        Raises:
            EmblemaError: as `warm`.
        """
        owner = owner_digest(store_salts(tenant)[-1])
        name = (owner, blake3(json.dumps(part, sort_keys=True).encode()).digest())
        shown, fresh = self._known.get(name), False
        kept = {} if shown is None else await self._pool.run(owner, self._on_disk, owner, shown.ids)
        if shown is None or not kept.keys() >= set(shown.ids):
            _, shown = await self._show_until_kept(tenant, [part], ROWS_ALONE)
            kept, fresh = await self._pool.run(owner, self._on_disk, owner, shown.ids), True
            self._known[name] = shown
        self._known.move_to_end(name)
        if len(self._known) > KNOWN_PARTS:
            self._known.popitem(last=False)
        return WarmParts(shown.tokens, {id: entry.bytes for id, entry in kept.items()}), fresh

    async def chunks_of(self, tenant: Tenant, id: str) -> tuple[str, ...]:
        """Return the ids under which rows of a file are stored, every rank's; none where the plugin keeps none of it.

        The file is shown once more, and nothing is kept of that: its chunk follows from its pixels and the tenant, in
        whichever request it was shown. Where rows of it wait to be stored, the plugin drops them, if it can.

        Raises:
            EmblemaError: there is no such file, or the engine does not answer now.
        """
        part = {"type": "file", "file": {"file_id": id}}
        try:
            shown = await self._show(tenant, [part], ROWS_ALONE, capture=False, forget=True)
        except MediaError:
            return ()
        except ServeError as error:
            # Parts that the engine refuses have no rows either.
            if error.code != NOT_KEPT and error.status != 400:
                raise
            return ()
        return shown.ids

    async def _show_until_kept(
        self, tenant: Tenant, content: Sequence[Mapping[str, Any]], strategy: str
    ) -> tuple[WarmParts, ShownParts]:
        owner = owner_digest(store_salts(tenant)[-1])
        for _ in range(SHOWN_AT_MOST):
            shown = await self._show(tenant, content, strategy)
            patches = shown.patches(owner)
            chunks = set(shown.ids)
            awaited = chunks.union(*(patches[chunk] for chunk in shown.forming))
            kept = await self._await_kept(owner, chunks.union(*patches.values()), awaited)
            if kept.keys() >= awaited and (shown.stored or strategy == ROWS_ALONE):
                break
        if not kept.keys() >= chunks:
            raise BusyError("the rows were not kept, as too many others wait to be", KEEPING_SECONDS)
        return WarmParts(shown.tokens, {id: entry.bytes for id, entry in kept.items()}), shown

    async def _await_kept(self, owner: str, ids: Collection[str], awaited: Collection[str]) -> dict[str, DiskEntry]:
        """Return which of an owner's pieces are on disk, once the awaited ones are or their time is over."""
        until = time.monotonic() + KEEPING_SECONDS
        while True:
            kept = await self._pool.run(owner, self._on_disk, owner, list(ids))
            if kept.keys() >= set(awaited) or time.monotonic() > until:
                return kept
            await asyncio.sleep(_POLL_SECONDS)

    def _on_disk(self, owner: str, ids: Sequence[str]) -> dict[str, DiskEntry]:
        disk = self._store.disk
        found = [] if disk is None else disk.entries_of(ids)
        return {entry.id: entry for entry in found if entry.owner == owner}

    async def _show(
        self, tenant: Tenant, content: Sequence[Mapping[str, Any]], strategy: str, **more: bool
    ) -> ShownParts:
        api = await self._engine.learn()
        if api.options_in is None:
            raise ServeError(404, f"rows are kept in vLLM and SGLang: {api.name} is neither", NOT_KEPT)
        body = {
            "model": self._engine.model, "messages": [{"role": "user", "content": content}], "temperature": 0,
            "max_tokens": 1, **api.wants_report,
        }  # fmt: skip
        give_options(body, api, {"strategy": strategy, "pieces": True, **more})
        told = report_of(await self._ask(tenant, body))
        pieces = told.get("pieces")
        if not pieces or not pieces["chunks"]:
            raise ServeError(503, "the plugin keeps nothing of these parts: the server's log says why", NOT_KEPT)
        chunks, forming = tuple(pieces["chunks"]), frozenset(pieces["forming"])
        return ShownParts(pieces["model"], chunks, told["media_tokens"], forming, told["stored"], pieces["shards"])
