"""A prompt that shows one new picture among known ones: that is prefilled alone at once, and the prompt is read."""

from typing import Any

import pytest

FAMILY = "qwen2.5-vl"
TOLERANCE = 1e-5
KNOWN = tuple(range(9))
SHOWN = (*KNOWN[:4], 9, *KNOWN[:3:-1])
OTHER = (9, 2, 0, 1)


@pytest.fixture(scope="module")
def served(bench: Any, subjects: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return bench.serve(subjects(FAMILY).folder, tmp_path_factory.mktemp("store"), subjects(FAMILY).vocabulary)


def test_it_is_read_as_if_the_new_picture_had_been_known(served: Any, subjects: Any) -> None:
    given = subjects(FAMILY).prompt(10, seed=3)

    def ask(order: tuple[int, ...], strategy: str, **more: Any) -> Any:
        served.forget_prefixes()
        shown = given.only(*order)
        return served.ask(shown.token_ids, shown.pictures, {"strategy": strategy, "margin": 0, **more})

    stock = ask(OTHER, "full", capture=False)
    ask(KNOWN, "full")
    served.settle()
    answer = ask(SHOWN, "auto")
    assert answer.report["strategy"] == "auto:query" and answer.report["stored"] is True, answer.report
    named = ask(SHOWN, "query-25%")
    assert float((answer.logits - named.logits).abs().max()) <= TOLERANCE
    again = ask(OTHER, "full", capture=False)
    assert float((again.logits - stock.logits).abs().max()) == 0.0, "plain requests are stock vLLM's as before"
    served.settle()


def test_it_is_computed_where_the_request_may_leave_nothing(served: Any, subjects: Any) -> None:
    given = subjects(FAMILY).prompt(10, seed=4)
    known, shown = given.only(*KNOWN), given.only(*SHOWN)
    served.ask(known.token_ids, known.pictures, {"strategy": "full"})
    served.settle()
    answer = served.ask(shown.token_ids, shown.pictures, {"strategy": "auto", "capture": False})
    assert answer.report["strategy"] == "plain" and answer.report["stored"] is False
