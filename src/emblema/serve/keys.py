"""Keys of a server: whose requests are whose, and who may use it.

Whoever gives a key may; on loopback anybody, as long as no key was ever made.
"""

import hashlib
import hmac
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from emblema.errors import EmblemaError, StoreError
from emblema.serve.faults import ServeError
from emblema.serve.settings import ServeSettings
from emblema.serve.work_pools import NOBODY
from emblema.store.files import make_folder, write_once
from emblema.store.identity import owner_digest, request_salt
from emblema.work_pool import WorkPool

_TABLES = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, tenant TEXT NOT NULL, administrator INTEGER NOT NULL,
    quota INTEGER, created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS first_key (created REAL NOT NULL)
"""
_REMEMBER = """
INSERT INTO first_key SELECT min(created) FROM keys WHERE NOT EXISTS (SELECT 1 FROM first_key) HAVING count(*) > 0
"""
_SALT = "emblema 2026-11 tenant salt 1"
_FINGERPRINT = "emblema 2026-11 server secret fingerprint 1"
_CACHE_SALT = "emblema 2026-11 vllm tenant salt 1"
_PREFIX = "emb"
_DUMMY = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a request is.

    Attributes:
        name: of the tenant.
        salt: the tenant's secret; ids made under different salts never meet.
        quota: bytes of its files; None for the server's.
        administrator: whether it may write shared collections.
    """

    name: str
    salt: bytes
    quota: int | None = None
    administrator: bool = False

    @property
    def owner(self) -> str:
        """Whose its files and rows are: a digest that does not tell the salt."""
        return owner_digest(self.salt)


LOCAL = Tenant("local", b"", administrator=True)
"""The tenant of a server without keys, which listens on loopback alone."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as it is listed; the key itself is shown once, when it is made."""

    id: str
    tenant: str
    administrator: bool
    quota: int | None
    created: float


