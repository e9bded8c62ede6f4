"""Media of requests: fetched and decoded in pools of their own, and counted before they are there."""

from emblema.media import MediaLimits, media_kind
from emblema.media.decoder_pool import counting_decoded
from emblema.media.load import LoadedMedia, load_media
from emblema.media.settings import PLAIN, MediaSettings
from emblema.media.source import is_address, read_source
from emblema.serve.faults import ServeError
from emblema.serve.held_bytes import HeldBytes, Holding
from emblema.serve.keys import Tenant
from emblema.serve.work_pools import WorkPools


class MediaReader:
    """Fetches what parts of requests name by an address, and decodes it, within limits.

    Args:
        limits: bounds on each piece.
        pools: of the server.
        held: what its requests hold.
    """

    def __init__(self, limits: MediaLimits, pools: WorkPools, held: HeldBytes) -> None:
        self.limits, self.pools, self.held = limits, pools, held

    async def fetch(self, tenant: Tenant, address: str | None) -> bytes:
        """Return the bytes at the address that a part names; errors as `read_source`."""
        if address is None or not is_address(address):
            raise ServeError(400, "a part with media needs a file_id, or a data, http or https address")
        # A data address waits for nobody.
        pool = self.pools.pictures if address[:5].lower() == "data:" else self.pools.downloads
        return await pool.run(tenant.owner, read_source, address, self.limits)

    async def kind_of(self, tenant: Tenant, data: bytes) -> str:
        """Return the kind of media that a file is; `MediaError` where it is of none."""
        return await self.pools.pictures.run(tenant.owner, media_kind, data, self.limits)

    async def load(
        self, tenant: Tenant, data: bytes, kind: str | None, holding: Holding, settings: MediaSettings = PLAIN
    ) -> LoadedMedia:
        """Return what is decoded of a file of a kind, or of any, as the settings say.

        Raises:
            MediaError: the file cannot be decoded.
            ServeError: the request's media are too large together.
            BusyError: the tenant's, or the server's, are.
        """
        with holding.keeping(len(data)):
            await holding.begin()
            if kind is None:
                kind = await self.kind_of(tenant, data)
            pool = self.pools.pictures if kind == "image" else self.pools.clips
            return await pool.run(tenant.owner, self._decode, data, kind, holding, settings)

    def _decode(self, data: bytes, kind: str, holding: Holding, settings: MediaSettings) -> LoadedMedia:
        with counting_decoded(holding.take_decoded):
            return load_media(data, kind, limits=self.limits, settings=settings)
