"""Identity: 256-bit BLAKE3 digests over fields that cannot run into each other."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from blake3 import blake3

from emblema.errors import StoreError
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.store.record import SHARED

if TYPE_CHECKING:
    import torch

_CHUNK = "emblema 2026-11 chunk identity 1"
_OWNER = "emblema 2026-11 owner identity 1"
_PATCH = "emblema 2026-11 patch identity 2"
_REQUEST = "emblema 2026-11 request salt 1"
_TENANT = "emblema 2026-11 tenant identity 1"

SHARED_SALT = b"emblema 2026-11 shared library 1"
"""The salt of the shared library's ids: known to all, so that every tenant can ask for them; no tenant's own."""


def chunk_id(
    media: Iterable[bytes],
    *,
    options: Mapping[str, object],
    model_fingerprint: str,
    dtype: "str | torch.dtype",
    adapter_version: str,
    geometry: Sequence[int] = (),
    anchor: Sequence[int] = (),
    salt: bytes = b"",
) -> str:
    """Return the id of a chunk, 64 hexadecimal digits: equal only where every argument is equal.

    Args:
        media: canonical bytes of the decoded media (`media.media_bytes`), or a passage's token ids packed; the split
            into parts counts.
        options: every option of preprocessing; None, bool, int, float, str, bytes, and lists and mappings of these.
        model_fingerprint: digest of the weights, adapters and quantisation included.
        dtype: in which the rows are kept.
        adapter_version: of the code that captures them.
        geometry: the grid the encoder sees, where the media and the options do not settle it.
        anchor: fixed token ids that the chunk is prefilled after.
        salt: the tenant's secret; ids of two tenants have nothing in common.

    Raises:
        StoreError: an option is of another type, so that nothing certain can be said about it.
    """
    made = ChunkIds(media, options=options, version=adapter_version, geometry=geometry, anchor=anchor, salt=salt)
    return made.of(model_fingerprint, dtype)


class ChunkIds:
    """The ids of a chunk by the model that makes it; arguments and errors as of `chunk_id`. The media are not kept."""

    def __init__(
        self,
        media: Iterable[bytes],
        *,
        options: Mapping[str, object],
        version: str,
        geometry: Sequence[int] = (),
        anchor: Sequence[int] = (),
        salt: bytes = b"",
    ) -> None:
        # The key depends on the context and on all of the salt, however long it is.
        self._digest = blake3(key=blake3(salt, derive_key_context=_CHUNK).digest())
        parts = list(media)
        self._digest.update(struct.pack("<Q", len(parts)))
        for part in parts:
            self._digest.update(struct.pack("<Q", len(part)))
            self._digest.update(part)
        self._before, self._after = (list(geometry), dict(options)), (version, list(anchor))

    def of(self, model: str, dtype: "str | torch.dtype") -> str:
        """Return the id by a model's fingerprint and a data type."""
        digest = self._digest.copy()
        digest.update(canonical([*self._before, model, str(dtype).removeprefix("torch."), *self._after]))
        return str(digest.hexdigest())


@lru_cache(maxsize=4096)
def artifact_id(key: ArtifactKey, owner: str) -> str:
    """Return the id of one owner's artifact, 64 hexadecimal digits.

    Two tenants may form a patch of the same shared chunks; each keeps its own, as the text before it is its own.
    """
    # What `canonical` gives for the list of these five; a prompt's plan asks for many ids, so texts are joined here.
    antecedents = b"".join([_text(name) for name in key.antecedents])
    model = f"{key.model}/{key.kind}" if key.kind is ArtifactKind.REPAIR else key.model
    names = _text(owner) + _text(model) + _text(key.chunk)
    digest = blake3(derive_key_context=_PATCH)
    digest.update(_field(b"l", names + _field(b"l", antecedents) + _field(b"b", bytes([key.orbit]))))
    return digest.hexdigest()


def owner_digest(salt: bytes) -> str:
    """Return the owner of a tenant's pieces: 64 hexadecimal digits that do not tell the salt; `shared` for the shared
    library's salt.

    Raises:
        StoreError: the salt is not bytes.
    """
    if not isinstance(salt, bytes):
        raise StoreError(f"The salt is a {type(salt).__name__}: give bytes.")
    return SHARED if salt == SHARED_SALT else blake3(salt, derive_key_context=_TENANT).hexdigest()


def request_salt(written: str) -> bytes:
    """Return the salt of the tenant that a request names: 32 bytes that no text can be chosen for.

    A salt that comes with a request is not used as it is: it could be another tenant's, or the shared library's.
    """
    return blake3(written.encode("utf-8", "surrogatepass"), derive_key_context=_REQUEST).digest()


def owner_id(model_fingerprint: str, dtype: "str | torch.dtype", salt: bytes) -> str:
    """Return the owner of exact prefixes: one model in one dtype, of one tenant. 64 hexadecimal digits."""
    digest = blake3(key=blake3(salt, derive_key_context=_OWNER).digest())
    digest.update(canonical([model_fingerprint, str(dtype).removeprefix("torch.")]))
    return digest.hexdigest()


def canonical(value: object, place: str = "options") -> bytes:
    """Return a value as bytes, each with its type and its length in front: different values give different bytes.

    Lists and tuples are the same; the order of a mapping's keys does not count.
    """
    if value is None:
        return _field(b"n", b"")
    if isinstance(value, bool):
        return _field(b"b", bytes([value]))
    if isinstance(value, int):
        return _field(b"i", str(int(value)).encode())
    if isinstance(value, float):
        return _field(b"f", struct.pack("<d", value))
    if isinstance(value, str):
        return _field(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return _field(b"y", value)
    if isinstance(value, list | tuple):
        return _field(b"l", b"".join(canonical(item, f"{place}[{index}]") for index, item in enumerate(value)))
    if isinstance(value, Mapping):
        pairs = sorted((canonical(key, place), canonical(item, f"{place}[{key!r}]")) for key, item in value.items())
        return _field(b"m", b"".join(key + item for key, item in pairs))
    raise StoreError(
        f"{place} is a {type(value).__name__}: an identity takes None, bool, int, float, str, bytes, lists "
        "and mappings; write it as one of these."
    )


def _text(value: str) -> bytes:
    return _field(b"s", value.encode("utf-8", "surrogatepass"))


def _field(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<Q", len(body)) + body
