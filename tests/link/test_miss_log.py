"""Logs of requests: what is written is read; hostile lines are counted and named."""

import json
from io import BytesIO

import pytest

from emblema.link import miss_log
from emblema.link.miss_log import MOST_MISSES, MOST_REASONS, MissExample, request_line, summarize
from emblema.link.miss_reasons import MissReason
from emblema.link.misses import Miss, MissData

NEW: MissData = Miss(0, 70, MissReason.NEW).data
CHANGED: MissData = Miss(2, 30, MissReason.CHANGED, "1 of 64 tiles differ from one before").data


def read(*lines: str | bytes) -> miss_log.MissSummary:
    return summarize(BytesIO(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)))


def test_lines_of_requests_are_summed_by_reason() -> None:
    lines = [request_line("one", 200, "auto", [NEW, CHANGED]), request_line("two", 100, "auto", [NEW]), "INFO: other"]
    found = read(*lines, request_line("three", 50, "auto:leading", []))
    assert (found.requests, found.rows, found.broken_lines) == (3, 350, 0)
    assert found.pieces == {"new": 2, "changed": 1} and found.missed == {"new": 140, "changed": 30}
    assert found.examples["changed"][1] == MissExample("one", 1, 2, CHANGED[3])


@pytest.mark.parametrize(
    "line",
    [
        f"(EngineCore pid=7) INFO 11-29 05:00:00 [it.py:4] emblema: {request_line('one', 100, 'auto', [NEW])}",
        json.dumps({"id": "one", "usage": {"prompt_tokens": 100}, "emblema": {"misses": [NEW]}}),
        json.dumps({"id": "one", "kv_transfer_params": {"emblema": {"prompt_tokens": 100, "misses": [NEW]}}}),
        json.dumps({"id": "one", "meta_info": {"emblema": [{"prompt_tokens": 100, "misses": [NEW]}]}}),
        json.dumps({"request": "one", "rows": 100, "misses": [NEW[:3]]}),
    ],
)
def test_logs_of_engines_and_replies_are_read_too(line: str) -> None:
    found = read(line)
    assert (found.requests, found.rows, found.broken_lines) == (1, 100, 0)
    assert found.missed == {"new": 70} and found.examples["new"][1].request == "one"


@pytest.mark.parametrize(
    "line",
    [
        '{"misses": [[0, 1, "new", ""]',
        '{"rows": 1, "misses": 3}',
        '{"rows": 1, "misses": [[0, -1, "new", ""]]}',
        '{"rows": 1, "misses": [[0, 1e400, "new", ""]]}',
        '{"rows": 1, "misses": [[0, 1, 5, ""]]}',
        '{"rows": true, "misses": []}',
        '{"rows": 1, "request": [], "misses": []}',
        '{"rows": 1, "misses": [[0]]}',
        '"misses" without braces',
        b'{"rows": 1, "misses": [[0, 1, "\xff", ""]]}',
        '{"misses":' + "[" * 200_000,
        '{"emblema":' * 50_000 + '"misses"',
        "x" * (miss_log.LONGEST_LINE + 1),
    ],
)
def test_hostile_lines_are_counted_and_named(line: str | bytes) -> None:
    found = read(request_line("one", 100, "auto", [NEW]), line, request_line("two", 100, "auto", [NEW]))
    assert (found.requests, found.broken_lines, found.broken) == (2, 1, [2])


def test_what_is_kept_of_a_log_is_bounded() -> None:
    lines = [request_line("one", 1, "auto", [(0, 1, f"reason {number}", "")]) for number in range(3 * MOST_REASONS)]
    found = read(*lines, *['{"misses"'] * 10)
    assert len(found.missed) == MOST_REASONS + 1 and found.missed["other"] == 2 * MOST_REASONS
    assert found.broken_lines == 10 and len(found.broken) == 3
    assert len(json.loads(request_line("one", 1, "auto", [NEW] * 9999))["misses"]) == MOST_MISSES


def test_no_control_character_is_shown() -> None:
    found = read(json.dumps({"request": "\x1b[2J", "rows": 1, "misses": [[0, 1, "new\n", "\x07" * 999]]}))
    assert found.missed == {"new?": 1} and found.examples["new?"][1] == MissExample("?[2J", 1, 0, "?" * 200)
    assert Miss(0, 1, MissReason.REFUSED, "\x1b" * 999).data == (0, 1, "refused", "?" * 200)
