"""Bodies of three forms: what parts name is read, nothing else of a media part is passed on, and texts stay."""

import asyncio
import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.errors import EmblemaError
from emblema.serve.faults import ServeError
from emblema.serve.front.body_media import EMBEDDINGS, FORMS, Form, MediaReference, ReadMedia, media_type, resolve_media

TEXT = {"type": "text", "text": "which ?"}
WRITTEN = base64.b64encode(b"pixels").decode()
URL = "https://a/b"
ADDRESS = f"data:application/octet-stream;base64,{WRITTEN}"


class Reader:
    """Reads everything as the same bytes, and notes what it was asked for."""

    def __init__(self, kind: str = "image", name: str | None = "name") -> None:
        self.media, self.asked = ReadMedia(kind, "application/octet-stream", WRITTEN, name), list[MediaReference]()

    async def __call__(self, reference: MediaReference) -> ReadMedia:
        self.asked.append(reference)
        return self.media


def resolved(form: Form, *parts: Any, reader: Reader | None = None) -> list[Any]:
    name = "input" if form == "responses" else "messages"
    body = {name: [{"role": "user", "content": [dict(part) for part in parts]}]}
    asyncio.run(resolve_media(body, form, reader or Reader(), 10, 100))
    content: list[Any] = body[name][0]["content"]  # type: ignore[assignment]
    return content


@pytest.mark.parametrize(
    ("form", "part", "asked"),
    [
        ("chat", {"type": "file", "file": {"file_id": "file-1"}}, MediaReference("file-1")),
        ("chat", {"type": "file", "file": {"file_data": "data:,x"}}, MediaReference(None, "data:,x")),
        ("chat", {"type": "image_url", "image_url": {"url": URL}}, MediaReference(None, URL, "image")),
        ("chat", {"type": "image_url", "image_url": {"file_id": "f"}}, MediaReference("f", kind="image")),
        ("chat", {"type": "input_audio", "input_audio": {"file_id": "f"}}, MediaReference("f", kind="audio")),
        ("chat", {"image_url": "https://a/b", "uuid": "x"}, MediaReference(None, "https://a/b", "image")),
        ("chat", {"type": "unheard-of", "image_url": "https://a/b"}, MediaReference(None, "https://a/b", "image")),
        ("responses", {"type": "input_image", "file_id": "file-1"}, MediaReference("file-1", kind="image")),
        ("responses", {"type": "input_image", "image_url": "data:,x"}, MediaReference(None, "data:,x", "image")),
        ("responses", {"type": "input_file", "file_id": "file-1"}, MediaReference("file-1")),
        ("responses", {"type": "input_file", "file_url": "https://a/b"}, MediaReference(None, "https://a/b")),
        ("messages", {"type": "image", "source": {"type": "file", "file_id": "f"}}, MediaReference("f", kind="image")),
        ("messages", {"type": "image", "source": {"type": "url", "url": URL}}, MediaReference(None, URL, "image")),
        ("messages", {"type": "image", "source": {"data": "AA"}}, MediaReference(None, "data:;base64,AA", "image")),
    ],
)  # fmt: skip
def test_what_a_part_names_is_written_in_its_place(form: Form, part: dict[str, Any], asked: MediaReference) -> None:
    reader = Reader()
    # What else a client writes beside it does not reach vLLM.
    found, text = resolved(
        form, part | {"detail": "high", "mime": "text/html", "video_url": "file:///etc/passwd"}, TEXT, reader=reader
    )
    assert reader.asked == [asked] and text == TEXT
    assert (
        found
        == {
            "chat": {"type": "image_url", "image_url": {"url": ADDRESS}, "uuid": "name"},
            "responses": {"type": "input_image", "image_url": ADDRESS, "detail": "high"},
            "messages": {
                "type": "image",
                "source": {"type": "base64", "media_type": "application/octet-stream", "data": WRITTEN},
            },
        }[form]
    )


