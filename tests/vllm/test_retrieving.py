"""What a model asks for while it answers: requests told from text, pictures found by words, the next request."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from emblema.errors import EmblemaError
from emblema.vllm.retrieving import ChatReply, PictureRetrieval
from emblema.vllm.word_search import PictureFolder

QUESTION = {"role": "user", "content": [{"type": "text", "text": "where is the tent ?"}]}


@pytest.fixture
def library(tmp_path: Path) -> PictureFolder:
    for name, text in (("map", "tent and house"), ("legend", "what colours mean"), ("plan", "the house , once more")):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "notes.txt").write_text("tent tent tent")
    return PictureFolder(tmp_path)


def test_pictures_are_found_by_their_words(library: PictureFolder, tmp_path: Path) -> None:
    def names(query: str, count: int = 3) -> list[str]:
        return [path.name for path in library.search(query, count)]

    assert names("a TENT, please") == ["map.png"] and names("legend") == ["legend.png"]
    assert names("house") == ["map.png", "plan.png"] and names("house", 1) == ["map.png"]
    assert names("the house once") == ["plan.png", "map.png"] and names("boat") == []
    assert library.search("tent", 1)[0].part()["image_url"]["url"].startswith("data:image/png;base64,")
    (tmp_path / "map.png").unlink()
    with pytest.raises(EmblemaError, match="map.png cannot be read"):
        library.search("tent", 1)[0].part()["image_url"]["url"]
    with pytest.raises(EmblemaError, match="no picture"):
        (tmp_path / "empty").mkdir()
        PictureFolder(tmp_path / "empty")
    with pytest.raises(EmblemaError, match="no folder"):
        PictureFolder(tmp_path / "nowhere")


def test_a_request_is_told_from_other_text() -> None:
    retrieval = PictureRetrieval(library="pages")
    assert retrieval.query("well <search> the map ", "q", "") == "the map"
    assert retrieval.query("well ", "q", "") is None
    whole = PictureRetrieval(library="pages", start=None, end="?")
    assert whole.query("of the tent", "where", "which map ") == "where which map of the tent"
    assert PictureRetrieval.from_json(retrieval.to_json()) == retrieval
    assert retrieval.for_request(None) is retrieval and retrieval.for_request(False) is None
    wanted = PictureRetrieval(library="pages", start=None, most=2)
    assert retrieval.for_request({"start": None, "most": 2}) == wanted


@pytest.mark.parametrize("option", [3, {"library": "/etc"}, {"end": ""}, {"count": 0}, {"most": True}, {"after": 1}])
def test_a_request_s_option_is_checked(option: object) -> None:
    with pytest.raises(EmblemaError, match="retrieval"):
        PictureRetrieval(library="pages").for_request(option)


def test_the_environment_is_checked() -> None:
    for written in ("{", json.dumps({"library": ""}), json.dumps({"shop": 1})):
        with pytest.raises(EmblemaError):
            PictureRetrieval.from_json(written)


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"tools": [{}]}, {"stop": ["x"]}, {"continue_final_message": True}, {"messages": "no list"}]
)
def test_what_cannot_be_continued_is_passed_on(more: dict[str, Any]) -> None:
    retrieval = PictureRetrieval(library="pages")
    assert retrieval.for_chat({"messages": [QUESTION]}) is retrieval
    assert retrieval.for_chat({"messages": [QUESTION]} | more) is None


def test_a_reply_goes_on_over_requests(library: PictureFolder) -> None:
    retrieval = PictureRetrieval(library="pages", most=2)
    reply = ChatReply({"messages": [QUESTION], "max_tokens": 20}, retrieval, library)
    assert reply.body["stop"] == ["</search>"] and reply.proceed("hm <search>tent</search>", 6)
    *before, said, shown = reply.body["messages"]
    assert before == [QUESTION] and said == {"role": "assistant", "content": "hm <search>tent</search>"}
    assert [part["type"] for part in shown["content"]] == ["image_url", "text"]
    assert shown["content"][1]["text"] == "where is the tent ?" and reply.body["max_tokens"] == 14
    # Nothing fits: the same turn goes on; and nobody stops it any more.
    assert reply.proceed("or <search>boat</search>", 4)
    assert reply.body["messages"][-1] == {"role": "assistant", "content": "or <search>boat</search>"}
    assert reply.body["continue_final_message"] and reply.body["stop"] == [] and reply.body["max_tokens"] == 10
    assert reply.found == [{"query": "tent", "items": ["map.png"]}, {"query": "boat", "items": []}]
    assert not reply.proceed("</search>", 10)


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([QUESTION, {"role": "user", "content": [{"type": "image_url"}]}], "where is the tent ?"),
        ([{"role": "system", "content": "c"}, {"role": "user", "content": 3}, "text"], ""),
    ],
)
def test_the_question_is_the_last_text_of_a_user(library: PictureFolder, messages: list[Any], question: str) -> None:
    reply = ChatReply({"messages": messages}, PictureRetrieval(library="pages", start=None), library)
    assert reply.proceed("house</search>", 2) and reply.found[0]["query"] == f"{question} house".strip()
    assert reply.body["messages"][-1]["content"][1:] == ([{"type": "text", "text": question}] if question else [])
