"""The page and the picture of `python -m benchmarks vllm`, and its conversations, without a server."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.vllm.load import PICTURES, TURNS, Conversations, first_turns, of_noise, of_pages
from benchmarks.vllm.readings import PARTS, PartMeter
from benchmarks.vllm.report import write_report
from benchmarks.vllm.run import rates_of
from benchmarks.vllm.saturation import LARGE, TRAFFIC, processor_seconds, rounds_of


@pytest.mark.parametrize("talks", [of_noise(2, 28, 3), of_pages(2, 3)], ids=["noise", "pages"])
def test_each_conversation_shows_every_picture_once_and_in_an_order_of_its_own(talks: Conversations) -> None:
    assert len(talks.pool) == PICTURES and len(talks.turns) == 2 * len(TURNS)
    orders = []
    for begin in (0, len(TURNS)):
        turns = talks.turns[begin : begin + len(TURNS)]
        for place, turn in enumerate(turns):
            shown = [part for part in turn.parts if isinstance(part, Image.Image)]
            assert turn.place == place and len(shown) == sum(TURNS[: place + 1])
            # A turn holds all that was said before it.
            assert place == 0 or turn.parts[: len(turns[place - 1].parts)] == turns[place - 1].parts
        orders.append([next(i for i, page in enumerate(talks.pool) if page is part) for part in shown])
        assert sorted(orders[-1]) == list(range(PICTURES))
    assert orders[0] != orders[1]


def test_first_and_later_turns_are_told_apart() -> None:
    turns = of_noise(1, 28, 0).turns
    assert first_turns(turns, [1.0, 2.0, 3.0, 4.0], later=False) == [1.0]
    assert first_turns(turns, [1.0, 2.0, 3.0, 4.0], later=True) == [2.0, 3.0, 4.0]


def test_rates_as_they_are_written() -> None:
    assert rates_of("0.5,2,inf") == (0.5, 2.0, None)
    with pytest.raises(ValueError, match="more than zero"):
        rates_of("0")


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    arms = [
        {"strategy": name, "median": median, "seconds": [median], "prompt_tokens": 1092, "linked_tokens": linked}
        for name, median, linked in (("full", 2.0, 0), ("blind", 0.25, 1032))
    ]
    held = [
        {"strategy": name, "rate": rate, "turns": 4, "turns_a_second": 1.0, "first_turn": 1.5, "later_turns": 0.5,
         "slowest": 2.0, "agreeing": 4, "right": None, "prompt_tokens": 1000, "linked_tokens": 250, "kv_bytes": 5e6,
         "prefix_tokens": 500}
        for rate in (0.5, None)
        for name in ("full", "blind")
    ]  # fmt: skip
    saturation = [
        {"traffic": "talks", "arm": arm, "requests": 4, "rates": [10.0, rate, 30.0], "ratios": [1.0, rate / 20, 1.0],
         "seconds": [0.02, 0.03, 0.04], "agreeing": 12, "right": 6, "picture_rows": rows, "linked_rows": rows // 2,
         "prefix_tokens": 5, "background": 0.5}
        for arm, rate, rows in (("vllm", 20.0, 0), ("full", 20.0, 100), ("auto", 19.0, 100))
    ]  # fmt: skip
    readings = [
        {"pictures": 8, "strategy": name, "median": median, "least": median, "most": 2 * median,
         "processor": median, "prompt_tokens": 2096, "linked_tokens": 0, "rows": rows, "requests": 2.0, "steps": 3.0,
         "margin": margin, "parts": dict.fromkeys(PARTS, 0.004)}
        for name, median, rows, margin in (("full", 2.0, 2096.0, None), ("query-12%", 0.5, 299.6, 0.75))
    ]  # fmt: skip
    found = {
        "saturation": saturation,
        "readings": {"reference": readings},
        "device": "CPU, 1 threads",
        "load": [0.5, 1.25],
        "settings": {"talks": 1},
        "first_tokens": {"parameters": 137_000_000, "pictures": 4, "arms": arms},
        "talks": {"parameters": 137_000_000, "held": held},
    }
    page = write_report(found, tmp_path, "python -m benchmarks vllm --out docs/results")
    text = page.read_text()
    assert page == tmp_path / "vllm.md"
    pictures = sorted(tmp_path.glob("*.png"))
    assert [path.name for path in pictures] == ["vllm-first-tokens.png", "vllm-talks.png"]
    assert all(Image.open(path).size[0] > 500 for path in pictures)
    assert "| blind | 0.250 | 0.125 | 1,032 |" in text and "| at once | blind | 1.000 |" in text
    assert "| talks | auto | 19.0 [10.0, 30.0] | 1.000 [0.950, 1.000] | 30.0 |" in text
    assert "| 8 | query-12% | 0.500 [0.500, 1.000] | 0.250 | 0.500 | 0.250 | 2,096 | 300 | 2 | 3.000 | 0.750 |" in text
    assert "load average 0.5 before and 1.2 after" in text and "python -m benchmarks vllm --out docs/results" in text
    assert "Conversations over ten pictures: answers" not in text


@pytest.mark.parametrize("kind", TRAFFIC)
def test_rounds_at_saturation_are_new_requests_of_one_seed(kind: str) -> None:
    rounds = rounds_of(kind, 3, 8, 5)
    assert [len(requests) for requests in rounds] == [8, 8, 8]
    contents = [json.dumps(request.content) for requests in rounds for request in requests]
    assert len(set(contents)) == len(contents) and all(request.answer for requests in rounds for request in requests)
    assert contents == [json.dumps(request.content) for some in rounds_of(kind, 3, 8, 5) for request in some]
    shown = [content.count("image_url") // 2 for content in contents]
    assert max(shown) <= {"talks": 10, "subsets": 8, "windows": 6}[kind.removesuffix(LARGE)] and min(shown) >= 1


def test_processor_seconds_are_those_of_a_server_and_its_children() -> None:
    burn = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'for _ in range(10**7): pass'])"
    line = [sys.executable, "-c", f"{burn}; time.sleep(60)", "--port", "54321"]
    with subprocess.Popen(line, start_new_session=True) as process:
        until = time.monotonic() + 60
        try:
            while processor_seconds(54321) < 0.1 and time.monotonic() < until:
                time.sleep(0.05)
            assert processor_seconds(54321) >= 0.1 and processor_seconds(54322) == 0
        finally:
            process.kill()


def test_parts_are_timed_without_those_inside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Worker:
        def outer(self) -> None:
            now[0] += 1
            self.inner()
            now[0] += 2

        def inner(self) -> None:
            now[0] += 5

    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    meter, worker = PartMeter(), Worker()
    meter.timing(worker, "outer", "outer")
    meter.timing(worker, "inner", "inner")
    worker.outer()
    worker.inner()
    assert meter.seconds == {"outer": 3, "inner": 10}
    meter.clear()
    assert not meter.seconds
