"""Standing orders through the engine: the first question about an order takes patched rows."""

from pathlib import Path

import pytest

from benchmarks.tasks import Episode
from emblema import Engine, Store
from emblema.errors import PromptError
from tests.engine.test_store import engine_on, pictures

QUESTION = "what colour is under the tent ?"


def test_the_first_question_about_an_order_of_files_takes_patched_rows(
    reference: Engine, episode: Episode, tmp_path: Path
) -> None:
    with engine_on(reference, tmp_path / "kept") as engine:
        for name, picture in zip("ab", pictures(episode), strict=False):
            engine.files.add(picture, name=name)
        engine.files.keep_order("ab")
    with engine_on(reference, tmp_path / "kept") as engine:
        pages = [engine.files[name] for name in "ab"]
        usage = engine.prefill([*pages, QUESTION]).usage
        assert usage.lane == "auto:leading+patch" and usage.patched_tokens == pages[1].tokens
        assert usage.cached_tokens == sum(page.tokens for page in pages)
        usage = engine.prefill(["some pages", *pages, QUESTION]).usage
        assert usage.lane == "auto:patch" and usage.patched_tokens == sum(page.tokens for page in pages)
        assert engine.files.orders == (("a", "b"),)


def test_an_order_of_a_collection_serves_every_tenant(reference: Engine, episode: Episode) -> None:
    with Store() as store:
        administrator = engine_on(reference, store.shared).collection("pages")
        administrator.replace(dict(zip("ab", pictures(episode), strict=False)))
        administrator.keep_order("ab")
        reader = engine_on(reference, store, b"alice")
        pages = [reader.collection("pages")[name] for name in "ab"]
        assert reader.prefill(["some pages", *pages, QUESTION]).usage.lane == "auto:patch"
        administrator.put("b", pictures(episode)[2])
        pages = [reader.collection("pages")[name] for name in "ab"]
        assert reader.prefill(["some pages", *pages, QUESTION]).usage.lane == "auto:patch", "made again"


def test_an_order_longer_than_the_context_is_refused(reference: Engine, episode: Episode) -> None:
    with engine_on(reference, Store()) as engine:
        page = engine.files.add(pictures(episode)[0], name="a")
        most = reference.adapter.context_length // page.tokens + 1
        with pytest.raises(PromptError, match="context"):
            engine.files.keep_order(["a"] * most)
        assert engine.files.orders == ()
