"""Pages: how tokens are drawn, and how text is split into tokens that can be."""

from collections.abc import Mapping

import pytest
from PIL import Image, ImageChops

from emblema.errors import PromptError
from emblema.eval.pages import (
    BLANK,
    COLUMNS,
    LONGEST,
    PAGE_TOKENS,
    TILE,
    PageSplitter,
    can_be_drawn,
    draw_page,
    draw_tile,
    tile_text,
)


class WordTokenizer:
    """Spells text by words with the space before them; ids are those of the bundled tower's tokens."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = dict(known)

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        words = [f" {word}" if place else word for place, word in enumerate(text.split(" "))]
        added = [word for word in words if word not in self._known.values()]
        self._known |= {-1 - place: word for place, word in enumerate(added)}
        places = {word: token for token, word in self._known.items()}
        return {"input_ids": [places[word] for word in words]}

    def decode(self, ids: list[int]) -> str:
        return self._known[ids[0]]


@pytest.fixture
def splitter(monkeypatch: pytest.MonkeyPatch) -> PageSplitter:
    known = dict(enumerate([BLANK, " the", "the", " s", "h", "ed", "s", " ", ".", "e"]))
    monkeypatch.setattr("emblema.eval.pages.page_token_ids", lambda: tuple(known))
    return PageSplitter(WordTokenizer(known))


def test_a_token_that_begins_no_word_has_a_bar() -> None:
    assert tile_text(" the") == ("the", False) and tile_text("the") == ("the", True)
    assert tile_text(BLANK) == ("", False) and tile_text(" ") == ("_", False)
    difference = ImageChops.difference(draw_tile(" the"), draw_tile("the")).getbbox()
    assert difference is not None and difference[0] == 0 and difference[2] <= 2


def test_what_does_not_fit_or_is_not_plain_is_refused() -> None:
    assert can_be_drawn(" " + "w" * LONGEST) and not can_be_drawn("w" * (LONGEST + 1))
    for token in ("", "_", "\t", "é", " a b"):
        assert not can_be_drawn(token)
        with pytest.raises(ValueError, match="cannot be drawn"):
            draw_tile(token)


def test_a_page_is_a_grid_of_tiles() -> None:
    page = draw_page([" of", BLANK, ","])
    assert page.size == (COLUMNS * TILE, COLUMNS * TILE) and page.mode == "RGB"
    for place, token in enumerate((" of", BLANK, ",")):
        tile = page.crop((place * TILE, 0, (place + 1) * TILE, TILE)).convert("L")
        assert tile.tobytes() == draw_tile(token).tobytes()
    assert page.crop((0, TILE, *page.size)).getextrema() == ((255, 255),) * 3
    with pytest.raises(ValueError, match="do not fit"):
        draw_page([" of"] * (PAGE_TOKENS + 1))


def test_every_letter_has_ink_in_its_cell() -> None:
    for code in range(33, 127):
        letter = chr(code)
        if letter != "_":
            tile = draw_tile(f" {letter}").convert("L")
            assert Image.eval(tile, lambda shade: 255 - shade).getbbox() is not None, letter


def test_text_is_split_into_known_tokens(splitter: PageSplitter) -> None:
    assert splitter.tokens("the shed") == ["the", " s", "h", "ed"]
    assert splitter.ids(["the", " s"]) == [2, 3]
    pages = splitter.pages("the" + " the" * PAGE_TOKENS)
    assert [len(page) for page in pages] == [PAGE_TOKENS, 1]
    with pytest.raises(PromptError, match="'x' cannot be drawn"):
        splitter.tokens("the x")
