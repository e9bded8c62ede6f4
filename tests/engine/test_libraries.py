"""Libraries through the engine: a tenant's files, the administrator's collections, and linking from them."""

from pathlib import Path

import pytest
import torch

from benchmarks.tasks import Episode
from emblema import Engine, Store
from emblema.engine.generation import GenerateRequest
from emblema.engine.retrieval import Retrieval
from emblema.errors import StoreError
from tests.engine.engines import Calls, encoder_of
from tests.engine.test_store import engine_on, pictures

QUESTION = "what colour is under the tent ?"


def test_a_file_is_found_by_its_name_after_a_restart(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    legend, page = pictures(episode)[:2]
    with engine_on(reference, tmp_path / "kept") as engine:
        engine.files.add(legend, name="LEGEND")
        engine.files.add(page, name="MAP")
        before = engine.prefill([engine.files["LEGEND"], engine.files["MAP"], QUESTION], "patch-25%")
    with Calls(encoder_of(reference)) as calls, engine_on(reference, tmp_path / "kept") as engine:
        assert [entry.name for entry in engine.files.list()] == ["LEGEND", "MAP"]
        after = engine.prefill([engine.files["LEGEND"], engine.files["MAP"], QUESTION], "patch-25%")
        assert calls.count == 0 and after.usage.forming_tokens == 0
        assert torch.equal(before.logits, after.logits)
        engine.files.delete("MAP")
        assert "MAP" not in engine.files and len(engine.store.ids()) == 1
        with pytest.raises(StoreError, match="MAP"):
            engine.files["MAP"]


def test_tenants_have_files_of_their_own(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    with Store(tmp_path / "kept") as store:
        alice, bob = engine_on(reference, store, b"alice"), engine_on(reference, store, b"bob")
        alice.files.add(pictures(episode)[0], name="PAGE")
        assert "PAGE" in alice.files and "PAGE" not in bob.files and bob.files.list() == ()
        bob.files.add(pictures(episode)[0], name="PAGE")
        bob.files.delete("PAGE")
        assert alice.files["PAGE"].id in alice.store


def test_a_reader_follows_the_collection_and_a_snapshot_stays(
    reference: Engine, episode: Episode, tmp_path: Path
) -> None:
    first, second, third = pictures(episode)[:3]
    with Store(tmp_path / "kept") as store:
        administrator = engine_on(reference, store.shared).collection("pages")
        reader = engine_on(reference, store, b"alice")
        pages = reader.collection("pages")
        assert administrator.replace({"one": first, "two": second}) == 1
        old = pages.snapshot()
        assert administrator.replace({"one": third}) == 2
        assert sorted(old) == ["one", "two"] and list(pages) == ["one"]
        assert reader.prefill([old["one"], old["two"], QUESTION], "blind").usage.recaptured_tokens == 0
        old.close()
        with pytest.raises(StoreError, match="administrator"):
            pages.put("three", second)


def test_what_the_model_asks_for_is_linked_from_a_collection(
    reference: Engine, episode: Episode, tmp_path: Path
) -> None:
    drawn = pictures(episode)
    with Store(tmp_path / "kept") as store:
        administrator = engine_on(reference, store.shared).collection("pages")
        administrator.replace({f"page {index}": picture for index, picture in enumerate(drawn)})
        reader = engine_on(reference, store, b"alice")
        said = reader.generate([drawn_chunk(reader, drawn), QUESTION], "full", max_new_tokens=1)
        word = reader.tokenizer.decode(said.token_ids)
        pages = reader.collection("pages")
        expected = [hit.chunk.id for hit in pages.search(f"{QUESTION}", 2)]
        retrieval = Retrieval(pages, count=2, start=None, end=word, after=QUESTION)
        reply = reader.generate([drawn_chunk(reader, drawn), QUESTION], "blind", retrieval=retrieval)
        (answered,) = reply.found
        assert list(answered.chunks) == expected and reply.usage.linked_tokens > 0


@pytest.mark.slow
def test_several_collections_are_searched_as_one(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    drawn = pictures(episode)
    with Store(tmp_path / "kept") as store:
        administrator = engine_on(reference, store.shared)
        whole, first, rest = (administrator.collection(name) for name in ("whole", "first", "rest"))
        named = {f"page {index}": picture for index, picture in enumerate(drawn)}
        whole.replace(named)
        first.replace(dict(list(named.items())[:1]))
        rest.replace(dict(list(named.items())[1:]))
        reader = engine_on(reference, store, b"alice")
        parts = [reader.add(drawn[0]), QUESTION]
        word = reader.tokenizer.decode(reader.generate(parts, "full", max_new_tokens=1).token_ids)
        for library in ((reader.collection("first"), reader.collection("rest")), reader.collection("whole")):
            retrieval = Retrieval(library, count=2, start=None, end=word, after=QUESTION)
            (answered,) = reader.generate(parts, "blind", retrieval=retrieval).found
            expected = reader.collection("whole").search(QUESTION, 2)
            assert answered.names == tuple(hit.name for hit in expected)
            assert answered.chunks == tuple(hit.chunk.id for hit in expected)


def test_a_reply_keeps_the_version_that_it_began_with(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    drawn = pictures(episode)
    with Store(tmp_path / "kept") as store:
        administrator = engine_on(reference, store.shared).collection("pages")
        administrator.replace({"only": drawn[1]})
        reader = engine_on(reference, store, b"alice")
        parts = [drawn_chunk(reader, drawn), QUESTION]
        said = reader.generate(parts, "full", max_new_tokens=1)
        word = reader.tokenizer.decode(said.token_ids)
        held = reader.collection("pages")["only"].id
        retrieval = Retrieval(reader.collection("pages"), start=None, end=word, after=QUESTION)
        pieces = reader.steps(GenerateRequest(parts, "blind", retrieval=retrieval))
        administrator.replace({"only": drawn[2]})
        reply = [piece.reply for piece in pieces][-1]
        assert reply is not None and [found.chunks for found in reply.found] == [(held,)]
        assert reader.collection("pages")["only"].id != held


def drawn_chunk(engine: Engine, drawn: list) -> object:
    return engine.add(drawn[0])
