"""Random use of a store, beside a plain model of what must and must not be there."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emblema.errors import CapacityError, LoadError
from emblema.kv.patch import Patch
from emblema.store import ArtifactKey, Store, TenantStore, Terms
from emblema.store.disk import DiskTier
from emblema.store.leases import Lease
from emblema.store.pieces import CachedPiece
from emblema.store.settings import StoreSettings
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.tiers import Clock, RecordingTier

TENANTS = ("a", "b", "shared")
tenants = st.sampled_from(TENANTS)
numbers = st.integers(1, 5)
Piece_ = tuple[str, int]


class StoreMachine(RuleBasedStateMachine):
    """Tenants a and b and the shared library; numbered chunks, whose numbers differ from tenant to tenant."""

    folder_wanted = False
    remote_wanted = False
    separate = False
    device, host = 1000, 600

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = Path(tempfile.mkdtemp()) / "store" if self.folder_wanted else None
        self.remote = RecordingTier() if self.remote_wanted else None
        # What was put and neither deleted nor expired: when, and when last used.
        self.alive: dict[Piece_, Terms] = {}
        self.born: dict[Piece_, float] = {}
        self.used: dict[Piece_, float] = {}
        self.durable: set[Piece_] = set()
        self.dead: set[Piece_] = set()
        # Deleted when no tier had them any more.
        self.unsure: set[Piece_] = set()
        self.patches: dict[tuple[str, ArtifactKey], Patch] = {}
        self.leases: list[tuple[ExitStack, Lease, dict[str, int]]] = []

    @initialize(write=st.sampled_from(["through", "back"]))
    def open(self, write: str = "through") -> None:
        self.options = {"write": write}
        self.start()

    def start(self) -> None:
        tier = None if self.folder is None else DiskTier(self.folder, 10**8, clock=self.clock)
        self.store = Store(
            tier,
            device_bytes=self.device,
            remote=self.remote,
            settings=StoreSettings(host_bytes=self.host, clock=self.clock, write=self.options["write"]),
        )
        self.store.cache.mover.copies = self.separate

    def view(self, tenant: str) -> TenantStore:
        return self.store.shared if tenant == "shared" else self.store.tenant(tenant.encode())

    def number(self, tenant: str, number: int) -> int:
        """As ids are salted, tenants have different ones; what is drawn as the same differs by the tenant."""
        return number + 10 * TENANTS.index(tenant)

    def expire(self) -> None:
        """Bring the model up to the clock."""
        for piece, terms in list(self.alive.items()):
            now = self.clock.now
            old = terms.seconds is not None and now - self.born[piece] >= terms.seconds
            idle = terms.idle_seconds is not None and now - self.used[piece] >= terms.idle_seconds
            if old or idle:
                self.gone(piece)

    def gone(self, piece: Piece_) -> None:
        self.alive.pop(piece, None)
        self.durable.discard(piece)
        self.dead.add(piece)
        owner, number = piece
        for key in [key for key in self.patches if name(number) in key[1].chunks and owner in (key[0], "shared")]:
            del self.patches[key]

    def visible(self, tenant: str) -> Iterator[Piece_]:
        return (piece for piece in self.alive if piece[0] in (tenant, "shared"))

    @rule(
        tenant=tenants,
        number=numbers,
        tokens=st.integers(1, 6),
        pinned=st.booleans(),
        seconds=st.sampled_from([None, None, 100.0]),
        idle=st.sampled_from([None, None, 50.0]),
    )
    def put(
        self, tenant: str, number: int, tokens: int, pinned: bool, seconds: float | None, idle: float | None
    ) -> None:
        self.expire()
        piece = tenant, self.number(tenant, number)
        known = piece in self.alive
        self.dead.discard(piece)
        self.unsure.discard(piece)
        terms = None if known else Terms(pinned=pinned and self.folder_wanted, seconds=seconds, idle_seconds=idle)
        before = self.view(tenant).find(name(piece[1]))
        tokens = tokens if before is None else before.tokens
        kept = self.view(tenant).put(numbered(piece[1], tokens), terms)
        assert kept.tokens == tokens and is_numbered(piece[1], kept.rows)
        if terms is not None:
            self.alive[piece], self.born[piece] = terms, self.clock.now
        elif before is None:
            # Lost and made again, without terms.
            self.alive[piece], self.born[piece] = Terms(), self.clock.now
        self.used[piece] = self.clock.now

    @rule(tenant=tenants, owner=tenants, number=numbers)
    def find(self, tenant: str, owner: str, number: int) -> None:
        self.expire()
        piece = owner, self.number(owner, number)
        found = self.view(tenant).find(name(piece[1]))
        if piece not in self.visible(tenant):
            assert found is None and name(piece[1]) not in self.view(tenant)
        elif piece in self.durable:
            assert found is not None
        if found is None:
            return
        self.used[piece] = self.clock.now
        try:
            assert is_numbered(piece[1], found.rows)
        except LoadError:
            assert piece not in self.durable

    @rule(tenant=tenants, number=numbers)
    def delete(self, tenant: str, number: int) -> None:
        self.expire()
        piece = tenant, self.number(tenant, number)
        deleted = self.view(tenant).delete(name(piece[1]))
        assert deleted or piece not in self.durable
        known, dead = piece in self.alive, piece in self.dead
        self.gone(piece)
        if not (deleted or dead):
            # Nothing was there: only a handle that is still held keeps it from being stored again.
            self.dead.discard(piece)
            if known:
                self.unsure.add(piece)

    @rule(tenant=tenants, owner=tenants, chunk=numbers, before=st.lists(numbers, max_size=2), rank=st.integers(1, 3))
    def put_artifact(self, tenant: str, owner: str, chunk: int, before: list[int], rank: int) -> None:
        self.expire()
        ids = [name(self.number(owner, number)) for number in (chunk, *before)]
        key, made = ArtifactKey("m", ids[0], tuple(ids[1:])), patch(rank)
        here = all(id in self.view(tenant) for id in ids)
        assert self.view(tenant).put_artifact(key, made) is here
        if here:
            self.patches[tenant, key] = made

    @precondition(lambda self: self.patches)
    @rule(data=st.data(), tenant=tenants)
    def find_patch(self, data: st.DataObject, tenant: str) -> None:
        self.expire()
        if not self.patches:
            return
        owner, key = data.draw(st.sampled_from(sorted(self.patches, key=str)))
        found = self.view(tenant).find_patch(key)
        known = self.patches.get((tenant, key)) or self.patches.get(("shared", key))
        if known is None:
            assert found is None
        elif (tenant, key) in self.patches and found is not None:
            assert found.rank == known.rank

    @rule(
        tenant=tenants,
        wanted=st.lists(st.tuples(tenants, numbers), min_size=1, max_size=3, unique=True),
        fill=st.booleans(),
    )
    def lease(self, tenant: str, wanted: list[Piece_], fill: bool) -> None:
        self.expire()
        pieces = [(owner, self.number(owner, number)) for owner, number in wanted]
        stack = ExitStack()
        try:
            lease = stack.enter_context(self.view(tenant).lease([name(number) for _, number in pieces], timeout=0.01))
        except CapacityError:
            return
        rows: dict[str, int] = {}
        for piece in pieces:
            id = name(piece[1])
            if piece not in self.visible(tenant):
                assert id in lease.missing
            elif piece in self.durable:
                assert id in lease.rows
            if id in lease.rows:
                self.used[piece] = self.clock.now
                try:
                    assert is_numbered(piece[1], lease.rows[id])
                    rows[id] = piece[1]
                except LoadError as error:
                    assert piece not in self.durable
                    lease.drop(error)
            if id in lease.missing and fill and piece[0] == tenant and piece not in self.unsure:
                dead = piece in self.dead
                lease.fill(numbered(piece[1]))
                rows[id] = piece[1]
                if dead:
                    assert id not in self.view(tenant), "deleted or expired: not stored again"
                else:
                    self.alive[piece], self.born[piece] = Terms(), self.clock.now
                    self.used[piece] = self.clock.now
        self.leases.append((stack, lease, rows))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        stack, lease, rows = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        assert all(is_numbered(number, lease.rows[id]) for id, number in rows.items())
        stack.close()

    @rule(tenant=tenants, number=numbers, pinned=st.booleans())
    def pin(self, tenant: str, number: int, pinned: bool) -> None:
        self.expire()
        id = name(self.number(tenant, number))
        if self.folder_wanted or not pinned:
            view = self.view(tenant)
            assert (view.pin(id) if pinned else view.unpin(id)) <= ((tenant, self.number(tenant, number)) in self.alive)

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def sweep(self) -> None:
        self.store.expire()

    @rule()
    def flush(self) -> None:
        self.expire()
        self.store.flush()
        if self.folder_wanted or self.remote_wanted:
            held = {piece.id for piece in self.store.cache.table if piece.saved}
            self.durable |= {piece for piece in self.alive if name(piece[1]) in held}
            assert not any(not piece.saved for piece in self.store.cache.table)

    @precondition(lambda self: self.folder_wanted)
    @rule()
    def restart(self) -> None:
        for stack, _, _ in self.leases:
            stack.close()
        self.leases.clear()
        self.store.close()
        self.start()
        # Nothing remembers the dead from here on; what is made again is kept again.
        self.dead.clear()
        self.unsure.clear()

    def pieces(self) -> list[CachedPiece]:
        held = [piece for _, lease, _ in self.leases for piece in lease._pieces.values()]
        return list({id(piece): piece for piece in [*self.store.cache.table, *held]}.values())

    @invariant()
    def bytes_counted_are_bytes_held(self) -> None:
        cache = self.store.cache
        with cache.changed:
            assert cache.changed.wait_for(
                lambda: not any(piece.pending or piece.loading for piece in self.pieces()), 10
            )
            held = {"device": 0, "host": 0}
            for piece in self.pieces():
                held[piece.tier] += 0 if piece.artifact is None else piece.artifact.bytes
                if piece.chunk is not None:
                    rows = 0 if piece.rows is None else sum(layer.bytes for layer in piece.rows)
                    held[piece.tier] += rows + piece.chunk.encoded.bytes
            assert held == {tier: cache.table.bytes[tier] for tier in held}
            leased = {piece.name: piece for _, lease, _ in self.leases for piece in lease._pieces.values()}
            assert cache.table.leased_bytes >= sum(piece.full_bytes for piece in leased.values())
            assert (cache.table.leased_bytes == 0) == (not leased)
            loose = [piece for piece in cache.table if not piece.leases]
            pinned = [piece for piece in loose if piece.terms.pinned and not piece.saved]
            if not leased and not pinned:
                assert cache.table.bytes["device"] <= self.device
            assert cache.table.bytes["host"] <= self.host or pinned

    @invariant()
    def what_is_leased_is_not_evicted(self) -> None:
        for _, lease, rows in self.leases:
            for id, number in rows.items():
                owner = TENANTS[number // 10]
                assert lease.rows[id] is not None
                if (owner, number) in self.alive and self.used[owner, number] == self.clock.now:
                    assert id in self.view(owner)

    def teardown(self) -> None:
        for stack, _, _ in self.leases:
            stack.close()
        self.store.close()
        if self.folder is not None:
            shutil.rmtree(self.folder.parent)


class DiskMachine(StoreMachine):
    folder_wanted = True


class EveryTierMachine(DiskMachine):
    remote_wanted = True


class SeparateMachine(EveryTierMachine):
    """As with a GPU: rows are copied between device and host memory, in the background."""

    separate = True


TestMemory = StoreMachine.TestCase
TestMemory.settings = settings(stateful_step_count=30)
TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(stateful_step_count=30, max_examples=10)
TestEveryTier = EveryTierMachine.TestCase
TestEveryTier.settings = settings(stateful_step_count=30, max_examples=10)
TestSeparate = SeparateMachine.TestCase
TestSeparate.settings = settings(stateful_step_count=30, max_examples=8)
