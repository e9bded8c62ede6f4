"""The documentation: its Python runs. `make docs` builds the site, where a warning is an error."""

import re
from pathlib import Path

import pytest

from emblema.link.lanes import Lane
from emblema.link.miss_reasons import ADVICE, MissReason
from emblema.link.strategies.registry import strategies
from emblema.stream.methods import METHODS
from tests.docs.shown import run_blocks

ROOT = Path(__file__).parents[2]
TOPICS = ("index", "policy", "scale", "security", "store", "store-format", "stream", "vllm", "window")
PAGES = [
    *(ROOT / "docs" / f"{topic}.md" for topic in TOPICS),
    *sorted((ROOT / "docs").glob("how-to/*.md")),
    *sorted((ROOT / "docs").glob("concepts/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for printed, shown in run_blocks(page, tmp_path, monkeypatch, capsys):
        assert printed == shown
    # Blocks for a server elsewhere are not run, but they are Python.
    for block in re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL):
        compile(block, page.name, "exec")


def test_the_page_on_streams_names_every_method() -> None:
    page = (ROOT / "docs" / "stream.md").read_text()
    assert set(re.findall(r"^\| `(\w[\w-]*)` \|", page, re.MULTILINE)) == set(METHODS)


def test_the_page_on_strategies_names_every_strategy() -> None:
    page = (ROOT / "docs" / "concepts" / "plans-and-strategies.md").read_text()
    named = set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert named == {name for usage in strategies() for name in usage.split(" | ")}


def test_the_glossary_names_every_lane() -> None:
    table = (ROOT / "docs" / "glossary.md").read_text().partition("## Lanes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*Lane]


def test_the_page_on_security_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| What ")]
    for row in rows:
        named = re.findall(r"`((?:\w+/)+\w+(?:\.py)?)`", row.rsplit(" | ", 1)[1])
        assert named, f"no test holds: {row[:60]}"
        assert all((ROOT / "tests" / name).exists() for name in named), named


def test_the_page_on_troubleshooting_says_of_each_reason_what_the_code_does() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().partition("| Reason |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(reason.value, advice.cause, advice.change) for reason, advice in ADVICE.items()]
    assert [reason for reason, _, _ in rows] == [*MissReason]


def test_messages_on_the_page_on_troubleshooting_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## Messages")[2]
    sources = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    source = " ".join(re.sub(r'"\s*\n\s*f?"', "", text) for text in sources)
    cells = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    messages = [code for cell in cells for code in re.findall("`(.+?)`", cell)]
    pieces = [piece.strip() for message in messages for piece in message.split("…") if piece.strip()]
    assert pieces and not [piece for piece in pieces if piece not in source]


@pytest.mark.parametrize(
    ("row", "file", "name"),
    [
        ("the folder (`FORMAT`)", "store/disk/folder.py", "VERSION"),
        ("`pieces/`: chunks and patches", "store/format.py", "FORMAT_VERSION"),
        ("`streams/`: saved streams", "stream/state.py", "VERSION"),
        ("vLLM", "vllm/plugin.py", "TESTED"),
        ("SGLang", "sglang/plugin.py", "TESTED"),
    ],
)
def test_the_page_on_upgrading_has_the_versions_of_the_code(row: str, file: str, name: str) -> None:
    page = (ROOT / "docs" / "upgrading.md").read_text()
    source = (ROOT / "src" / "emblema" / file).read_text()
    (said,) = re.findall(rf"^\| {re.escape(row)} \| ([^|]+) \|", page, re.MULTILINE)
    (had,) = re.findall(rf'^{name} = "?([\d.]+)"?$', source, re.MULTILINE)
    assert said.split()[-1] == had
