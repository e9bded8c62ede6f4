"""A model whose layers keep rows of several kinds is served as without the plugin, and one line says why."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.vllm.host_offloading import OFFLOADING
from tests.vllm.serving import plugin_options
from tests.vllm.test_served_beside import beside_options


def hybrid(folder: Path, **options: Any) -> bool:
    """Return whether vLLM keeps rows of each kind of layer on their own."""
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs(model=str(folder), dtype="float32", max_model_len=1024, **options).create_engine_config()
    return not made.scheduler_config.disable_hybrid_kv_cache_manager


def test_the_plugin_leaves_the_hybrid_cache_as_it_is(subjects: Any, tmp_path: Path) -> None:
    folder = subjects("windowed").folder
    assert hybrid(folder)
    assert hybrid(folder, **plugin_options(tmp_path))
    assert hybrid(folder, **beside_options(tmp_path, OFFLOADING))


def test_it_is_served_plainly(bench: Any, subjects: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    subject = subjects("windowed")
    given = subject.prompt(3, seed=85)
    stock = bench.serve(subject.folder, None, subject.vocabulary)
    groups = len(stock.scheduler.kv_cache_config.kv_cache_groups)
    alone = stock.ask(given.token_ids, given.pictures, tokens=4)
    with caplog.at_level(logging.WARNING, "emblema"):
        served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary)
        answers = []
        for _ in range(2):
            answers.append(served.ask(given.token_ids, given.pictures, tokens=4))
            served.settle()
            served.forget_prefixes()
    assert len(served.scheduler.kv_cache_config.kv_cache_groups) == groups > 1
    for answer in answers:
        assert torch.equal(answer.logits, alone.logits) and answer.tokens == alone.tokens
        assert "rows of several kinds" in answer.report["remark"] and answer.report["linked_tokens"] == 0
    said = [record.getMessage() for record in caplog.records if record.name.startswith("emblema.vllm")]
    assert [line for line in said if "several kinds" in line] == said and len(said) == 1
