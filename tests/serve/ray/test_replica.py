"""A replica answers as the server does that it holds."""

import asyncio
import json

import pytest

from emblema.errors import EmblemaError
from emblema.serve.ray.ingress import make_ingress
from emblema.serve.ray.replica import ServerReplica
from emblema.serve.settings import ServeSettings
from tests.serve.ray.test_ingress import chat, file_part


class OnePool:
    def __init__(self, replica):
        self.replica = replica

    def answer(self, request, routed):
        return self.replica.answer(request)


def test_a_chat_through_the_ingress_whole_and_streamed(tmp_path, pngs):
    import httpx

    settings = ServeSettings.read(None, store=tmp_path)

    async def use():
        replica = ServerReplica(settings, "first")
        await replica.open("default")
        transport = httpx.ASGITransport(make_ingress(settings, OnePool(replica)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            uploads = [await client.post("/v1/files", files={"file": ("a.png", png)}) for png in pngs]
            parts = [file_part(upload.json()["id"]) for upload in uploads]
            body = chat(*parts, {"type": "text", "text": "on which land does the moon stand ?"}, max_tokens=4)
            reply = await client.post("/v1/chat/completions", json=body)
            streamed = await client.post("/v1/chat/completions", json=body | {"stream": True})
            missing = await client.get("/v1/files/file-none")
        await replica.close()
        return reply, streamed, missing

    reply, streamed, missing = asyncio.run(use())
    assert reply.headers["x-emblema-replica"] == "first"
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    pieces = [json.loads(event)["choices"] for event in events]
    text = "".join(choices[0]["delta"].get("content", "") for choices in pieces if choices)
    assert text == reply.json()["choices"][0]["message"]["content"] != ""
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert missing.status_code == 404


def test_a_replica_of_another_model_does_not_open(tmp_path):
    async def open_as(name):
        replica = ServerReplica(ServeSettings.read(None, store=tmp_path, served_name=name), name)
        await replica.open("default")
        await replica.close()

    asyncio.run(open_as("ours"))
    with pytest.raises(EmblemaError, match="name another cluster"):
        asyncio.run(open_as("theirs"))
