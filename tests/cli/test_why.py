"""`emblema why`: a server's log, or its replies, as a table and as JSON."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from emblema.cli import main
from emblema.link.miss_log import request_line
from emblema.link.miss_reasons import ADVICE, MissReason
from tests.cli.running import emblema, refused

LINES = [
    request_line("one", 900, "auto:full", [(0, 258, "changed", "3 of 64 tiles differ"), (1, 66, "new", "")]),
    "INFO: something else",
    request_line("two", 100, "auto:leading", []),
    request_line("three", 1000, "auto", [(4, 300, "changed", "[red]none[/red]"), (5, 1, "later", "")]),
    '{"misses": [',
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text("\n".join(LINES))
    return path


def test_a_log_is_summed_up_by_reason(log: Path) -> None:
    told = json.loads(emblema("why", str(log), "--json").stdout)
    assert (told["requests"], told["rows"], told["broken_lines"]) == (3, 2000, 1)
    first, second, unknown = told["reasons"]
    assert (first["reason"], first["pieces"], first["rows"], first["share"]) == ("changed", 2, 558, 0.279)
    assert (first["request"], first["line"], first["part"]) == ("three", 4, 4)
    assert first["change"] == ADVICE[MissReason.CHANGED].change and second["reason"] == "new"
    assert unknown["reason"] == "later" and "version" in unknown["cause"]
    done = emblema("why", str(log), "--plain")
    words = " ".join(done.stdout.split())
    assert "changed 2 558 27.9%" in words and "[red]none[/red]" in words and "625 of 2000 rows" in words
    assert "1 of its lines cannot be read, the first: 5" in words


def test_the_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["emblema", "why", "-", "--json"])
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(LINES[0].encode())))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["requests"] == 1


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("nothing of the kind\n")
    assert "tells of no request with pictures" in refused("why", str(other))
    assert "cannot be read" in refused("why", str(tmp_path / "none"))
    assert "cannot be read" in refused("why", str(tmp_path))
