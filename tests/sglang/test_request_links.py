"""Requests before SGLang's scheduler has them: planned, staged, failed, let go of."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emblema.served.settings import PluginSettings
from emblema.sglang.request_links import RequestLinks
from emblema.store import Store
from tests.vllm.requests import SPEC, put, request

SECONDS = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as opened:
        yield opened


@pytest.fixture
def links(store: Store, tmp_path: Path) -> Iterator[RequestLinks]:
    made = RequestLinks(SPEC, store, PluginSettings(tmp_path, "blind"))
    yield made
    made.close()


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_rows_are_in_memory_before_a_request_is_queued_and_let_go_of_after_its_prompt(links, store) -> None:
    given = request("a", "b")
    put(store, given)
    link = links.begin("one", given)
    until(lambda: links.is_ready("one", link))
    assert link.plan is not None and link.plan.cached.spans and links.staged("one") is not None
    links.complete("one", link)
    assert links.staged("one") is None
    # A request that is retracted takes its rows again.
    again = links.begin("one", given)
    assert again is link and not link.complete
    until(lambda: links.is_ready("one", link))
    assert links.staged("one") is not None


def test_rows_that_are_gone_are_computed(links, store) -> None:
    given = request("a", "b")
    put(store, given)
    link = links.begin("one", given)
    assert link.planned.wait(SECONDS) and link.plan is not None and link.plan.cached.spans
    for _, chunk in link.plan.prompt.chunk_segments:
        store.tenant(given.store_salt).delete(chunk.id)
    until(lambda: links.is_ready("one", link))
    assert not link.plan.cached.spans and "could not be loaded" in str(link.plan.remark)


def test_what_is_aborted_is_let_go_of(links, store) -> None:
    given = request("a", "b")
    put(store, given)
    for name in ("one", "two"):
        link = links.begin(name, given)
        until(lambda own=name, held=link: links.is_ready(own, held))
    links.abandon(lambda name: name == "one")
    assert links.get("one") is None and links.staged("one") is None and links.staged("two") is not None
