"""Media of requests: fetched and decoded in pools of their own, and counted before they are there."""

from emblema.media import MediaLimits, media_kind
from emblema.media.decoder_pool import counting_decoded
from emblema.media.load import LoadedMedia, load_media
from emblema.media.settings import PLAIN, MediaSettings
from emblema.media.source import is_address, read_source
from emblema.serve.faults import ServeError
from emblema.serve.held_bytes import HeldBytes, Holding
from emblema.serve.keys import Tenant
from emblema.serve.parts import MediaContent
from emblema.serve.work_pools import WorkPools
from emblema.work_pool import WorkPool


class MediaReader:
    """Fetches what parts of requests name by an address, and decodes it, within limits.

    Args:
        limits: bounds on each piece.
        pools: of the server.
        held: what its requests hold.
    """

    def __init__(self, limits: MediaLimits, pools: WorkPools, held: HeldBytes) -> None:
        self.limits, self.pools, self.held = limits, pools, held

    async def fetch(self, tenant: Tenant, part: MediaContent) -> tuple[str | None, bytes]:
        """Return what a part has to be, None for anything, and the bytes at its address; errors as `read_source`."""
        kind, address = part.kind, part.named.address
        if address is None or not is_address(address):
            raise ServeError(400, f"a part of type {part.type} needs a file_id, or a data, http or https address")
        return kind, await self._fetching(address).run(tenant.owner, read_source, address, self.limits)

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
                kind = await self.pools.pictures.run(tenant.owner, media_kind, data, self.limits)
            return await self._decoding(kind).run(tenant.owner, self._decode, data, kind, holding, settings)

    def _decode(self, data: bytes, kind: str, holding: Holding, settings: MediaSettings = PLAIN) -> LoadedMedia:
        with counting_decoded(holding.take_decoded):
            return load_media(data, kind, limits=self.limits, settings=settings)

    def fetch_now(self, tenant: Tenant, address: str, seconds: float) -> bytes:
        """As `fetch`, on a thread that may wait; `TimeoutError` after so many seconds."""
        asked = self._fetching(address).submit(tenant.owner, lambda: read_source(address, self.limits))
        try:
            return asked.result(seconds)
        finally:
            asked.cancel()

    def check_now(self, tenant: Tenant, data: bytes, holding: Holding, seconds: float) -> str:
        """Return the kind of media that can be decoded; errors as `load`, and `TimeoutError` after so many seconds."""
        asked = self.pools.pictures.submit(tenant.owner, lambda: media_kind(data, self.limits))
        try:
            kind = asked.result(seconds)
        finally:
            asked.cancel()
        decoded = self._decoding(kind).submit(tenant.owner, lambda: self._decode(data, kind, holding))
        try:
            decoded.result(seconds)
        finally:
            decoded.cancel()
        return kind

    def _fetching(self, address: str) -> WorkPool:
        # A data address waits for nobody.
        inline = address[:5].lower() == "data:"
        return self.pools.pictures if inline else self.pools.downloads

    def _decoding(self, kind: str) -> WorkPool:
        return self.pools.pictures if kind == "image" else self.pools.clips
