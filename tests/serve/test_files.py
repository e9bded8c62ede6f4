"""Files, as OpenAI's own client calls them: kept before the answer, prefilled after it, nobody else's."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from emblema.serve.content import ContentReader
from emblema.serve.files import FileStore
from emblema.serve.keys import LOCAL, Tenant
from emblema.store import Store
from tests.serve.conftest import QUESTION, asked
from tests.serve.servers import Running, serving

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
