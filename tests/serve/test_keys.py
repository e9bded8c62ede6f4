"""Keys: kept as digests, one tenant's each, required where others reach the server."""

import asyncio
import json
import random
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emblema.errors import EmblemaError, StoreError
from emblema.serve.faults import ServeError
from emblema.serve.keys import LOCAL, Access, KeyRing, Tenant, cache_salt, store_salts
from emblema.serve.service import Service
from emblema.serve.settings import ServeSettings
from emblema.work_pool import PoolSize, WorkPool
from tests.cli.running import emblema, refused
from tests.store.disk.filelayer import PowerCut, Recorder


def test_keys_are_made_found_and_taken_back(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    key = ring.add("one", quota=5)
    tenant = ring.tenant(key)
    assert tenant is not None and (tenant.name, tenant.quota, tenant.administrator) == ("one", 5, False)
    assert KeyRing(tmp_path).tenant(key) == tenant, "another process says the same"
    second = ring.tenant(ring.add("one", administrator=True))
    assert second is not None and second.salt == tenant.salt and second.administrator
    other = ring.tenant(ring.add("two"))
    assert other is not None and other.salt != tenant.salt
    entry = ring.list()[0]
    assert ring.revoke(entry.id) and not ring.revoke(entry.id)
    assert ring.tenant(key) is None and len(ring) == 2


@pytest.mark.parametrize("key", ["", "emb", "emb-", "emb--", "x", "emb-000000000000-abc", "\ud800", "é" * 1_000])
def test_what_is_no_key_is_nobodys(tmp_path: Path, key: str) -> None:
    ring = KeyRing(tmp_path)
    ring.add("one")
    assert ring.tenant(key) is None


def test_a_key_changed_in_one_place_is_nobodys(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    key = ring.add("one")
    for place in range(len(key)):
        other = key[:place] + ("0" if key[place] != "0" else "1") + key[place + 1 :]
        assert ring.tenant(other) is None, place


def test_nothing_on_disk_is_a_key(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    key = ring.add("one")
    secret = key.split("-", 2)[2].encode()
    for path in tmp_path.iterdir():
        assert secret not in path.read_bytes()
        assert not path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH), path


def test_the_secret_outlasts_a_power_cut(tmp_path: Path) -> None:
    """Without it a tenant's files would be nobody's."""
    (tmp_path / "kept").mkdir()
    recorder = Recorder(tmp_path / "store", tmp_path / "kept")
    with recorder():
        ring = KeyRing(tmp_path / "store" / "serve")
    PowerCut(recorder).leave(tmp_path / "left", len(recorder.changes), random.Random(1), lost=1.0)
    assert [path.name for path in (tmp_path / "left" / "serve").iterdir()] == ["serve-secret"]
    assert KeyRing(tmp_path / "left" / "serve").salt("one") == ring.salt("one")


def test_all_who_begin_at_once_have_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        salts = set(pool.map(lambda _: KeyRing(tmp_path).salt("one"), range(8)))
    assert len(salts) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"keys.sqlite", "serve-secret"}


def test_a_damaged_secret_is_refused(tmp_path: Path) -> None:
    KeyRing(tmp_path)
    (tmp_path / "serve-secret").write_bytes(b"short")
    with pytest.raises(StoreError, match="restore it"):
        KeyRing(tmp_path)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_names_are_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(EmblemaError):
        KeyRing(tmp_path).add(name)


def test_the_commands_make_list_and_revoke_keys(tmp_path: Path) -> None:
    where = ("--store", str(tmp_path))
    made = emblema("keys", "add", "one", "--administrator", "--quota", "5", *where)
    other = emblema("keys", "add", "two", *where)
    assert made.returncode == other.returncode == 0, made.stderr + other.stderr
    key, ring = made.stdout.strip(), KeyRing(ServeSettings.read(store=tmp_path).folder)
    tenant = ring.tenant(key)
    assert tenant is not None and (tenant.name, tenant.quota, tenant.administrator) == ("one", 5, True)
    listed = json.loads(emblema("keys", "list", "--json", *where).stdout)
    assert [(entry["tenant"], entry["administrator"], entry["quota"]) for entry in listed] == [
        ("one", True, 5),
        ("two", False, None),
    ]
    shown = emblema("keys", "list", "--plain", *where).stdout.splitlines()
    assert shown == [f"{listed[0]['id']}  one  administrator", f"{listed[1]['id']}  two  user"]
    secrets = [done.stdout.strip().split("-", 2)[2] for done in (made, other)]
    assert not any(secret in json.dumps(listed) + "".join(shown) for secret in secrets), "keys are shown once"
    assert emblema("keys", "revoke", listed[0]["id"], *where).returncode == 0
    assert ring.tenant(key) is None and len(ring) == 1


def test_the_commands_refuse_what_is_no_key_or_name(tmp_path: Path) -> None:
    where = ("--store", str(tmp_path))
    assert "keys list" in refused("keys", "revoke", "000000000000", *where)
    assert "tenant's name" in refused("keys", "add", "", *where)
    assert "quota" in refused("keys", "add", "one", "--quota", "0", *where)
    (tmp_path / "file").write_bytes(b"in the way")
    assert "cannot be opened" in refused("keys", "add", "one", "--store", str(tmp_path / "file"))
    assert emblema("keys", "list", "--plain", *where).stdout == ""


def test_a_server_that_others_reach_needs_a_key(tmp_path: Path) -> None:
    settings = ServeSettings.read(store=tmp_path, host="0.0.0.0")
    with pytest.raises(EmblemaError, match="emblema keys add"):
        asyncio.run(Service.open(settings))


def tenants_of(folder: Path, *keys: str, open: bool = True) -> list[str]:
    """Return whose requests with these keys are to a server that is started now; "" for nobody's."""

    async def ask() -> list[str]:
        access, found = Access(KeyRing(folder), open, WorkPool("keys", PoolSize(1, 1))), []
        for key in keys:
            try:
                found.append((await access.tenant_of(f"Bearer {key}" if key else None)).name)
            except ServeError as error:
                assert error.status == 401
                found.append("")
        return found

    return asyncio.run(ask())


def test_taking_back_the_last_key_opens_no_server(tmp_path: Path) -> None:
    """Not the one that runs, nor one that is started later, until its operator deletes the file of keys."""
    assert tenants_of(tmp_path, "", "made-up") == ["local", "local"]
    ring = KeyRing(tmp_path)
    key = ring.add("one")
    assert tenants_of(tmp_path, "", key) == ["", "one"]
    assert ring.revoke(ring.list()[0].id)
    assert tenants_of(tmp_path, "", key) == ["", ""] and ring.fingerprint
    other = ring.add("two")
    assert tenants_of(tmp_path, "", key, other) == ["", "", "two"]
    (tmp_path / "keys.sqlite").unlink()
    assert tenants_of(tmp_path, "") == ["local"] and tenants_of(tmp_path, "", open=False) == [""]


def test_a_server_that_once_asked_asks_though_the_file_is_gone(tmp_path: Path) -> None:
    async def ask() -> None:
        ring = KeyRing(tmp_path)
        access = Access(ring, True, WorkPool("keys", PoolSize(1, 1)))
        assert (await access.tenant_of(None)).name == "local"
        ring.add("one")
        with pytest.raises(ServeError):
            await access.tenant_of(None)
        (tmp_path / "keys.sqlite").unlink()
        KeyRing(tmp_path)
        with pytest.raises(ServeError):
            await access.tenant_of(None)

    asyncio.run(ask())


def test_keys_of_an_older_version_are_asked_for(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.add("one")
    with sqlite3.connect(tmp_path / "keys.sqlite") as connection:
        connection.execute("DROP TABLE first_key")
    ring = KeyRing(tmp_path)
    assert ring.revoke(ring.list()[0].id) and tenants_of(tmp_path, "") == [""]


def test_the_tenant_of_a_name_is_its_owners_alone(tmp_path: Path) -> None:
    """What is deleted by a tenant's name is that tenant's: no other's, nor one's of this name under another secret."""
    ring, other = KeyRing(tmp_path / "a"), KeyRing(tmp_path / "b")
    one, two = Tenant("one", ring.salt("one")), Tenant("two", ring.salt("two"))
    foreign = Tenant("one", other.salt("one"))
    assert list(ring.tenants_named("one", one.owner)) == [one]
    assert list(ring.tenants_named("one", LOCAL.owner)) == [LOCAL], "a file of before there were keys"
    for name, owner in (("one", two.owner), ("two", one.owner), ("one", foreign.owner), ("", one.owner)):
        assert list(ring.tenants_named(name, owner)) == [], name


def test_keys_of_the_operator_are_the_local_tenant_s_beside_those_of_tenants(tmp_path: Path) -> None:
    async def ask() -> None:
        ring = KeyRing(tmp_path)
        access = Access(ring, True, WorkPool("keys", PoolSize(1, 1)), ("mine", "other"))
        for key in ("mine", "other"):
            assert (await access.tenant_of(f"Bearer {key}")).name == "local"
        tenant = ring.add("one")
        for wrong in (None, "Bearer", "Bearer ", "Bearer mine2", "Basic mine"):
            with pytest.raises(ServeError):
                await access.tenant_of(wrong)
        assert (await access.tenant_of(f"Bearer {tenant}")).name == "one"

    asyncio.run(ask())


def test_salts_inside_vllm_are_each_tenants_own(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    one, two = (Tenant(name, ring.salt(name)) for name in ("one", "two"))
    salts = [cache_salt(tenant) for tenant in (one, two)]
    assert cache_salt(LOCAL) is None and None not in salts and len(set(salts)) == 2
    assert store_salts(LOCAL) == (LOCAL.salt,)
    assert store_salts(one)[0] == one.salt and len({*store_salts(one), *store_salts(two)}) == 4
