"""What is written into replies of vLLM, whole and streamed in pieces of any length."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from emblema.serve.faults import ServeError
from emblema.serve.front import reply_notes
from emblema.serve.front.engine_api import SGLANG, VLLM, EngineApi
from emblema.serve.front.reply_notes import ReplyNotes

USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
CHOICE = {"index": 0, "delta": {"content": "\u00e9"}, "finish_reason": None}


def noted(streamed: bool, body: bytes, size: int, remarks: tuple[str, ...] = ("lost",), api: EngineApi = VLLM) -> bytes:
    """What a client gets of a body that comes in pieces of a size."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def run() -> bytes:
        return b"".join([part async for part in ReplyNotes(api, 7, remarks).write(pieces(), streamed)])

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_a_whole_reply_is_noted(size: int) -> None:
    block = {"emblema": {"strategy": "blind", "remark": "slow"}}
    reply = {"choices": [CHOICE | {"finish_reason": "stop"}], "usage": USAGE, "kv_transfer_params": block}
    told = json.loads(noted(False, json.dumps(reply).encode(), size))
    assert told["usage"] == {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 7}}
    assert told["kv_transfer_params"] == {"emblema": {"strategy": "blind", "remark": "lost; slow"}}
    same = json.loads(noted(False, json.dumps(reply).encode(), size, remarks=()))
    assert same["kv_transfer_params"] == block and same["choices"] == reply["choices"]
    told = json.loads(noted(False, json.dumps(reply).encode(), size, api=SGLANG))
    assert told["emblema"] == {"remark": "lost"} and told["kv_transfer_params"] == block


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_noted_where_it_ends(size: int) -> None:
    events: list[Any] = [{"choices": [CHOICE]}, {"choices": [CHOICE | {"finish_reason": "stop"}]}]
    events += [{"choices": [], "usage": USAGE}]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    *got, done, rest = noted(True, body, size).split(b"\n\n")
    first, ended, usage = (json.loads(event.removeprefix(b"data: ")) for event in got)
    assert done == b"data: [DONE]" and not rest and first == events[0]
    assert ended["kv_transfer_params"] == {"emblema": {"remark": "lost"}}
    assert usage["usage"]["prompt_tokens_details"]["cache_write_tokens"] == 7


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "body", [b"data: {" + b"x" * 200 + b"\n\n", b'data: {"usage": 3, "choices": 4}\n\n', b"{", b"[]"]
)
def test_what_is_no_reply_is_told(monkeypatch: pytest.MonkeyPatch, streamed: bool, body: bytes) -> None:
    monkeypatch.setattr(reply_notes, "LARGEST_REPLY", 100)
    if streamed and not body.startswith(b"data"):
        assert noted(streamed, body, 1) == body
        with pytest.raises(ServeError, match="more than 100 bytes"):
            noted(streamed, body * 101, 1)
        return
    with pytest.raises(ServeError):
        noted(streamed, body, 1)
