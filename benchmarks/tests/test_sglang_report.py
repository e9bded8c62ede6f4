"""The page of first tokens inside SGLang says what was measured, and under which load."""

from dataclasses import asdict

from benchmarks.sglang.first_tokens import LinkedFirstTokens, page


def test_the_page_has_each_arm_over_plain() -> None:
    rows = [
        LinkedFirstTokens("full", 2.0, 1.9, 2.4, 900, 0, 1.0),
        LinkedFirstTokens("blind", 0.3, 0.2, 0.4, 900, 800, 0.15),
    ]
    found = {
        "rows": [asdict(row) for row in rows], "sglang": "0.5.23", "model": "a model", "pictures": 8, "side": 448,
        "rounds": 7, "load": [1.0, 2.5],
    }  # fmt: skip
    text = page(found, "python -m benchmarks sglang")
    assert "| blind | 0.300 | 0.200 to 0.400 | 0.150 | 800 of 900 |" in text
    assert "`python -m benchmarks sglang`: 8 known pictures of 448 pixels, a model" in text
    assert "1.0 and 2.5" in text
