"""What a model asks for while it answers: requests told from text, pictures found by words, the next request."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from emblema.errors import EmblemaError
from emblema.vllm.asking import Asking, asking_of, question_of
from emblema.vllm.continuing import Reply, asked_for
from emblema.vllm.pictures import Pictures

QUESTION = {"role": "user", "content": [{"type": "text", "text": "where is the tent ?"}]}


@pytest.fixture
def library(tmp_path: Path) -> Pictures:
    for name, text in (("map", "tent and house"), ("legend", "what colours mean"), ("plan", "the house , once more")):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "notes.txt").write_text("tent tent tent")
    return Pictures(tmp_path)


def test_pictures_are_found_by_their_words(library: Pictures, tmp_path: Path) -> None:
    def names(query: str, count: int = 3) -> list[str]:
        return [one.name for one in library.search(query, count)]

    assert names("a TENT, please") == ["map.png"] and names("legend") == ["legend.png"]
    assert names("house") == ["map.png", "plan.png"] and names("house", 1) == ["map.png"]
    assert names("the house once") == ["plan.png", "map.png"] and names("boat") == []
    assert library.search("tent", 1)[0].address().startswith("data:image/png;base64,")
    (tmp_path / "map.png").unlink()
    with pytest.raises(EmblemaError, match="map.png cannot be read"):
        library.search("tent", 1)[0].address()
    with pytest.raises(EmblemaError, match="no picture"):
        (tmp_path / "empty").mkdir()
        Pictures(tmp_path / "empty")
    with pytest.raises(EmblemaError, match="no folder"):
        Pictures(tmp_path / "nowhere")


def test_a_request_is_told_from_other_text(tmp_path: Path) -> None:
    asking = asking_of(tmp_path, "<search>", "</search>")
    assert asking.query("q", "well <search> the map </search>", "") == "the map"
    assert asking.query("q", "well </search>", "") is None
    assert asking_of(tmp_path, "", "?").query("where", "of the tent?", "which map ") == "where which map of the tent"
    assert Asking.read(asking.write()) == asking
    assert asking.of_request(None) is asking and asking.of_request(False) is None
    assert asking.of_request({"start": None, "most": 2}) == Asking(asking.library, start=None, most=2)


@pytest.mark.parametrize("wish", [3, {"library": "/etc"}, {"end": ""}, {"count": 0}, {"most": True}, {"after": 1}])
def test_a_request_s_wish_is_checked(tmp_path: Path, wish: object) -> None:
    with pytest.raises(EmblemaError, match="retrieval"):
        asking_of(tmp_path, "<search>", "</search>").of_request(wish)


def test_the_environment_is_checked() -> None:
    for written in ("{", json.dumps({"library": ""}), json.dumps({"shop": 1})):
        with pytest.raises(EmblemaError):
            Asking.read(written)


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"tools": [{}]}, {"stop": ["x"]}, {"continue_final_message": True}, {"messages": "no list"}]
)
def test_what_cannot_be_continued_is_passed_on(tmp_path: Path, more: dict[str, Any]) -> None:
    asking = asking_of(tmp_path, "<search>", "</search>")
    assert asked_for({"messages": [QUESTION]}, asking) is asking
    assert asked_for({"messages": [QUESTION]} | more, asking) is None


def test_a_reply_goes_on_over_requests(library: Pictures) -> None:
    asking = Asking("pages", most=2)
    reply = Reply({"messages": [QUESTION], "max_tokens": 20}, asking, library)
    assert reply.body["stop"] == ["</search>"] and reply.goes_on("hm <search>tent</search>", 6)
    *before, said, shown = reply.body["messages"]
    assert before == [QUESTION] and said == {"role": "assistant", "content": "hm <search>tent</search>"}
    assert [part["type"] for part in shown["content"]] == ["image_url", "text"]
    assert shown["content"][1]["text"] == "where is the tent ?" and reply.body["max_tokens"] == 14
    # Nothing fits: the same turn goes on; and nobody stops it any more.
    assert reply.goes_on("or <search>boat</search>", 4)
    assert reply.body["messages"][-1] == {"role": "assistant", "content": "or <search>boat</search>"}
    assert reply.body["continue_final_message"] and reply.body["stop"] == [] and reply.body["max_tokens"] == 10
    assert reply.found == [{"query": "tent", "items": ["map.png"]}, {"query": "boat", "items": []}]
    assert not reply.goes_on("</search>", 10)


def test_the_question_is_the_last_text_of_a_user() -> None:
    assert question_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == "a"
    assert question_of([QUESTION, {"role": "user", "content": [{"type": "image_url"}]}]) == "where is the tent ?"
    assert question_of([{"role": "system", "content": "c"}]) == "" == question_of("text")
