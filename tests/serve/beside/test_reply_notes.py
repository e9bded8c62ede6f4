"""What is written into replies of vLLM, whole and streamed in pieces of any length."""

import asyncio
import json
from typing import Any

import pytest

from emblema.serve.beside.reply_notes import ReplyNotes
from emblema.vllm.engine_api import VLLM

USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
CHOICE = {"index": 0, "delta": {"content": "\u00e9"}, "finish_reason": None}


def noted(kind: bytes, body: bytes, size: int, status: int = 200, remarks: tuple[str, ...] = ("lost",)) -> Any:
    """What a client gets of a body that comes in pieces of a size."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        notes = ReplyNotes(send, 7, remarks, VLLM.remark)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await notes.pass_on({"type": "http.response.start", "status": status, "headers": headers})
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            await notes.pass_on({"type": "http.response.body", "body": piece, "more_body": start + size < len(body)})

    asyncio.run(run())
    got = b"".join(message.get("body", b"") for message in sent)
    assert not sent[-1].get("more_body") and sent[0]["status"] == status
    if not kind.startswith(b"text"):
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(got)).encode()
    return got


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_a_whole_reply_is_noted_and_a_refusal_is_not(size: int) -> None:
    block = {"emblema": {"strategy": "blind", "remark": "slow"}}
    reply = {"choices": [CHOICE | {"finish_reason": "stop"}], "usage": USAGE, "kv_transfer_params": block}
    told = json.loads(noted(b"application/json", json.dumps(reply).encode(), size))
    assert told["usage"] == {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 7}}
    assert told["kv_transfer_params"] == {"emblema": {"strategy": "blind", "remark": "lost; slow"}}
    same = json.loads(noted(b"application/json", json.dumps(reply).encode(), size, remarks=()))
    assert same["kv_transfer_params"] == block and same["choices"] == reply["choices"]
    refusal = b'{"error": {}, "usage": {}}'
    assert noted(b"application/json", refusal, size, status=400) == refusal


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_noted_where_it_ends(size: int) -> None:
    events: list[Any] = [{"choices": [CHOICE]}, {"choices": [CHOICE | {"finish_reason": "stop"}]}]
    events += [{"choices": [], "usage": USAGE}]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    *got, done, rest = noted(b"text/event-stream; charset=utf-8", body, size).split(b"\n\n")
    first, ended, usage = (json.loads(event.removeprefix(b"data: ")) for event in got)
    assert done == b"data: [DONE]" and not rest and first == events[0]
    assert ended["kv_transfer_params"] == {"emblema": {"remark": "lost"}}
    assert usage["usage"]["prompt_tokens_details"]["cache_write_tokens"] == 7
