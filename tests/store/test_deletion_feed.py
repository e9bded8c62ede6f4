"""Deletions reach every store that has the feed, within the time that is stated; no history shows a later read."""

import random
import sqlite3
import threading
import time
from dataclasses import dataclass

import pytest

from emblema.errors import StoreError
from emblema.store import StoreSettings
from emblema.store.deletion_feed import FIRST, Deletions
from emblema.store.folder_feed import FolderFeed
from emblema.store.record import check_id
from emblema.store.remote import RedisFeed, RedisTier
from emblema.store.store import Store
from tests.store.pieces import name, numbered
from tests.store.remote.conftest import QUICK, prefix, redis_port, redis_server  # noqa: F401
from tests.store.remote.servers import FaultyProxy

OWNER = "a" * 64
SECONDS = 1.0


@pytest.fixture(params=["folder", "redis"])
def make_feed(request, tmp_path):
    """Return what opens one feed again and again."""
    if request.param == "folder":
        return lambda kept=1_000: FolderFeed(tmp_path / "shared" / "deletions.sqlite", kept)
    port, own = request.getfixturevalue("redis_port"), request.getfixturevalue("prefix")
    return lambda kept=1_000: RedisFeed(f"redis://127.0.0.1:{port}/0", own, kept, policy=QUICK)


def test_what_is_published_is_read_once_and_in_order(make_feed):
    writer, reader = make_feed(), make_feed()
    begin = reader.read(None)
    assert (list(begin.names), begin.gap) == ([], False)
    for number in range(5):
        writer.publish(OWNER, name(number))
    found = reader.read(begin.position)
    assert list(found.names) == [(OWNER, name(number)) for number in range(5)]
    assert not found.gap
    assert list(reader.read(found.position).names) == []
    assert make_feed().read(begin.position) == found


def test_a_reader_that_comes_too_late_is_told(make_feed, request):
    feed = make_feed(kept=10)
    feed.publish(OWNER, name(1))
    begin = feed.read(None).position
    # Redis trims whole nodes of its stream, of a hundred entries.
    for number in range(500):
        feed.publish(OWNER, name(number))
    assert feed.read(begin).gap
    assert not feed.read(feed.read(None).position).gap


def test_a_feed_that_was_lost_is_noticed(tmp_path):
    path = tmp_path / "deletions.sqlite"
    feed = FolderFeed(path)
    for number in range(3):
        feed.publish(OWNER, name(number))
    position = feed.read(None).position
    path.unlink()
    assert FolderFeed(path).read(position).gap


def test_a_feed_that_was_made_anew_or_put_back_is_told_from_the_one_that_was_read(tmp_path):
    """However many entries it has by now: what a reader of the lost one has not heard is a gap."""
    path, kept = tmp_path / "deletions.sqlite", tmp_path / "kept.sqlite"
    feed = FolderFeed(path)
    begin = feed.read(None).position
    feed.publish(OWNER, name(0))
    kept.write_bytes(path.read_bytes())
    for number in range(1, 6):
        feed.publish(OWNER, name(number))
    position = feed.read(None).position
    for made in (None, kept.read_bytes()):
        path.unlink()
        if made is not None:
            path.write_bytes(made)
        for number in range(9):
            # The same object goes on with another file.
            feed.publish(OWNER, name(100 + number))
        for reader in (feed, FolderFeed(path)):
            assert reader.read(position).gap
            assert reader.read(begin).gap == (made is None)
            now = reader.read(None).position
            assert reader.read(now) == Deletions((), now)


def test_a_file_of_an_older_version_goes_on(tmp_path):
    path = tmp_path / "deletions.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE deletions (position INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT, id TEXT)")
        connection.execute("INSERT INTO deletions (owner, id) VALUES (?, ?)", (OWNER, name(1)))
    feed = FolderFeed(path)
    position = feed.read(None).position
    feed.publish(OWNER, name(2))
    assert list(feed.read(position).names) == [(OWNER, name(2))]
    assert list(feed.read("1").names) == [(OWNER, name(2))], "where the older version had read to"
    assert feed.read("2").gap and feed.read("7").gap


def test_a_redis_stream_that_was_made_anew_is_noticed(redis_port, prefix):  # noqa: F811
    from redis import Redis

    feed, client = RedisFeed(f"redis://127.0.0.1:{redis_port}/0", prefix, policy=QUICK), Redis(port=redis_port)
    begin = feed.read(None).position
    feed.publish(OWNER, name(1))
    position = feed.read(None).position
    client.delete(f"{prefix}/deletions")
    feed.publish(OWNER, name(2))
    assert feed.read(position).gap and feed.read(begin).gap
    position = feed.read(None).position
    client.xadd(f"{prefix}/deletions", {"later": "another version's"})
    after = feed.read(position)
    assert after.gap and feed.read(after.position) == Deletions((), after.position), "missed once, and left behind"


