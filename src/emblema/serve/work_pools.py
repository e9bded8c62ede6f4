"""The threads of a server that are not the model's: one pool for each kind of work, none of which waits for another."""

from dataclasses import dataclass, field

from emblema.media.decoder_pool import decoding_places
from emblema.work_pool import PoolSize, TenantTurns, WorkPool

NOBODY = ""
"""The tenant of work that is the server's own, or of a request whose key is not known yet."""


def _decoding(name: str) -> WorkPool:
    places = decoding_places()
    return WorkPool(name, PoolSize(places, places - 1))


@dataclass(frozen=True, slots=True)
class WorkPools:
    """What a server does beside its model.

    Attributes:
        keys: looks up keys.
        tables: reads and writes what is known of files, caches and collections, and files' bytes.
        downloads: fetches media.
        pictures: decodes pictures, data addresses, and what a file is.
        clips: decodes documents, videos and sound.
        inputs: scales what was decoded to what the encoder takes, a picture or page at a time.
        upkeep: deletes what has expired, and follows other servers.
        uploads: turns of uploads that are read behind their answers.
        caches: turns of caches that are made, each of which waits for its patches.
    """

    keys: WorkPool = field(default_factory=lambda: WorkPool("keys", PoolSize(4, 4)))
    tables: WorkPool = field(default_factory=lambda: WorkPool("tables", PoolSize(16, 8)))
    downloads: WorkPool = field(default_factory=lambda: WorkPool("downloads", PoolSize(16, 4)))
    pictures: WorkPool = field(default_factory=lambda: _decoding("pictures"))
    clips: WorkPool = field(default_factory=lambda: _decoding("clips"))
    inputs: WorkPool = field(default_factory=lambda: WorkPool("inputs", PoolSize(2, 1)))
    upkeep: WorkPool = field(default_factory=lambda: WorkPool("upkeep", PoolSize(2, 2)))
    uploads: TenantTurns = field(default_factory=lambda: TenantTurns("their reading", PoolSize(2, 1, 1_000_000)))
    caches: TenantTurns = field(default_factory=lambda: TenantTurns("their caches", PoolSize(2, 1)))

    @property
    def threads(self) -> tuple[WorkPool, ...]:
        """The pools of threads."""
        return (self.keys, self.tables, self.downloads, self.pictures, self.clips, self.inputs, self.upkeep)

    def close(self) -> None:
        """Begin nothing more."""
        for pool in self.threads:
            pool.close()
