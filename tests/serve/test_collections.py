"""Collections: written by the administrator, a version at a time, and looked up by every tenant's model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from emblema.serve.keys import KeyRing
from tests.serve.conftest import QUESTION
from tests.serve.servers import Running, serving


class Shared:
    """A server with an administrator's and a tenant's key."""

    def __init__(self, running: Running, administrator: str, tenant: str) -> None:
        self.administrator = running.http(headers={"authorization": f"Bearer {administrator}"})
        self.tenant = running.http(headers={"authorization": f"Bearer {tenant}"})
        self.uploads, self.client = running.client(administrator), running.client(tenant)

    def items(self, pngs: list[bytes]) -> list[dict[str, Any]]:
        files = [self.uploads.files.create(file=("page.png", png), purpose="user_data") for png in pngs]
        return [{"name": f"page {number}", "file_id": file.id} for number, file in enumerate(files)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    ring = KeyRing(folder / "serve")
    keys = ring.add("office", administrator=True), ring.add("one")
    with serving(folder, parts=20) as running:
        made = Shared(running, *keys)
        yield made
        made.administrator.close()
        made.tenant.close()


def first_word(client: OpenAI) -> str:
    """What the model says first: the trigger of these tests, as nothing has taught the bundled model to ask."""
    messages: Any = [{"role": "user", "content": QUESTION}]
    reply = client.chat.completions.create(model="reference", messages=messages, max_tokens=1)
    return reply.choices[0].message.content or ""


def test_every_tenant_reads_what_the_administrator_writes(shared: Shared, pngs: list[bytes]) -> None:
    items = [*shared.items(pngs[:2]), {"name": "a text", "text": "the moon stands on the meadow ."}]
    made = shared.administrator.post("/v1/collections", json={"name": "atlas", "items": items})
    assert made.status_code == 200, made.text
    body = made.json()
    assert (body["id"], body["object"], body["version"], body["count"]) == ("atlas", "collection", 1, 3)
    assert [(item["name"], item["kind"]) for item in body["items"]] == [
        ("page 0", "image"), ("page 1", "image"), ("a text", "text"),
    ]  # fmt: skip
    for http in (shared.administrator, shared.tenant):
        assert http.get("/v1/collections/atlas").json() == body
        assert "atlas" in [each["id"] for each in http.get("/v1/collections").json()["data"]]
    again = shared.administrator.post("/v1/collections", json={"name": "atlas", "items": items})
    assert again.status_code == 409 and again.json()["error"]["code"] == "collection_exists"


def test_a_version_takes_the_place_of_another_at_once(shared: Shared, pngs: list[bytes]) -> None:
    office = shared.administrator
    items = shared.items(pngs[:3])
    office.post("/v1/collections", json={"name": "news", "items": items[:2]})
    second = office.put("/v1/collections/news", json={"items": items[1:]}).json()
    assert second["version"] == 2 and [item["name"] for item in second["items"]] == ["page 1", "page 2"]
    broken = shared.uploads.files.create(file=("x.png", b"PK\x03\x04 a zip"), purpose="user_data")
    refused = office.put("/v1/collections/news", json={"items": [items[0], {"name": "bad", "file_id": broken.id}]})
    assert refused.status_code == 400 and "'bad'" in refused.text
    assert office.get("/v1/collections/news").json() == second, "nothing changed"
    shared.uploads.files.delete(items[1]["file_id"])
    assert office.get("/v1/collections/news").json() == second, "a collection has its media of its own"
    assert office.delete("/v1/collections/news").json()["deleted"]
    for answer in (office.get("/v1/collections/news"), office.delete("/v1/collections/news")):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "collection_not_found"
    assert office.post("/v1/collections", json={"name": "news", "items": items[:1]}).json()["version"] == 4


def test_only_the_administrator_writes(shared: Shared, pngs: list[bytes]) -> None:
    items = shared.items(pngs[:1])
    shared.administrator.post("/v1/collections", json={"name": "mine", "items": items})
    for answer in (
        shared.tenant.post("/v1/collections", json={"name": "other", "items": items}),
        shared.tenant.put("/v1/collections/mine", json={"items": items}),
        shared.tenant.delete("/v1/collections/mine"),
    ):
        assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"
    theirs = shared.client.files.create(file=("a.png", pngs[1]), purpose="user_data")
    foreign = {"items": [{"name": "stolen", "file_id": theirs.id}]}
    assert shared.administrator.put("/v1/collections/mine", json=foreign).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_looks_up_what_it_asks_for(shared: Shared, pngs: list[bytes], stream: bool) -> None:
    name = f"pages {stream}"
    shared.administrator.post("/v1/collections", json={"name": name, "items": shared.items(pngs)})
    options: dict[str, Any] = {
        "collections": [name], "strategy": "blind",
        "retrieval": {"start": None, "end": first_word(shared.client), "count": 2},
    }  # fmt: skip
    messages: Any = [{"role": "user", "content": QUESTION}]
    create = shared.client.chat.completions.create
    if stream:
        events = list(create(model="reference", messages=messages, max_tokens=6, stream=True, extra_body=options))
        (report,) = [event.model_extra["emblema"] for event in events if "emblema" in (event.model_extra or {})]
    else:
        report = create(model="reference", messages=messages, max_tokens=6, extra_body=options).model_extra["emblema"]  # type: ignore[index]
    (found,) = report["found"]
    assert found["query"] == QUESTION and len(found["items"]) == 2 and report["linked_tokens"] > 0
    quiet = create(model="reference", messages=messages, max_tokens=6, extra_body={"collections": [name]})
    assert quiet.model_extra["emblema"]["found"] == [], "a model that does not ask is not answered"  # type: ignore[index]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": "x"}, {"name": "x", "items": []}, {"name": "", "items": [{"name": "a", "text": "b"}]},
        {"name": "x", "items": [{"name": "a"}]}, {"name": "x", "items": [{"name": "a", "text": "b", "file_id": "c"}]},
        {"name": "x", "items": [{"name": "a", "text": "b"}] * 2}, {"name": "x", "items": [{"name": "a", "text": ""}]},
        {"name": "x\n", "items": [{"name": "a", "text": "b"}]}, {"name": "x", "items": [{"name": "\x00", "text": "b"}]},
        {"name": "x", "items": "all"}, {"name": "x", "items": [{"name": "a", "text": "b"}] * 10_001}, [], "x",
    ],
)  # fmt: skip
def test_what_is_no_collection_is_refused(shared: Shared, body: Any) -> None:
    answer = shared.administrator.post("/v1/collections", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"], answer.text
    assert shared.administrator.get("/v1/collections/x").status_code == 404


def test_names_lead_nowhere_else(shared: Shared) -> None:
    for name in ("..", "%2e%2e", "files", "a%00b", "x" * 5_000):
        answer: httpx.Response = shared.tenant.get(f"/v1/collections/{name}")
        assert answer.status_code == 404, name


@pytest.mark.slow
def test_a_collection_outlives_the_server(tmp_path: Path, pngs: list[bytes]) -> None:
    with serving(tmp_path) as running, running.http() as http:
        file = running.client().files.create(file=("a.png", pngs[0]), purpose="user_data")
        items = [{"name": "a", "file_id": file.id}]
        made = http.post("/v1/collections", json={"name": "kept", "items": items}).json()
    with serving(tmp_path) as running, running.http() as http:
        assert http.get("/v1/collections/kept").json() == made
