"""Collections of servers with folders of their own: what they hold is in Redis, and each server makes its own rows."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from emblema.errors import EmblemaError
from emblema.serve.collection_items import CollectionEntry, CollectionItem, Collections
from emblema.serve.file_bytes import answered
from emblema.serve.files import PROCESSED, FileStore
from emblema.serve.keys import Tenant
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.redis import make_caller, open_redis

_LOG = logging.getLogger("emblema.serve")
MEDIA = Tenant("collections", b"emblema 2026-11 media of collections 1", quota=2**62)
"""Whose files the media of collections are. No key leads to it."""
_UNUSED_SECONDS, _SWEEP_SECONDS = 3_600.0, 60.0
"""After which media that no version names go, and between two looks for such."""
_WRITE = """
local version = redis.call('HINCRBY', KEYS[1] .. '/versions', ARGV[1], 1)
redis.call('HSET', KEYS[1] .. '/items', ARGV[1], cjson.encode({version, ARGV[2]}))
return version
"""


class SharedCollections(Collections):
    """Collections that any number of servers write, read and follow.

    A version's media are files of nobody's, so that it outlives the files that it was made of. A server that reads of a
    new version makes that of its own library; its rows come from the shared tier where another has made them.

    Args:
        local: this server's own, which read their media as files of `MEDIA`.
        files: of all servers.
        url, prefix, keywords: as of `RedisTier`.
    """

    def __init__(
        self,
        local: Collections,
        files: FileStore,
        url: str,
        prefix: str = "emblema",
        **keywords: Unpack[RemoteKeywords],
    ) -> None:
        options = RemoteOptions(prefix, **keywords)
        self._client, address = open_redis(url, options)
        self._caller = make_caller(url, address, options)
        self._root, self._local, self._files = f"{prefix}/collections/1", local, files
        self._publish_script = self._client.register_script(_WRITE)
        self._versions: dict[str, int] = {}
        self._turn = asyncio.Lock()

    def entries(self) -> list[CollectionEntry]:
        return [self._told(entry) for entry in self._local.entries()]

    def entry(self, name: str) -> CollectionEntry:
        return self._told(self._local.entry(name))

    async def write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> CollectionEntry:
        kept = [await asyncio.to_thread(self.kept, tenant, item) for item in items]
        async with self._turn:
            # What cannot be read is refused here, before others hear of it.
            await self._local.write(MEDIA, name, kept)
            self._versions[name] = await asyncio.to_thread(self._publish, name, kept)
        return await asyncio.to_thread(self.entry, name)

    async def delete(self, name: str) -> None:
        async with self._turn:
            await asyncio.to_thread(self._local.entry, name)
            version = await asyncio.to_thread(self._publish, name, [])
            await self._local.delete(name)
            self._versions[name] = version

    async def follow(self) -> None:
        """Make what others have written since the last call.

        Raises:
            EmblemaError: the server does not answer, or an item cannot be made here.
        """
        failures = []
        async with self._turn:
            for name, (version, items) in (await asyncio.to_thread(self._published)).items():
                if version != self._versions.get(name):
                    try:
                        await self._take(name, items)
                        self._versions[name] = version
                    except EmblemaError as error:
                        # One that cannot be made here holds up no other.
                        failures.append(error)
        if failures:
            raise failures[0]

    async def _take(self, name: str, items: Sequence[CollectionItem]) -> None:
        if items:
            await self._local.write(MEDIA, name, items)
        elif name in {entry.name for entry in await asyncio.to_thread(self._local.entries)}:
            await self._local.delete(name)

    async def keep_following(self, seconds: float) -> None:
        """Follow every so many seconds, and delete what nothing names any more, until the server ends."""
        failing, looked = False, time.monotonic()
        while True:
            try:
                await self.follow()
                if time.monotonic() - looked > _SWEEP_SECONDS:
                    await asyncio.to_thread(self.drop_unused)
                    looked = time.monotonic()
                failing = False
            except EmblemaError as error:
                if not failing:
                    _LOG.warning("collections of other servers cannot be followed, it is tried again: %s", error)
                failing = True
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """Let go of connections."""
        self._client.connection_pool.disconnect()

    def _told(self, entry: CollectionEntry) -> CollectionEntry:
        """Return an entry with the version that all servers tell."""
        return replace(entry, version=self._versions.get(entry.name, entry.version))

    def kept(self, tenant: Tenant, item: CollectionItem) -> CollectionItem:
        """Return an item whose media are the collections' own."""
        if item.file_id is None:
            return item
        data = self._files.read(tenant, item.file_id)
        entry = self._files.add(MEDIA, data, item.name, "assistants", None)
        # Nothing is prefilled of it: the collection's rows are its own.
        self._files.note(MEDIA, entry.id, PROCESSED, None, None, ())
        return CollectionItem(name=item.name, file_id=entry.id, text=None)

    def _publish(self, name: str, items: Sequence[CollectionItem]) -> int:
        written = json.dumps([item.model_dump(exclude_none=True) for item in items])
        return int(answered(self._caller, self._publish_script, [self._root], [name, written]))

    def _published(self) -> dict[str, tuple[int, list[CollectionItem]]]:
        found: dict[bytes, bytes] = answered(self._caller, self._client.hgetall, f"{self._root}/items")
        made: dict[str, tuple[int, list[CollectionItem]]] = {}
        for name, text in found.items():
            version, written = json.loads(text)
            items: list[dict[str, Any]] = json.loads(written)
            made[name.decode()] = int(version), [CollectionItem(**item) for item in items]
        return made

    def drop_unused(self) -> None:
        """Delete media that no version has named for an hour; younger ones may be another server's next version."""
        named = {item.file_id for _, items in self._published().values() for item in items}
        for entry in self._files.entries(MEDIA):
            if entry.id not in named and time.time() - entry.created > _UNUSED_SECONDS:
                self._files.delete(MEDIA, entry)
