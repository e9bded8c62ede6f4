"""The documentation is short and in plain English: words in all, words a page, words a sentence, no metaphors.

`python -m tests.docs.test_prose` prints words and mean sentence length by page.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = 45_000
"""Of all pages together, as `wc -w` counts them."""
LONGEST_PAGES = {"vllm": 2000, "stream": 2000, "design": 2000, "policy": 2000, "store-format": 2000}
MEAN_SENTENCE = 22
LONGEST_SENTENCE = 40
METAPHORS = re.compile(
    r"\b(canar(?:y|ies)|shadows?|survivors?|witness(?:es)?|credits?|debts?|quiet|spared|newcomers?|ledgers?)\b",
    re.IGNORECASE,
)
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]


def prose(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, without code, tables, headings, pictures and links' targets."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text)
    blocks: list[str] = []
    inside = False
    for line in text.splitlines():
        own = line.strip()
        if not own or own.startswith(("#", "|", ":::", "---", "<", ">")) or line.startswith("    ") and not inside:
            inside = False
            continue
        item = re.match(r"(?:[-*+]|\d+\.)\s+(.*)", own)
        if item or not inside:
            blocks.append(item[1] if item else own)
        else:
            blocks[-1] += " " + own
        inside = True
    return blocks


def sentences(text: str) -> list[int]:
    """Return the number of words of each sentence of a page."""
    found: list[int] = []
    for block in prose(text):
        block = re.sub(r"\b(e\.g|i\.e|vs|cf|Sec|Fig|App|arXiv)\.", r"\1", block)
        for sentence in re.split(r"(?<=[.!?])[)*_\"”]*\s+", block):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                found.append(len(words))
    return found


def test_sentences_are_counted() -> None:
    page = "# A title\n\nOne two `a b c`. [Four five](six.md)\nseven.\n\n| a | b |\n\n"
    page += "- An item: of five words\n\n    code here\n"
    assert sentences(page) == [3, 3, 5]


def test_all_pages_together_are_short() -> None:
    assert sum(len(path.read_text().split()) for path in PAGES) <= WORDS


@pytest.mark.parametrize("name", sorted(LONGEST_PAGES))
def test_a_page_is_short(name: str) -> None:
    assert len((ROOT / "docs" / f"{name}.md").read_text().split()) <= LONGEST_PAGES[name]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_are_short(path: Path) -> None:
    lengths = sentences(path.read_text())
    assert max(lengths, default=0) <= LONGEST_SENTENCE
    assert sum(lengths) <= MEAN_SENTENCE * len(lengths)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_there_are_no_metaphors(path: Path) -> None:
    assert not METAPHORS.findall(" ".join(prose(path.read_text())))


def _print() -> None:
    for path in PROSE:
        text = path.read_text()
        lengths = sentences(text)
        mean = sum(lengths) / max(len(lengths), 1)
        name = path.relative_to(ROOT).as_posix()
        print(f"{name:44} {len(text.split()):6} words {mean:5.1f} a sentence, longest {max(lengths, default=0)}")
    print(f"docs together: {sum(len(path.read_text().split()) for path in PAGES)} words")


if __name__ == "__main__":
    _print()
