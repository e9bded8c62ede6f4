"""Generated uploads and messages: each is used whole, or refused by name."""

import json
import random
from typing import Any

import httpx
import pytest

from tests.serve.conftest import QUESTION, data_url
from tests.serve.servers import Running

COUNT = [20, pytest.param(500, marks=pytest.mark.nightly)]
NAMES = ("a.png", "ünï 日本.png", "a b'c.jpeg", "x" * 180 + ".pdf", "..png", "-", "a;b=c.png")


def upload(rnd: random.Random, pngs: list[bytes]) -> tuple[bytes, str, dict[str, str], str | None]:
    """Return bytes, a name and fields, and the field that is wrong."""
    data = rnd.choice([rnd.choice(pngs), rnd.randbytes(rnd.randint(1, 3000)), b"%PDF-1.4 no more", b"text"])
    fields = {"purpose": rnd.choice(["user_data", "vision", "assistants"])}
    if rnd.random() < 0.4:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(rnd.randint(3_600, 2_592_000))}
    wrong = rnd.choice([None, None, *FAULTS])
    if wrong is not None:
        fields |= FAULTS[wrong]
    return data, rnd.choice(NAMES), fields, wrong


FAULTS: dict[str, dict[str, str]] = {
    "purpose": {"purpose": "fun"},
    "seconds": {"expires_after[anchor]": "created_at", "expires_after[seconds]": "12"},
    "anchor": {"expires_after[anchor]": "now", "expires_after[seconds]": "4000"},
    "colour": {"colour": "red"},
    "tenant": {"tenant": "another"},
}


@pytest.mark.parametrize("count", COUNT)
def test_uploads(server: Running, pngs: list[bytes], count: int) -> None:
    kept = 0
    with server.http() as http:
        for seed in range(count):
            data, name, fields, wrong = upload(random.Random(seed), pngs)
            answer = http.post("/v1/files", files={"file": (name, data)}, data=fields)
            if wrong is not None:
                assert answer.status_code == 400 and wrong in answer.json()["error"]["message"], (seed, answer.text)
                continue
            assert answer.status_code == 200, (seed, answer.text)
            told = answer.json()
            assert http.get(f"/v1/files/{told['id']}/content").content == data
            assert (told["filename"], told["bytes"]) == (name, len(data))
            kept += 1
            if "expires_after[seconds]" in fields:
                assert told["expires_at"] - told["created_at"] <= int(fields["expires_after[seconds]"]) + 1
                assert told["expires_at"] is not None
            assert http.delete(f"/v1/files/{told['id']}").json()["deleted"]
    assert 0.2 * count < kept < 0.8 * count


def message(rnd: random.Random, pngs: list[bytes]) -> tuple[dict[str, Any], str | None]:
    """Return a request, and the field that is wrong with it."""
    texts = [rnd.choice([QUESTION, "hello", "the tent ."]) + " " for _ in range(rnd.randint(1, 3))]
    content: Any = [{"type": "text", "text": text} for text in texts]
    if rnd.random() < 0.5:
        address = data_url(rnd.choice(pngs))
        picture = {
            "type": "image_url",
            "image_url": rnd.choice([address, {"url": address}, {"url": address, "detail": None}]),
        }
        content.insert(rnd.randint(0, len(content)), picture)
    body: dict[str, Any] = {"model": "reference", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    for name in rnd.sample(list(READ), rnd.randint(0, 4)):
        body[name] = rnd.choice([READ[name], None])
    wrong = rnd.choice([None, *WRONG])
    if wrong is not None:
        place = content[rnd.randrange(len(content))] if wrong.startswith("part.") else body
        place[wrong.removeprefix("part.")] = WRONG[wrong]
    return body, wrong


READ = {
    "temperature": 0,
    "top_p": 1,
    "seed": 3,
    "stop": ["tent"],
    "stream": False,
    "n": 1,
    "user": "u",
    "logit_bias": {},
}
WRONG: dict[str, Any] = {
    "temperature": "hot", "top_p": 0, "seed": 0.5, "stop": ["a"] * 9, "n": 0, "logit_bias": {"5": 1_000}, "beams": 4,
    "part.frames": 4, "part.type": "smell", "messages": [], "stream": "often",
}  # fmt: skip


@pytest.mark.parametrize("count", COUNT)
def test_messages(server: Running, pngs: list[bytes], count: int) -> None:
    with server.http() as http:
        for seed in range(count):
            body, wrong = message(random.Random(seed), pngs)
            answer = http.post("/v1/chat/completions", json=body)
            if wrong is None:
                assert answer.status_code == 200, (seed, answer.text)
                rows = answer.json()["usage"]["prompt_tokens"]
                assert rows == tokens_of(http, body["messages"]), seed
                continue
            error = answer.json()["error"]
            place = wrong.removeprefix("part.")
            assert answer.status_code == 400 and place in f"{error['message']} {error['param']}", (seed, answer.text)


def tokens_of(http: httpx.Client, messages: list[dict[str, Any]]) -> int:
    """Tokens of the same messages with every text split in words: the same text, in other parts."""
    turned = json.loads(json.dumps(messages))
    for each in turned:
        content = []
        for part in each["content"]:
            texts = part["text"].split(" ") if part["type"] == "text" else []
            content += [{"type": "text", "text": f" {word}"} for word in texts] or [part]
        each["content"] = content
    answer = http.post("/v1/chat/completions", json={"model": "reference", "max_tokens": 1, "messages": turned})
    return int(answer.json()["usage"]["prompt_tokens"])
