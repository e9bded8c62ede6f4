"""The page's own demo, asked as the page asks: in random orders, each made ready, behind an opening of its own."""

import json
import random
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.serve.sent import settled
from tests.serve.servers import serving

DEMO = Path("src/emblema/assets/demo")
ORDERS = 14
WAYS = ("auto", "blind", "full")


@pytest.mark.nightly
def test_the_first_token_of_auto_is_three_times_sooner_and_right(tmp_path: Path) -> None:
    """Ratios of two answers that are given one after the other; making an order ready is not counted."""
    facts = json.loads((DEMO / "demo.json").read_text())
    names = [*facts["legends"], *facts["maps"]]
    questions = [each for each in facts["questions"] if each["kind"] in ("land", "colour")]
    chosen, ratios, right = random.Random(), [], Counter[str]()
    with serving(tmp_path) as server, server.http() as http:

        def upload(name: str) -> dict[str, Any]:
            sent = {"file": (name, (DEMO / name).read_bytes())}
            id = http.post("/v1/files", data={"purpose": "user_data"}, files=sent).json()["id"]
            settled(http, f"/v1/files/{id}")
            return {"type": "file", "file": {"file_id": id}}

        parts = {name: upload(name) for name in names}
        for _ in range(ORDERS):
            legends = chosen.sample(facts["legends"], len(facts["legends"]))
            order = [*legends, *chosen.sample(facts["maps"], len(facts["maps"]))]
            made = http.post("/v1/caches?wait=true", json={"content": [parts[name] for name in order], "ttl": 600})
            assert made.json()["status"] == "processed"
            shown = [parts[name] | ({"slid": True} if name in legends else {}) for name in order]
            question, seconds = chosen.choice(questions), {}
            for way in chosen.sample(WAYS, len(WAYS)):
                opening = {"type": "text", "text": f"here are {len(order)} pages , number {chosen.randrange(900)} ."}
                content = [opening, *shown, {"type": "text", "text": question["text"]}]
                body = {"model": "reference", "strategy": way, "max_tokens": 8,
                        "messages": [{"role": "user", "content": content}]}  # fmt: skip
                reply = http.post("/v1/chat/completions", json=body).json()
                seconds[way] = reply["emblema"]["ttft_seconds"]
                right[way] += reply["choices"][0]["message"]["content"] == question["answer"]
            ratios.append(seconds["full"] / seconds["auto"])
    print(f"full over auto: median {median(ratios):.2f}, {sorted(round(ratio, 1) for ratio in ratios)}; right: {right}")
    assert median(ratios) >= 3
    assert right["auto"] == right["full"] == ORDERS > right["blind"]
