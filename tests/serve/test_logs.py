"""What the log of a server says, to programs and to people."""

import io
import json
import logging
import re
import sys

import pytest

from emblema.serve.logs import log_lines

REQUEST = {
    "request": "req_1",
    "method": "POST",
    "path": "/v1/files",
    "status": 200,
    "seconds": 0.1234,
    "lane": "auto:patch",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: str = "info") -> list[str]:
    monkeypatch.setattr(sys, "stderr", stream)
    log_lines("tests.logs", level=level)
    log = logging.getLogger("tests.logs")
    log.debug("details")
    log.info(json.dumps(REQUEST))
    log.warning("a name \x1b[2J of \n a client's")
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("a step failed")
    return stream.getvalue().splitlines()


def test_a_program_reads_json(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in written(monkeypatch, io.StringIO())]
    assert [line["level"] for line in lines] == ["INFO", "WARNING", "ERROR"]
    assert REQUEST.items() <= lines[0].items() and lines[1]["message"].startswith("a name")
    assert "KeyError: 'lost'" in lines[2]["error"]


def test_people_read_short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(monkeypatch, Terminal())
    assert re.fullmatch(r"\d\d:\d\d:\d\d POST /v1/files 200 0\.123 s auto:patch", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING a name \?\[2J of \? a client's", lines[1])
    assert lines[2].endswith("ERROR a step failed") and lines[-1] == "KeyError: 'lost'"


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_what_is_less_is_not_written(monkeypatch: pytest.MonkeyPatch, level: str, count: int) -> None:
    assert len(written(monkeypatch, io.StringIO(), level)) == count