def test_a_reader_goes_on_after_an_error_that_nobody_foresaw(tmp_path, monkeypatch):
    from emblema.store import deletion_feed

    monkeypatch.setattr(deletion_feed, "_REST_SECONDS", 0.01)
    feed = BrokenFeed()
    with opened(tmp_path, feed) as store:
        own = store.tenant()
        own.put(numbered(1))
        read, times = feed.read, []

        def failing(after):
            times.append(after)
            if len(times) < 4:
                raise ZeroDivisionError
            return read(after)

        feed.read = failing
        until(lambda: len(times) >= 4)
        feed.names.append((own.owner, name(1)))
        until(lambda: own.find(name(1)) is None)
        # An entry that is no deletion of this version may be one of anything.
        own.put(numbered(2))
        feed.names.append((own.owner, "../x"))
        until(lambda: own.find(name(2)) is None)


def test_a_redis_that_forgot_is_noticed(tmp_path):
    from tests.store.remote.servers import RedisServer

    server = RedisServer(tmp_path)
    try:
        feed = RedisFeed(server.url, policy=QUICK)
        feed.publish(OWNER, name(1))
        position = feed.read(None).position
        server.stop()
        with pytest.raises(StoreError):
            feed.publish(OWNER, name(2))
        with pytest.raises(StoreError):
            feed.read(position)
        server.start()
        time.sleep(QUICK.rest_seconds)
        assert feed.read(position).gap
    finally:
        server.stop()


def test_a_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "deletions.sqlite"
    FolderFeed(path)
    path.write_bytes(b"nonsense" * 600)
    with pytest.raises(StoreError, match="fails"):
        FolderFeed(path).read("0")


def opened(folder, feed, **options):
    return Store(folder, deletions=feed, settings=StoreSettings(deletion_seconds=SECONDS), **options)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
def test_another_stores_memory_and_disk_follow(make_feed, tmp_path):
    with opened(tmp_path / "a", make_feed()) as first, opened(tmp_path / "b", make_feed()) as second:
        for store in (first, second):
            store.tenant().put(numbered(1))
            store.tenant().put(numbered(2))
            store.flush()
        first.tenant().delete(name(1))
        until(lambda: second.tenant().find(name(1)) is None)
        assert second.tenant().find(name(2)) is not None
        # The follower's thread deletes the file after what finds it.
        until(lambda: second.disk.entry(name(1)) is None)
        # What is uploaded again is there again.
        second.tenant().put(numbered(1))
        time.sleep(SECONDS)
        assert second.tenant().find(name(1)) is not None


def test_what_was_deleted_while_a_store_was_closed_is_deleted_at_its_opening(make_feed, tmp_path):
    with opened(tmp_path / "b", make_feed()) as store:
        store.tenant().put(numbered(1))
    with opened(tmp_path / "a", make_feed()) as other:
        other.tenant().put(numbered(1))
        other.tenant().delete(name(1))
    with opened(tmp_path / "b", make_feed()) as store:
        assert store.tenant().find(name(1)) is None
        assert store.disk.entry(name(1)) is None


def test_a_store_that_missed_deletions_keeps_nothing(make_feed, tmp_path):
    with opened(tmp_path / "b", make_feed(kept=10)) as store:
        store.tenant().put(numbered(1))
    writer = make_feed(kept=10)
    for number in range(500):
        writer.publish(OWNER, name(1_000 + number))
    with opened(tmp_path / "b", make_feed(kept=10)) as store:
        assert store.tenant().find(name(1)) is None


class BrokenFeed:
    """A feed that answers or does not."""

    def __init__(self):
        self.broken, self.names = False, []

    def publish(self, owner, id):
        self._check()
        self.names.append((owner, check_id(id)))

    def read(self, after):
        from emblema.store.deletion_feed import Deletions

        self._check()
        given = len(self.names) if after is None else int(after)
        return Deletions(tuple(self.names[given:]), str(len(self.names)))

    def _check(self):
        if self.broken:
            raise StoreError("the feed is gone")

    def close(self):
        pass


