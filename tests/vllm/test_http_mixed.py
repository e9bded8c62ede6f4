"""Mixed requests of eight clients to one server: right answers, nothing left, no rows of another tenant."""

from pathlib import Path
from typing import Any

from tests.vllm.cells import Cell
from tests.vllm.mixed import Way, run


def test_sixty_requests_are_answered_as_they_have_to_be(bench: Any, cell: Cell, tmp_path: Path) -> None:
    """Plain answers are held to the embedded engine too; `python -m tests.vllm.mixed` starts stock vLLM for them."""
    bench.close()
    outcome = run(Way(cell), tmp_path, 60, seed=0, with_stock=False)
    assert not outcome.different
    assert all(outcome.found.values()), outcome.found