def test_results_of_tools_are_looked_at_and_their_arguments_left() -> None:
    call = {"type": "tool_use", "input": {"uuid": "kept", "image_url": "https://a/b"}}
    picture = {"type": "image", "source": {"type": "file", "file_id": "file-1"}}
    result = {"type": "tool_result", "content": [dict(picture)]}
    told, answered = resolved("messages", call, result)
    assert told == call and answered["content"][0]["source"]["data"] == WRITTEN
    output = {"type": "function_call_output", "output": [{"type": "input_image", "file_id": "file-1"}]}
    body: dict[str, Any] = {"input": [output]}
    assert asyncio.run(resolve_media(body, "responses", Reader(), 1, 100)) == len(WRITTEN)
    assert body["input"][0]["output"][0]["image_url"] == ADDRESS


def test_a_name_of_a_client_s_is_taken_off() -> None:
    parts = [TEXT | {"uuid": "x", "image_url": "https://a/b"}, {"type": "image_url", "image_url": None, "uuid": "x"}]
    assert all("uuid" not in part for part in resolved("chat", *parts))
    [found] = resolved("chat", {"type": "file", "file": {"file_id": "f"}, "uuid": "x"}, reader=Reader(name=None))
    assert "uuid" not in found


@pytest.mark.parametrize("detail", ["low", "huge", 3, None])
def test_how_closely_a_picture_is_looked_at_is_passed_on(detail: Any) -> None:
    [found] = resolved("chat", {"type": "image_url", "image_url": {"url": URL, "detail": detail, "more": "x"}})
    assert found["image_url"] == {"url": ADDRESS} | ({"detail": "low"} if detail == "low" else {})


@pytest.mark.parametrize(
    ("data", "kind", "found"),
    [(b"\x89PNG\r", "image", "image/png"), (b"\xff\xd8\xff\xe0", "image", "image/jpeg"), (b"", "image", None),
     (b"RIFF....WEBP", "image", "image/webp"), (b"RIFF....WAVE", "audio", None)],
)  # fmt: skip
def test_pictures_have_their_media_type(data: bytes, kind: str, found: str | None) -> None:
    assert media_type(data, kind) == (found or "application/octet-stream")


def test_what_has_slid_is_refused() -> None:
    with pytest.raises(ServeError, match="`emblema serve` alone"):
        resolved("chat", {"type": "file", "file": {"file_id": "file-1"}, "slid": True})


def test_clips_are_for_chat_alone() -> None:
    part = {"type": "file", "file": {"file_id": "file-1"}}
    assert resolved("chat", part, reader=Reader("video"))[0]["video_url"] == {"url": ADDRESS}
    with pytest.raises(ServeError, match="chat completions alone"):
        resolved("responses", {"type": "input_file", "file_id": "file-1"}, reader=Reader("video"))


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_are_refused(name: str) -> None:
    for part in (
        {"type": name, name: "AA"},
        {"type": "text", "text": "x", name: {"a": "AA"}},
        {name: None, "uuid": "x"},
    ):
        with pytest.raises(ServeError, match="embeds"):
            resolved("chat", part)


def test_too_many_are_refused_before_any_is_read() -> None:
    reader = Reader()
    with pytest.raises(ServeError, match="11 parts"):
        resolved("chat", *[{"type": "file", "file": {"file_id": "f"}}] * 11, reader=reader)
    assert not reader.asked
    reader.media = ReadMedia("image", "image/png", "A" * 80)
    with pytest.raises(ServeError, match="100 bytes together"):
        resolved("chat", *[{"type": "file", "file": {"file_id": "f"}}] * 10, reader=reader)
    assert len(reader.asked) == 2


def test_caches_are_resolved_before() -> None:
    with pytest.raises(ServeError, match="chat completions alone"):
        resolved("chat", {"type": "cache", "cache": {"cache_id": "cache-1"}})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("type", "content", "output", "image_url", "url", "file", "file_id", "source", "uuid", "data")
            ),
            inner | st.sampled_from(("file", "input_image", "image", "text", "tool_result")),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(_VALUES, st.sampled_from(list(FORMS.values())))
def test_no_body_breaks_the_reading(turns: Any, form: Form) -> None:
    body = {"input" if form == "responses" else "messages": copy.deepcopy(turns)}
    try:
        asyncio.run(resolve_media(body, form, Reader(), 100, 1_000))
    except EmblemaError:
        return
    json.dumps(body)
