"""Collections inside vLLM: versions on disk, pictures that are let go late, and what is found in several of them."""

import asyncio
import os
from pathlib import Path

import pytest

from emblema.errors import MediaError
from emblema.serve.collection_items import CollectionItem
from emblema.serve.faults import ServeError
from emblema.serve.keys import LOCAL, Tenant
from emblema.vllm.collections import LET_GO_SECONDS, StoredCollections

DEMO = Path(__file__).parents[2] / "src" / "emblema" / "assets" / "demo"


def read(tenant: Tenant, id: str) -> bytes:
    if id == "zip":
        raise MediaError("a zip")
    return (DEMO / id).read_bytes()


def picture(name: str, file: str) -> CollectionItem:
    return CollectionItem(name=name, file_id=file)


def write(collections: StoredCollections, name: str, *items: CollectionItem) -> int:
    return asyncio.run(collections.write(LOCAL, name, items)).version


def test_a_replaced_picture_is_there_for_replies_under_way_and_then_goes(tmp_path: Path) -> None:
    collections = StoredCollections(tmp_path, read)
    assert write(collections, "atlas", picture("the map", "map-01.png"), picture("a legend", "legend-3.png")) == 1
    under_way = collections.search(["atlas"])
    assert write(collections, "atlas", picture("a legend", "legend-3.png")) == 2
    [found] = under_way.search("a map, please", 3)[:1]
    assert found.name == "the map" and found.bytes == len(read(LOCAL, "map-01.png")) and found.tokens > 9
    assert found.part()["image_url"]["url"].startswith("data:")
    assert found.path is not None and len(list((tmp_path / "collections").iterdir())) == 2
    moment = found.path.stat().st_mtime - LET_GO_SECONDS - 1
    for path in (tmp_path / "collections").iterdir():
        os.utime(path, (moment, moment))
    write(collections, "other", CollectionItem(name="note", text="x"))
    [left] = (tmp_path / "collections").iterdir()
    assert left != found.path, "only what no version holds goes"


def test_collections_are_searched_as_one_and_outlive_the_process(tmp_path: Path) -> None:
    collections = StoredCollections(tmp_path, read)
    write(collections, "atlas", picture("the map", "map-01.png"))
    write(collections, "notes", CollectionItem(name="a note", text="the tent is on the map"))
    again = StoredCollections(tmp_path, read)
    found = again.search(["atlas", "notes", "atlas"]).search("tent map", 5)
    assert [item.name for item in found] == ["a note", "the map"]
    assert found[0].part() == {"type": "text", "text": "the tent is on the map"}
    assert [entry.name for entry in again.entries()] == ["atlas", "notes"] and again.entry("atlas").tokens is None
    asyncio.run(again.delete("atlas"))
    for call in (again.entry, lambda name: again.search([name])):
        with pytest.raises(ServeError, match="no collection 'atlas'"):
            call("atlas")
    with pytest.raises(ServeError, match="'bad'"):
        write(again, "notes", picture("bad", "zip"))
    assert again.entry("notes").version == 1
    assert write(again, "atlas", picture("the map", "map-01.png")) == 3