def test_a_feed_that_is_gone_makes_slower_and_nothing_wrong(tmp_path):
    feed = BrokenFeed()
    with opened(tmp_path, feed) as store:
        own = store.tenant()
        own.put(numbered(1))
        store.flush()
        feed.broken = True
        until(lambda: own.find(name(1)) is None)
        assert not own.held([name(1)])
        # A deletion that the others cannot be told of is not acknowledged.
        own.put(numbered(2))
        with pytest.raises(StoreError, match="gone"):
            own.delete(name(2))
        # What is made now can be used: nobody can have deleted it long ago.
        own.put(numbered(3))
        with own.lease([name(3)]) as lease:
            assert lease is not None
        feed.broken = False
        until(lambda: own.find(name(1)) is not None)


@dataclass
class Event:
    """One call of a history: what, of which piece, and when it began and ended, in monotonic time."""

    kind: str
    id: str
    began: float
    ended: float


def violations(history, seconds):
    """Return reads that found what was deleted, and not put again, longer ago than so many seconds."""
    found = []
    for read in (event for event in history if event.kind == "found"):
        deletions = [e for e in history if e.kind == "deleted" and e.id == read.id and e.ended + seconds <= read.began]
        if not deletions:
            continue
        last = max(deletions, key=lambda event: event.began)
        if not any(
            e.kind == "put" and e.id == read.id and e.ended >= last.began and e.began <= read.ended for e in history
        ):
            found.append((read, last))
    return found


def test_the_checker_finds_a_late_read():
    put, deleted = Event("put", "x", 0, 1), Event("deleted", "x", 2, 3)
    assert violations([put, deleted, Event("found", "x", 4.5, 5)], 1)
    assert not violations([put, deleted, Event("found", "x", 3.5, 5)], 1)
    assert not violations([put, deleted, Event("put", "x", 4, 4.2), Event("found", "x", 4.5, 5)], 1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_no_history_shows_a_read_after_the_stated_time(seed, tmp_path, redis_server, prefix):  # noqa: F811
    """Three stores with clocks a minute apart, of which one cannot reach the server for a while."""
    proxy, history, ended = FaultyProxy(redis_server.port), [], threading.Event()
    ports = (redis_server.port, redis_server.port, proxy.port)
    offsets = (0.0, 60.0, -60.0)
    stores = [
        Store(
            tmp_path / str(number),
            remote=RedisTier(f"redis://127.0.0.1:{port}/0", prefix, part_bytes=4096, policy=QUICK),
            deletions=RedisFeed(f"redis://127.0.0.1:{port}/0", prefix, policy=QUICK),
            settings=StoreSettings(deletion_seconds=SECONDS, clock=lambda offset=offset: time.time() + offset),
        )
        for number, (port, offset) in enumerate(zip(ports, offsets, strict=True))
    ]

    def use(store, rng):
        own = store.tenant()
        while not ended.is_set():
            # Puts are rare, so that a read long after a deletion is not one of a later put.
            number = rng.randrange(30)
            kind = rng.choices(("put", "deleted", "found"), (1, 1, 30))[0]
            began = time.monotonic()
            try:
                if kind == "put":
                    own.put(numbered(number))
                elif kind == "deleted":
                    own.delete(name(number))
                elif own.find(name(number)) is None:
                    kind = "missing"
            except StoreError:
                # Not acknowledged; what was not deleted for certain may be found.
                kind = "failed"
            history.append(Event(kind, name(number), began, time.monotonic()))
            time.sleep(rng.uniform(0, 0.01))

    threads = [
        threading.Thread(target=use, args=(store, random.Random(10 * seed + number)))
        for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)
    proxy.hang = True
    time.sleep(4 * SECONDS)
    proxy.heal()
    proxy.cut()
    time.sleep(3)
    ended.set()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    proxy.close()
    counts = {kind: sum(event.kind == kind for event in history) for kind in ("put", "deleted", "found", "missing")}
    assert min(counts.values()) > 10, counts
    assert violations(history, SECONDS) == []


def test_the_position_is_beside_the_pieces(tmp_path):
    shared = FolderFeed(tmp_path / "shared.sqlite")
    with opened(tmp_path / "a", FolderFeed(tmp_path / "shared.sqlite")):
        shared.publish(OWNER, name(1))
        until(lambda: (tmp_path / "a" / "deletions-read").read_text() == shared.read(None).position)
    with Store(tmp_path / "a") as store:
        assert store.disk is not None and store.disk.report.skipped == ()
    with sqlite3.connect(tmp_path / "shared.sqlite") as connection:
        rows = connection.execute("SELECT owner, id FROM deletions ORDER BY position").fetchall()
    assert rows == [FIRST, (OWNER, name(1))]
