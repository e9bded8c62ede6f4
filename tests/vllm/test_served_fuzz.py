"""A thousand steps of chance: budgets, preemption, aborts, losses. Never over capacity, no hang, answers as alone.

A short run has a fixed seed; `EMBLEMA_FUZZ_STEPS=1000 EMBLEMA_FUZZ_SEED=fresh` draws one, and prints it.
"""

import os
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from emblema import Engine
from emblema.served import captures
from emblema.vllm import planner
from tests.vllm.cells import Cell
from tests.vllm.fuzzing import LONGEST, PAGE, SEATS, AloneAnswers, Draw, StepFuzz, prompts
from tests.vllm.models import TEXT
from tests.vllm.row_meter import RowMeter

FAMILY = "qwen2.5-vl"
STEPS_EACH = 250
"""Of one server; another one has other bounds."""
TOLERANCE = 1e-5


@pytest.fixture(
    params=[pytest.param("stock", marks=pytest.mark.nightly), pytest.param("plugin", marks=pytest.mark.cells)]
)
def stored(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "plugin")


def test_any_steps_give_each_request_what_it_gets_alone(
    bench: Any, subjects: Any, stored: bool, tmp_path: Path, cell: Cell, monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:  # fmt: skip
    # As on a server, where a request does not wait for a plan for long.
    monkeypatch.setattr(planner, "PLANNING_SECONDS", 1.0)
    monkeypatch.setattr(captures, "RECAPTURE_SECONDS", 0.2)
    steps = int(os.environ.get("EMBLEMA_FUZZ_STEPS", "150"))
    given_seed = os.environ.get("EMBLEMA_FUZZ_SEED", "17")
    seed = secrets.randbits(32) if given_seed == "fresh" else int(given_seed)
    print(f"EMBLEMA_FUZZ_SEED={seed} EMBLEMA_FUZZ_STEPS={steps} {cell}")
    drawn, subject = random.Random(seed), subjects(FAMILY)
    given, done, told = (
        prompts(subject),
        0,
        dict.fromkeys(("requests", "aborts", "losses", "preempted", "linked", "read"), 0),
    )
    with Engine.load(subject.folder, anchor=None) as engine:
        alone = AloneAnswers(engine, given)
        worst = {"plain": 0.0, "linked": 0.0, "read": 0.0}
        while done < steps:
            draw, store = Draw.of(drawn, done // STEPS_EACH), tmp_path / f"store {done}"
            print(draw)
            served = bench.serve(
                subject.folder, store if stored else None, subject.vocabulary, max_num_seqs=SEATS,
                max_num_batched_tokens=max(draw.tokens, SEATS), enable_chunked_prefill=True, max_model_len=LONGEST,
                kv_cache_memory_bytes=draw.pages * page_bytes(), enable_prefix_caching=True,
            )  # fmt: skip
            core = served.llm.llm_engine.engine_core.engine_core
            if stored:
                served.ask_all([(prompt.token_ids, prompt.pictures) for prompt in given])
                served.settle()
                served.forget_prefixes()
            meter = RowMeter(core.model_executor.driver_worker.worker)
            fuzz = StepFuzz(served, meter, given, store if stored else None, drawn)
            fuzz.run(min(STEPS_EACH, steps - done))
            if draw.scarce and steps >= 1000:
                fuzz.crowd()
            assert max(step.requests for step in meter.steps) <= SEATS
            assert max(step.rows for step in meter.steps) <= draw.tokens
            for asked in fuzz.finished:
                known = meter.requests[asked.name]
                if known.read and (asked.linked or known.earlier):
                    off = alone.read_error(asked, known)
                    assert off <= 2 * TOLERANCE, (asked.prompt, asked.strategy, known.read, off)
                    worst["read"] = max(worst["read"], off)
                    told["read"] += 1
                    continue
                each = known.taken_each(alone.rows[asked.prompt])
                taken = any(each)
                assert not taken or (stored and asked.strategy != "full")
                off, kind = alone.error(asked, each), "linked" if taken else "plain"
                assert off <= (2 if taken else 1) * TOLERANCE, (asked.prompt, asked.strategy, asked.tokens, each, off)
                worst[kind] = max(worst[kind], off)
                told["linked"] += taken
            if stored:
                served.settle()
            served.forget_prefixes()
            assert served.scheduler.kv_cache_manager.usage == 0
            told["requests"] += len(fuzz.finished)
            told["aborts"] += fuzz.aborts
            told["losses"] += fuzz.losses
            told["preempted"] += meter.preempted
            done += STEPS_EACH
    assert max(worst["linked"], worst["read"]) <= worst["plain"] + TOLERANCE
    print(told, worst)
    record_property(f"{cell} seed {seed} {'plugin' if stored else 'stock'}", str(told | worst))
    assert told["requests"] > steps / 20
    assert steps < 1000 or all(told[name] for name in ("aborts", "preempted")), told
    assert steps < 1000 or not stored or all(told[name] for name in ("linked", "losses", "read")), told


def page_bytes() -> int:
    """Return the bytes of a page of the tiny models."""
    return 2 * TEXT["num_key_value_heads"] * TEXT["head_dim"] * TEXT["num_hidden_layers"] * PAGE * 4
