"""vLLM without the plugin answers alike however it is run: model runner, scheduling, tokens a step."""

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.answering import answers, answers_in, prompts
from tests.vllm.cells import Cell

pytestmark = pytest.mark.cells
TOLERANCE = 1e-5
FAMILY = "qwen2.5-vl"


@pytest.fixture
def served(bench: Any, subjects: Any) -> Any:
    subject = subjects(FAMILY)
    return bench.serve(subject.folder, None, subject.vocabulary)


def core(served: Any) -> Any:
    return served.llm.llm_engine.engine_core.engine_core


def test_vllm_runs_as_was_asked(served: Any, cell: Cell) -> None:
    scheduler, worker = core(served).scheduler, core(served).model_executor.driver_worker.worker
    assert type(scheduler).__name__ == ("AsyncScheduler" if cell.scheduling == "async" else "Scheduler")
    assert core(served).step_fn.__name__ == ("step_with_batch_queue" if cell.scheduling == "async" else "step")
    module = "vllm.v1.worker.cpu.model_runner" if cell.runner == "v2" else "vllm.v1.worker.cpu_model_runner"
    assert type(worker.model_runner).__module__ == module
    assert scheduler.max_num_scheduled_tokens == (cell.chunk or scheduler.vllm_config.model_config.max_model_len)


@pytest.mark.nightly
def test_answers_do_not_depend_on_how_vllm_is_run(
    served: Any, subjects: Any, cell: Cell, tmp_path: Path, record_property: Any
) -> None:
    other = Cell() if cell != Cell() else Cell("v2", "async", 64)
    mine, theirs = answers(served, prompts(subjects(FAMILY))), answers_in(other, FAMILY, tmp_path / "other")
    apart = [float((first[0] - second[0]).abs().max()) for first, second in zip(mine, theirs, strict=True)]
    record_property(f"{cell} against {other}", max(apart))
    assert max(apart) <= TOLERANCE
    assert [tokens for _, tokens in mine] == [tokens for _, tokens in theirs]
