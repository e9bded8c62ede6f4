"""What is deleted: neither waits to be prefilled alone, nor is stored or formed into patches later."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emblema.plugin.request_plan import ChunkStubs, build_prompt
from emblema.sglang import solo_captures
from emblema.sglang.piece_keeper import WAITING_BYTES, ComputedPrompt, PieceKeeper
from emblema.sglang.solo_captures import SoloCapture, SoloQueue
from emblema.store import Store
from tests.vllm.requests import SPEC, put, request


def plan_of(*pictures: str) -> Any:
    given = request(*pictures)
    prompt = build_prompt(given, ChunkStubs(SPEC))
    return SimpleNamespace(request=given, prompt=prompt, missing=[chunk for _, chunk in prompt.chunk_segments])


def test_what_is_deleted_waits_no_longer_to_be_prefilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solo_captures, "solo_media", lambda *given: None)
    queue, both, captured = SoloQueue(), plan_of("a", "b"), list[str]()

    def capture(wanted: SoloCapture) -> bool:
        captured.append(wanted.chunk.id)
        return True

    queue.request(both)
    queue.drop(plan_of("a"))
    while queue.run(True, capture):
        pass
    assert captured == [both.missing[1].id]


def test_chunks_go_and_prompts_with_them_form_no_patches(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        given = request("a", "b")
        put(store, given)
        salt, known, other = given.store_salt, plan_of("a", "b"), plan_of("a", "c")
        keeper = PieceKeeper(SPEC, store)
        try:
            # It waits for a picture that is not there.
            assert keeper.take_room(10)
            keeper.form_patches(ComputedPrompt(salt, other.prompt, (), {}, 10))
            keeper.drain()
            assert not keeper.take_room(WAITING_BYTES)
            keeper.forget(salt, [known.missing[0].id])
            keeper.drain()
            assert keeper.take_room(WAITING_BYTES)
            names = [chunk.id for chunk in known.missing]
            assert store.tenant(salt).held(names).keys() == {names[1]}
        finally:
            keeper.close()
