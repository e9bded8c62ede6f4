"""Files, as OpenAI's own client calls them: kept before the answer, prefilled after it, nobody else's."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from emblema.errors import StoreError
from emblema.serve.content import ContentReader
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import LOCAL, Tenant
from emblema.store import Store
from tests.serve.conftest import QUESTION, asked
from tests.serve.servers import Running, serving
from tests.store.disk.filelayer import FailingCalls, PowerCut, Recorder

ONE, OTHER = Tenant("one", b"one"), Tenant("other", b"other")


def settled(client: OpenAI, id: str) -> openai.types.FileObject:
    for _ in range(600):
        found = client.files.retrieve(id)
        if found.status != "uploaded":
            return found
        time.sleep(0.05)
    raise AssertionError("the file was not processed")


def test_a_file_is_a_part_of_any_prompt(client: OpenAI, pngs: list[bytes]) -> None:
    made = [client.files.create(file=("page.png", png), purpose="user_data") for png in pngs]
    assert [settled(client, file.id).status for file in made] == ["processed"] * len(pngs)
    for order in (made, made[::-1]):
        parts = [{"type": "file", "file": {"file_id": file.id}} for file in order]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
        reply = client.chat.completions.create(model="reference", messages=messages)  # type: ignore[arg-type]
        inline = asked(pngs if order is made else pngs[::-1])
        full = client.chat.completions.create(model="reference", messages=inline, extra_body={"strategy": "full"})
        assert reply.choices[0].message.content == full.choices[0].message.content


def test_the_same_bytes_are_the_same_file(client: OpenAI, pngs: list[bytes]) -> None:
    first = client.files.create(file=("a.png", pngs[0]), purpose="user_data")
    second = client.files.create(file=("b.png", pngs[0]), purpose="vision")
    assert first.id == second.id and client.files.retrieve(first.id).filename == "b.png"
    assert client.files.content(first.id).read() == pngs[0]
    assert [file.id for file in client.files.list()].count(first.id) == 1


def test_a_deleted_file_is_gone(client: OpenAI, pngs: list[bytes]) -> None:
    file = client.files.create(file=("a.png", pngs[-1]), purpose="user_data")
    settled(client, file.id)
    assert client.files.delete(file.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


def test_a_deleted_file_takes_its_chunks_along(tmp_path: Path, pngs: list[bytes]) -> None:
    """Its rows, and what was made of them together with others', are gone from memory and from disk."""
    with serving(tmp_path) as running:
        client = running.client()
        gone, kept = (client.files.create(file=("p.png", png), purpose="user_data") for png in pngs[:2])
        assert [settled(client, file.id).status for file in (gone, kept)] == ["processed"] * 2
        parts = [{"type": "file", "file": {"file_id": file.id}} for file in (gone, kept)]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
        client.chat.completions.create(model="reference", messages=messages, extra_body={"strategy": "patch-25%"})  # type: ignore[arg-type]
        files = FileStore(running.settings.folder, 1_000)
        (lost,), (left,) = (files.entry(LOCAL, file.id).chunks for file in (gone, kept))
        for _ in range(600):
            if len(pieces_naming(tmp_path, lost)) > 1:
                break
            time.sleep(0.05)
        else:
            pytest.fail("no patch over the chunk was kept")
        client.files.delete(gone.id)
    with Store(tmp_path) as store:
        tenant = store.tenant(LOCAL.salt)
        assert lost not in tenant and left in tenant
    assert pieces_naming(tmp_path, lost) == set() and left in pieces_naming(tmp_path, left)


