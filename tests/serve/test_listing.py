"""Lists are walked through page by page, in either order."""

import random

import pytest

from emblema.serve.host import ListPage
from tests.serve.conftest import data_url
from tests.serve.servers import Running


@pytest.mark.parametrize("seed", range(20))
def test_pages_join_to_the_list(seed: int) -> None:
    rnd = random.Random(seed)
    entries = [f"file-{number}" for number in range(rnd.randint(0, 12))]
    found: list[str] = []
    after = None
    while True:
        page = ListPage(after=after, limit=rnd.randint(1, 5)).page([{"id": entry} for entry in entries])
        found += [each["id"] for each in page["data"]]
        assert (page["first_id"], page["last_id"]) == (
            (found[-len(page["data"])], found[-1]) if page["data"] else (None,) * 2
        )
        if not page["has_more"]:
            break
        after = page["last_id"]
    assert found == entries


def test_after_what_is_not_there_comes_nothing() -> None:
    page = ListPage(after="file-9").page([{"id": "file-1"}])
    assert page["data"] == [] and not page["has_more"]


def test_an_order_turns_every_list_of_the_server(server: Running, pngs: list[bytes]) -> None:
    with server.http() as http:
        for number, png in enumerate(pngs):
            http.post("/v1/files", files={"file": (f"{number}.png", png)}, data={"purpose": "vision"})
            part = {"type": "image_url", "image_url": {"url": data_url(png)}}
            assert http.post("/v1/caches?wait=true", json={"content": [part], "ttl": 60}).status_code == 200
        for path in ("/v1/files", "/v1/caches"):
            rising, falling = (
                [each["id"] for each in http.get(path, params={"order": order}).json()["data"]]
                for order in ("asc", "desc")
            )
            assert rising == falling[::-1] and len(rising) >= len(pngs)
            assert falling == [each["id"] for each in http.get(path).json()["data"]]
            first = http.get(path, params={"order": "asc", "limit": 1}).json()
            assert [each["id"] for each in first["data"]] == rising[:1] and first["has_more"]
            rest = http.get(path, params={"order": "asc", "after": rising[0]}).json()
            assert [each["id"] for each in rest["data"]] == rising[1:]
