"""The ingress passes requests on as they are, tells the router what they show, and outlives replicas."""

import asyncio
import base64

import httpx
import pytest

from emblema.serve.keys import KeyRing
from emblema.serve.ray.ingress import ReplicaGoneError, make_ingress
from emblema.serve.ray.replica import ResponseStart
from emblema.serve.settings import ServeSettings


class ScriptedPool:
    """Replicas that answer as told, one after another; an exception among the pieces is raised in its place."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    async def answer(self, request, routed):
        self.seen.append((request, routed))
        for piece in self.answers.pop(0):
            if isinstance(piece, Exception):
                raise piece
            await asyncio.sleep(0)
            yield piece


def start(status=200, **headers):
    return ResponseStart(status, tuple((name.encode(), str(value).encode()) for name, value in headers.items()))


def whole(text=b"{}", status=200):
    return [ResponseStart(status, ((b"content-length", str(len(text)).encode()),)), text]


GONE = ReplicaGoneError("killed")


def asked(settings, pool, method="POST", path="/v1/chat/completions", **options):
    async def ask():
        transport = httpx.ASGITransport(make_ingress(settings, pool))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, **options)

    return asyncio.run(ask())


@pytest.fixture
def settings(tmp_path):
    return ServeSettings.read(None, store=tmp_path, deadline=0.3, grace=0)


def chat(*parts, **more):
    return {"model": "reference", "messages": [{"role": "user", "content": list(parts)}], **more}


def file_part(id):
    return {"type": "file", "file": {"file_id": id}}


def data_part(data):
    address = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": address}}


def test_an_upload_its_id_and_its_bytes_are_one_digest(settings, picture):
    from emblema.serve.files import file_id
    from emblema.serve.keys import LOCAL

    pool = ScriptedPool(*[whole() for _ in range(4)])
    id = file_id(LOCAL.owner, picture(1))
    asked(settings, pool, path="/v1/files", files={"file": ("a.png", picture(1))}, data={"purpose": "user_data"})
    asked(settings, pool, json=chat(file_part(id)))
    asked(settings, pool, json=chat(data_part(picture(1)), {"type": "text", "text": "which ?"}))
    asked(settings, pool, json=chat(data_part(picture(2)), file_part(id), file_part(id)))
    digests = [routed.digests for _, routed in pool.seen]
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) == 1
    assert len(digests[3]) == 2
    assert digests[3][1] == digests[0][0]


def test_tenants_share_no_digest(settings, picture):
    keys = [KeyRing(settings.folder).add(name) for name in ("alice", "bob")]
    pool = ScriptedPool(whole(), whole())
    for key in keys:
        asked(settings, pool, json=chat(data_part(picture(1))), headers={"Authorization": f"Bearer {key}"})
    (_, alice), (_, bob) = pool.seen
    assert len(alice.digests) == len(bob.digests) == 1
    assert alice.digests != bob.digests


@pytest.mark.parametrize("revoked", [False, True])
def test_a_key_is_asked_for_before_a_body_is_read(settings, revoked):
    """Also where the last one was taken back."""
    ring, pool, read = KeyRing(settings.folder), ScriptedPool(), []
    ring.add("alice")
    if revoked:
        assert ring.revoke(ring.list()[0].id)

    async def body():
        for _ in range(64):
            read.append(1)
            yield b" " * 2**20

    for headers in ({}, {"Authorization": "Bearer emb-made-up"}):
        assert asked(settings, pool, content=body(), headers=headers).status_code == 401
    assert not read and not pool.seen


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"messages": 3}', b'{"messages": [{"content": [{"type": "file", "file": 3}]}]}',
     b'{"messages": [{"content": [{"type": [], "image_url": {}}]}]}', b"[" * 100_000,
     b'{"messages": [{"content": [{"type": "cache", "cache": {"cache_id": "cache-none"}}]}]}',
     b'{"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:,%"}}]}], "prompt_cache_key": 7}'],
)  # fmt: skip
def test_what_cannot_be_read_goes_on_as_it_is(settings, body):
    pool = ScriptedPool(whole(b"refused", 400))
    answer = asked(settings, pool, content=body)
    assert (answer.status_code, answer.content) == (400, b"refused")
    assert pool.seen[0][0].body == body


def test_a_request_and_its_answer_pass_unchanged(settings):
    pool = ScriptedPool([start(207, **{"x-other": "kept"}), b"one", b"two"])
    answer = asked(settings, pool, "GET", "/v1/files/a%20b?limit=3", headers={"x-mine": "yes"})
    request, _ = pool.seen[0]
    assert (request.method, request.query, dict(request.headers)[b"x-mine"]) == ("GET", b"limit=3", b"yes")
    assert request.path == "/v1/files/a b"
    assert (answer.status_code, answer.content, answer.headers["x-other"]) == (207, b"onetwo", "kept")


def test_a_request_whose_replica_ends_is_given_to_another(settings):
    pool = ScriptedPool([GONE], [*whole(b"half of it")[:1], b"half", GONE], whole(b"all of it"))
    answer = asked(settings, pool, json=chat())
    assert (answer.status_code, answer.content) == (200, b"all of it")
    assert len({request for request, _ in pool.seen}) == 1


def test_an_answer_that_is_cut_short_is_asked_for_again(settings):
    short = [ResponseStart(200, ((b"content-length", b"9"),)), b"short"]
    assert asked(settings, ScriptedPool(short, whole(b"all of it")), json=chat()).content == b"all of it"


def test_replicas_that_all_end_are_an_error(settings):
    answer = asked(settings, ScriptedPool([GONE], [GONE], [GONE]), json=chat())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "replica_gone"


def test_a_stream_that_breaks_off_says_so(settings):
    pool = ScriptedPool([start(), b'data: {"choices": []}\n\n', GONE])
    answer = asked(settings, pool, json=chat(stream=True))
    assert answer.status_code == 200
    assert "the replica ended" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


class HangingPool:
    async def answer(self, request, routed):
        await asyncio.sleep(60)
        yield start()


def test_no_request_hangs(settings):
    assert asked(settings, HangingPool(), json=chat()).status_code == 504


def test_bodies_and_origins_are_bounded_before_a_replica_sees_them(tmp_path):
    settings, pool = ServeSettings.read(None, store=tmp_path, body_bytes=100), ScriptedPool()
    assert asked(settings, pool, content=b"x" * 101).status_code == 413

    async def pieces():
        for _ in range(11):
            yield b"x" * 10

    assert asked(settings, pool, content=pieces()).status_code == 413
    assert asked(settings, pool, json=chat(), headers={"origin": "https://elsewhere.example"}).status_code == 403
    assert asked(settings, pool, json=chat(), headers={"host": "rebound.example"}).status_code == 403
    assert pool.seen == []