class KeyRing:
    """The keys in a server's folder, as digests; a tenant's salt follows from its name and the folder's secret.

    A folder remembers that a key was made in it: taking back the last one opens no server. They have a file of their
    own, which unlike a catalogue is never made again: a server whose keys are damaged is opened to nobody.

    Raises:
        StoreError: the file cannot be opened, or is no database.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.sqlite"
        try:
            make_folder(folder)
            with self._rows() as rows:
                rows.executescript(_TABLES)
                # An older version made keys without it.
                rows.execute(_REMEMBER)
            self._path.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be opened: {error}") from error
        self._secret = _secret_of(folder / "serve-secret")

    def add(self, tenant: str, administrator: bool = False, quota: int | None = None) -> str:
        """Make a key for a tenant and return it; `EmblemaError` where this is no name, or no quota."""
        if not tenant or len(tenant) > 64 or not tenant.isprintable():
            raise EmblemaError(f"{tenant[:80]!r} is no tenant's name: give 1 to 64 printable characters")
        if quota is not None and quota < 1:
            raise EmblemaError(f"a quota of {quota} bytes is none: give 1 or more")
        id, rest = secrets.token_hex(6), secrets.token_urlsafe(32)
        with self._rows() as rows:
            row = (id, _digest(rest), tenant, administrator, quota, time.time())
            rows.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
            rows.execute(_REMEMBER)
        return f"{_PREFIX}-{id}-{rest}"

    def list(self) -> tuple[KeyEntry, ...]:
        """Return all keys, the oldest first."""
        with self._rows() as rows:
            found = rows.execute("SELECT id, tenant, administrator, quota, created FROM keys ORDER BY created")
            return tuple(KeyEntry(id, tenant, bool(role), quota, created) for id, tenant, role, quota, created in found)

    def revoke(self, id: str) -> bool:
        """Take a key back, by its id; return whether there was one."""
        with self._rows() as rows:
            return rows.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount > 0

    def __len__(self) -> int:
        with self._rows() as rows:
            return int(rows.execute("SELECT COUNT(*) FROM keys").fetchone()[0])

    @property
    def asked_for(self) -> bool:
        """Whether requests need a key: once there was one. Deleting `keys.sqlite` forgets it, with all keys."""
        with self._rows() as rows:
            return rows.execute("SELECT 1 FROM first_key").fetchone() is not None

    def tenant(self, key: str) -> Tenant | None:
        """Return whose a key is; None for a key that is not known. Digests are compared in constant time."""
        prefix, _, rest = key.partition("-")
        id, _, rest = rest.partition("-")
        with self._rows() as rows:
            row = rows.execute("SELECT * FROM keys WHERE id = ?", (id,)).fetchone()
        same = hmac.compare_digest(_digest(rest), _DUMMY if row is None else row["digest"])
        if row is None or not same or prefix != _PREFIX:
            return None
        return Tenant(row["tenant"], self.salt(row["tenant"]), row["quota"], bool(row["administrator"]))

    def salt(self, tenant: str) -> bytes:
        """Return a tenant's salt."""
        return blake3(tenant.encode(), key=blake3(self._secret, derive_key_context=_SALT).digest()).digest()

    @contextmanager
    def _rows(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction: all of it is done, and durable, or after an exception nothing.

        Raises:
            StoreError: the file fails.
            ServeError: another process holds it for longer than is waited for.
        """
        try:
            with closing(sqlite3.connect(self._path, timeout=10.0)) as rows, rows:
                rows.row_factory = sqlite3.Row
                # Unlike with FULL, the deletion of the journal is durable too.
                rows.execute("PRAGMA synchronous = EXTRA")
                yield rows
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise ServeError(503, "keys.sqlite is held by another process: try again", "store_busy") from error
            raise StoreError(f"{self._path} fails: {error}") from error

    @property
    def fingerprint(self) -> str:
        """A digest of the secret: rings of one secret know tenants alike. Empty where there was never a key."""
        return blake3(self._secret, derive_key_context=_FINGERPRINT).hexdigest() if self.asked_for else ""

    def tenants_named(self, name: str, owner: str) -> Iterator[Tenant]:
        """Yield the tenant of a name, if the owner is its; none where the folder's secret is another than it was."""
        tenants = (LOCAL, Tenant(name, self.salt(name)))
        return (tenant for tenant in tenants if tenant.owner == owner)


class Access:
    """Tells whose a request is.

    Args:
        keys: of the server.
        open: whether no key is needed as long as there never was one.
        pool: looks keys up, so that whoever holds their file holds up no event loop.
        own: keys of the operator, in place of none: requests with one of them are the local tenant's.
    """

    def __init__(self, keys: KeyRing, open: bool, pool: WorkPool, own: Collection[str] = ()) -> None:
        self._keys, self._open, self._pool, self._own = keys, open, pool, own
        self._asked = False

    async def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""
        return await self._pool.run(NOBODY, self._find, authorization)

    def _find(self, authorization: str | None) -> Tenant:
        kind, _, key = (authorization or "").partition(" ")
        given = key.strip().encode() if kind.lower() == "bearer" else b""
        if any([hmac.compare_digest(own.encode(), given) for own in self._own]):
            return LOCAL
        if not self._own and not self._is_asked:
            return LOCAL
        tenant = self._keys.tenant(key.strip()) if given else None
        if tenant is None:
            raise ServeError(401, "give a key of this server: `Authorization: Bearer emb-…`", "invalid_api_key")
        return tenant

    @property
    def _is_asked(self) -> bool:
        """Whether a key is needed. Once one was, it is until the server ends, whatever becomes of the file."""
        if not self._open:
            return True
        self._asked = self._asked or self._keys.asked_for
        return self._asked


def check_open(keys: KeyRing, settings: ServeSettings) -> None:
    """Raise `EmblemaError` where others reach the server and there is no key."""
    if not settings.loopback and len(keys) == 0:
        raise EmblemaError(
            f"{settings.host} is reached by others and there is no key: make one with `emblema keys add NAME`, or "
            "serve on 127.0.0.1"
        )


def cache_salt(tenant: Tenant) -> str | None:
    """Return the `cache_salt` of a tenant's requests inside vLLM; None for a server without keys."""
    return None if tenant is LOCAL else blake3(tenant.salt, derive_key_context=_CACHE_SALT).hexdigest()


def store_salts(tenant: Tenant) -> tuple[bytes, ...]:
    """Return the salts under which a store has a tenant's pieces: the embedded engine's, then those made inside vLLM.

    Both engines may share a store, and what one of them holds or lets go may be the other's.
    """
    written = cache_salt(tenant)
    return (tenant.salt,) if written is None else (tenant.salt, request_salt(written))


def _digest(text: str) -> bytes:
    # Keys hold 256 random bits: a plain digest cannot be searched.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _secret_of(path: Path) -> bytes:
    """Return the folder's secret; made once, for its owner alone to read."""
    try:
        secret = write_once(path, secrets.token_bytes(32))
    except OSError as error:
        raise StoreError(f"the server's secret cannot be kept: {error}") from error
    if len(secret) != 32:
        raise StoreError(f"{path} is no secret of a server: restore it, or delete the folder's keys with it")
    return secret
