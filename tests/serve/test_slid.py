"""Parts that a window has moved past: they conditioned what stands after them, and are not attended."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from emblema.eval.demo_media import FOLDER
from tests.serve.servers import Running


@pytest.fixture(scope="module")
def pages(server: Running) -> list[dict[str, Any]]:
    """A legend and a map that says which colour the boat is on, as parts."""
    client = server.client()
    ids = [client.files.create(file=FOLDER / name, purpose="user_data").id for name in ("legend-1.png", "map-19.png")]
    return [{"type": "file", "file": {"file_id": id}} for id in ids]


def test_a_slid_legend_is_known_by_what_it_conditioned_alone(client: OpenAI, pages: list[dict[str, Any]]) -> None:
    listed = json.loads(Path(FOLDER / "demo.json").read_text())["questions"]
    asked = next(question for question in listed if question["text"] == "on which land does the boat stand ?")
    legend, map_page = pages

    def ask(strategy: str, *parts: dict[str, Any]) -> tuple[str | None, int]:
        content: Any = [*parts, {"type": "text", "text": asked["text"]}]
        reply = client.chat.completions.create(
            model="reference", messages=[{"role": "user", "content": content}], extra_body={"strategy": strategy}
        )
        assert reply.usage is not None
        return reply.choices[0].message.content, reply.usage.prompt_tokens

    slid = {**legend, "slid": True}
    shown, rows = ask("blind", legend, map_page)
    assert shown == asked["answer"]
    assert ask("full", slid, map_page)[0] == asked["answer"]
    blind, fewer = ask("blind", slid, map_page)
    assert blind != asked["answer"]
    assert fewer < rows


def test_a_cache_holds_nothing_that_has_slid(server: Running, pages: list[dict[str, Any]]) -> None:
    with server.http() as http:
        answer = http.post("/v1/caches", json={"content": [{**pages[0], "slid": True}, pages[1]]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "slid"