def test_a_file_that_is_deleted_while_it_is_read_leaves_nothing(
    tmp_path: Path, pngs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on, forgotten = threading.Event(), threading.Event(), threading.Event()
    chunks = list[str]()
    make, forget = ContentReader._made, ContentReader.forget

    async def held(*given: Any) -> Any:
        found = await make(*given)
        chunks.append(found[0].id)
        made.set()
        await asyncio.to_thread(go_on.wait, 60)
        return found

    async def watched(own: ContentReader, tenant: Tenant, ids: Sequence[str]) -> None:
        await forget(own, tenant, ids)
        if ids:
            forgotten.set()

    monkeypatch.setattr(ContentReader, "_made", held)
    monkeypatch.setattr(ContentReader, "forget", watched)
    with serving(tmp_path) as running:
        client = running.client()
        gone = client.files.create(file=("p.png", pngs[0]), purpose="user_data")
        assert made.wait(60)
        client.files.delete(gone.id)
        go_on.set()
        assert forgotten.wait(60)
    with Store(tmp_path) as store:
        assert len(chunks) == 1 and chunks[0] not in store.tenant(LOCAL.salt)


@pytest.mark.slow
def test_a_server_that_ends_while_it_reads_a_deleted_file_leaves_nothing(
    tmp_path: Path, pngs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, chunks = threading.Event(), list[str]()
    make = ContentReader._made

    async def held(*given: Any) -> Any:
        chunks.append((await make(*given))[0].id)
        made.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch, serving(tmp_path) as running:
        patch.setattr(ContentReader, "_made", held)
        gone = running.client().files.create(file=("p.png", pngs[0]), purpose="user_data")
        assert made.wait(60)
        running.client().files.delete(gone.id)
    with Store(tmp_path) as store:
        assert chunks[0] in store.tenant(LOCAL.salt), "the server ended before it could tell that the file was gone"
    with serving(tmp_path):
        pass
    with Store(tmp_path) as store:
        assert chunks[0] not in store.tenant(LOCAL.salt)


def test_chunks_that_were_begun_are_forgotten_unless_their_file_is_there(tmp_path: Path) -> None:
    gone = list[tuple[str, list[str]]]()
    files = FileStore(tmp_path, 1_000, forget=lambda owner, tenant, chunks: gone.append((tenant, list(chunks))))
    kept, lost, done = (files.add(ONE, data, "a", "user_data", None) for data in (b"kept", b"lost", b"done"))
    for entry in (kept, lost, done):
        files.begin(ONE, entry.id, [f"chunk of {entry.id}"])
    assert files.note(ONE, done.id, "processed", None, "image", [f"chunk of {done.id}"])
    assert files.delete(ONE, lost) and files.delete(ONE, files.entry(ONE, done.id))
    for _ in range(2):
        files.forget_begun()
    assert gone == [("one", [f"chunk of {lost.id}"])]


def test_bytes_without_an_entry_are_removed_at_opening(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    kept = files.path(ONE, files.add(ONE, b"kept", "a", "user_data", None).id)
    left, arriving, late = (kept.with_name(name) for name in ("file-left", ".arriving.temporary", ".late.temporary"))
    for path in (left, arriving, late):
        path.write_bytes(b"x")
    os.utime(late, (1, 1))
    FileStore(tmp_path, 1_000)
    assert {path for path in kept.parent.iterdir()} == {kept, arriving}


def test_a_crash_while_a_file_is_added_leaves_nothing_after_the_next_opening(tmp_path: Path) -> None:
    """Whichever call is the last that reaches the disk; what was acknowledged is there."""
    for number in range(1, 40):
        folder = tmp_path / str(number)
        files = FileStore(folder, 1_000)
        first = files.add(ONE, b"first", "a", "user_data", None)
        with FailingCalls(number, lasting=True)() as failing, suppress(StoreError):
            files.add(ONE, b"second", "b", "user_data", None)
        for path in folder.rglob(".*.temporary"):
            os.utime(path, (1, 1))
        again = FileStore(folder, 1_000)
        there = {again.path(ONE, entry.id) for entry in again.entries(ONE)}
        assert there == {path for path in (folder / "files").rglob("*") if path.is_file()}
        assert again.read(ONE, first.id) == b"first"
        if not failing.failed:
            break
    else:
        pytest.fail("more calls than expected")
    assert number > 4


def test_a_deletion_sees_what_was_made_meanwhile(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    before = files.add(ONE, b"picture", "a", "user_data", None)
    assert files.note(ONE, before.id, "processed", None, "image", ["chunk"])
    assert not files.delete(ONE, before)
    assert files.delete(ONE, files.entry(ONE, before.id)) and files.entries(ONE) == ()
    assert not files.note(ONE, before.id, "processed", None, "image", ["chunk"])


def pieces_naming(folder: Path, chunk: str) -> set[str]:
    """Names of the store's files that are a chunk's, or say that they were made from it."""
    files = [
        path for path in folder.rglob("*.safetensors") if path.stem == chunk or chunk.encode() in path.read_bytes()
    ]
    return {path.stem for path in files}


def test_what_cannot_be_read_says_so(client: OpenAI) -> None:
    for data in (b"PK\x03\x04 a zip", b"<svg/>", b"\x89PNG\r\n\x1a\n cut"):
        file = settled(client, client.files.create(file=("x.png", data), purpose="user_data").id)
        assert file.status == "error" and file.status_details


def test_uploads_are_bounded(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.files.create(file=("big.png", b"x" * (2**20 + 1)), purpose="user_data")
    assert refused.value.status_code == 413
    for purpose in ("fine-tune", "x" * 99):
        with pytest.raises(openai.BadRequestError):
            client.files.create(file=("a.png", pngs[0]), purpose=purpose)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.files.create(file=("a.png", b""), purpose="user_data")
    for seconds in (1, -5, 3 * 10**6, 10**30):
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            after = {"anchor": "created_at", "seconds": seconds}
            client.files.create(file=("a.png", pngs[0]), purpose="user_data", expires_after=after)  # type: ignore[arg-type]
    kept = client.files.create(
        file=("a.png", pngs[0]), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3_600}
    )
    assert kept.expires_at is not None and kept.expires_at - kept.created_at == 3_600
    with server.http() as http:
        assert (
            http.post(
                "/v1/files", content=b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"}
            ).status_code
            == 400
        )


def test_files_expire_and_stay_within_a_quota(tmp_path: Path) -> None:
    now = [1_000.0]
    files = FileStore(tmp_path, 100, clock=lambda: now[0])
    first = files.add(ONE, b"a" * 60, "a", "user_data", 50.0)
    with pytest.raises(ServeError, match="quota"):
        files.add(ONE, b"b" * 60, "b", "user_data", None)
    assert files.add(OTHER, b"b" * 60, "b", "user_data", None).bytes == 60
    assert files.add(ONE, b"a" * 60, "again", "user_data", 50.0).id == first.id
    now[0] += 60
    with pytest.raises(ServeError):
        files.read(ONE, first.id)
    files.add(ONE, b"b" * 60, "b", "user_data", None)
    assert [entry.name for entry in files.entries(ONE)] == ["b"]
    assert sum(path.is_file() for path in (tmp_path / "files").rglob("*")) == 2


def test_a_file_outlasts_a_power_cut_once_it_is_acknowledged(tmp_path: Path) -> None:
    """Its bytes, its name and the names of all folders made for it, from the server's own on."""
    (tmp_path / "kept").mkdir()
    recorder = Recorder(tmp_path / "store", tmp_path / "kept")
    with recorder():
        files = FileStore(tmp_path / "store" / "serve", 1_000)
        made = [files.add(tenant, b"picture", "a", "user_data", None) for tenant in (ONE, OTHER)]
    PowerCut(recorder).leave(tmp_path / "left", len(recorder.changes), random.Random(1), lost=1.0)
    left = [path for path in (tmp_path / "left").rglob("*") if path.is_file()]
    assert {path.name for path in left} == {entry.id for entry in made}
    assert [path.read_bytes() for path in left] == [b"picture"] * 2


def test_a_deleted_file_stays_deleted_after_a_power_cut(tmp_path: Path) -> None:
    """Whether its owner deleted it, its time was over or the quota refused it; until then it can be deleted again."""
    (tmp_path / "kept").mkdir()
    recorder, now = Recorder(tmp_path / "store", tmp_path / "kept"), [1_000.0]
    with recorder():
        files = FileStore(tmp_path / "store" / "serve", 10, clock=lambda: now[0])
        deleted = files.add(ONE, b"deleted", "a", "user_data", None)
        assert files.delete(ONE, deleted)
        files.add(OTHER, b"expired", "b", "user_data", 50.0)
        with pytest.raises(ServeError, match="quota"):
            files.add(ONE, b"beyond the quota", "c", "user_data", None)
        now[0] += 60
        files.expire()
    cuts = PowerCut(recorder)
    for seed in range(20):
        cuts.leave(tmp_path / "left", len(recorder.changes), random.Random(seed), lost=(1.0, 0.5)[seed % 2])
        assert [path for path in (tmp_path / "left").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("number", [1, 2, 3], ids=["unlink", "open", "fsync"])
def test_a_deletion_that_fails_can_be_made_again(tmp_path: Path, number: int) -> None:
    now, gone = [1_000.0], list[str]()
    files = FileStore(tmp_path, 1_000, lambda: now[0], lambda owner, tenant, chunks: gone.append(tenant))
    mine = files.add(ONE, b"mine", "a", "user_data", None)
    files.add(OTHER, b"theirs", "b", "user_data", 50.0)
    now[0] += 60
    with FailingCalls(number)(), pytest.raises(StoreError, match="cannot be deleted"):
        files.delete(ONE, mine)
    assert files.entry(ONE, mine.id) == mine
    with FailingCalls(number)():
        assert files.entries(OTHER) == ()
    assert gone == ["other"]
    files.expire()
    assert files.delete(ONE, mine)
    assert (
        gone == ["other"] * 2
        and files.entries(ONE) == ()
        and not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    )


def test_a_file_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    (tmp_path / "files").write_bytes(b"in the way")
    with pytest.raises(StoreError, match="cannot be kept"):
        files.add(ONE, b"picture", "a", "user_data", None)
    assert files.entries(ONE) == ()


def test_what_was_made_of_a_file_goes_with_its_time(tmp_path: Path) -> None:
    now, gone = [1_000.0], []
    files = FileStore(
        tmp_path, 1_000, lambda: now[0], lambda owner, tenant, chunks: gone.append((tenant, list(chunks)))
    )
    ids = [files.add(ONE, data, "a", "user_data", 50.0).id for data in (b"a", b"b")]
    for id in ids:
        files.note(ONE, id, "processed", None, "image", [f"chunk of {id}"])
    files.keep_until(ONE, [ids[1], "file-none"], 1_100.0)
    files.keep_until(OTHER, [ids[0]], 9_000.0)
    assert files.add(ONE, b"b", "renamed", "user_data", 1.0, renew=False).expires == 1_100.0
    now[0] += 60
    files.expire()
    assert gone == [("one", [f"chunk of {ids[0]}"])] and [entry.id for entry in files.entries(ONE)] == [ids[1]]


def test_another_tenants_file_is_not_there(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    mine = files.add(ONE, b"picture", "a", "user_data", None)
    theirs = files.add(OTHER, b"picture", "a", "user_data", None)
    assert mine.id != theirs.id
    for call in (files.entry, files.read):
        with pytest.raises(ServeError) as refused:
            call(OTHER, mine.id)
        assert refused.value.status == 404
    assert not files.delete(OTHER, mine)
    assert FileStore(tmp_path, 1_000).read(ONE, mine.id) == b"picture"


def test_ids_lead_nowhere_else(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    (tmp_path / "secret").write_text("x")
    for id in ("../../secret", "/etc/passwd", "", "\0", "file-" + "0" * 32, "%2e%2e"):
        with pytest.raises(ServeError):
            files.read(ONE, id)


@pytest.mark.slow
def test_a_file_of_before_is_read_by_another_model(tmp_path: Path, pngs: list[bytes]) -> None:
    with serving(tmp_path) as running:
        client = running.client()
        file = client.files.create(file=("a.png", pngs[0]), purpose="user_data")
        assert settled(client, file.id).status == "processed"
    messages: Any = [
        {
            "role": "user",
            "content": [{"type": "file", "file": {"file_id": file.id}}, {"type": "text", "text": QUESTION}],
        }
    ]
    with serving(tmp_path, dtype="bfloat16") as running:
        reply = running.client().chat.completions.create(model="reference", messages=messages)
        assert reply.choices[0].message.content
