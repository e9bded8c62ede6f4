"""Options of a request: known names with values that mean something, or an error that names what is wrong."""

import pytest

from emblema.errors import EmblemaError
from emblema.served.request_options import read_options


def test_options_are_taken_as_given() -> None:
    given = {
        "strategy": "query-12%",
        "margin": 0.3,
        "capture": False,
        "pieces": True,
        "forget": True,
        "survivors": "keep",
    }
    assert read_options(given) == given and read_options(None) == read_options({}) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("blind", "give an object"),
        ({"strategi": "blind"}, "'strategi'"),
        ({"strategy": "no-such"}, "unknown strategy"),
        ({"strategy": 7}, "give a name"),
        ({"margin": 7}, "from 0 to 1"),
        ({"margin": True}, "from 0 to 1"),
        ({"capture": 1}, "true or false"),
        ({"survivors": "all"}, "drop or keep"),
    ],
)
def test_what_is_wrong_is_named(given: object, words: str) -> None:
    with pytest.raises(EmblemaError, match=words):
        read_options(given)
