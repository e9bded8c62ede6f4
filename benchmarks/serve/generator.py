"""`vllm bench serve` as the generator, so many requests under way at a time: each next one waits for an answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve.load import AUTO, PREFIX, STRATEGIES, TOKENS, LoadedMethod, LoadPlan
from benchmarks.serve.requests import SUBSETS
from benchmarks.serve.servers import LoadServer, serving
from benchmarks.table import Cell, Table
from benchmarks.vllm.load import generator_command, run_generator, write_prompts
from benchmarks.vllm.saturation import settle
from emblema.eval.metrics import Share
from emblema.models.load import bundled_folder

CONCURRENCY = (1, 4)
"""Requests under way at most; as many places of the plan's rates are sent."""
COLUMNS = (
    "engine", "under way", "method", "TTFT p50 ms", "TTFT p99 ms", "output tokens a second", "answers a second", "right"
)  # fmt: skip
NOTE = (
    "The requests of `subsets`, ten pictures sent whole, by vLLM's own generator "
    "(`vllm bench serve --max-concurrency`): so many are under way at a time, and the next is sent when one is "
    "answered. TTFT as it measures it, from sending to the first event. Each method is a tenant that has been shown "
    "all pages before; methods run one after another on each number, which has requests of its own."
)


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """What is sent: the load's requests, a portion for each number under way."""

    model: str
    requests: int
    seed: int


def measure_generator(engines: Sequence[str], plan: GeneratorPlan, folder: Path) -> Table:
    """Return the table of both engines under vLLM's generator.

    Args:
        engines: of `ENGINES`.
        folder: for servers, prompts and results.

    Raises:
        EmblemaError: a server did not start, or a request was not answered.
    """
    rows: list[tuple[Cell, ...]] = []
    for engine in engines:
        with serving(engine, plan.model, folder) as server:
            rows += _measured(server, plan, folder)
    return Table("generator", "`vllm bench serve`, waiting for answers", NOTE, COLUMNS, tuple(rows))


def _measured(server: LoadServer, plan: GeneratorPlan, folder: Path) -> list[tuple[Cell, ...]]:
    rates = tuple(float(number) for number in CONCURRENCY)
    traffic = LoadPlan(plan.model, rates, plan.requests, plan.seed).of(SUBSETS)
    methods = [LoadedMethod(name, server.tenant(name), traffic) for name in (PREFIX, AUTO)]
    for method in methods:
        method.show()
        settle(server.address)
    rows: list[tuple[Cell, ...]] = []
    for number, requests in zip(CONCURRENCY, traffic.portions, strict=True):
        prompts = write_prompts([request.parts for request in requests], folder / f"{server.engine}-{number}")
        tokenizer = bundled_folder(plan.model)
        for method in methods:
            settle(server.address)
            line = generator_command(
                server.address, server.model, tokenizer, prompts, len(requests), TOKENS, concurrency=number
            )
            strategy = STRATEGIES.get((server.engine, method.name), method.name)
            line += ["--extra-body", json.dumps({"strategy": strategy})]
            key = {"OPENAI_API_KEY": method.tenant.key}
            found = run_generator(line, len(requests), folder / "result.json", key)
            right = [request.answer for request in requests]
            rows.append((server.engine, number, method.name, *_figures(found, right)))
    return rows


def _figures(found: dict[str, Any], answers: Sequence[str]) -> tuple[Cell, ...]:
    texts = [text.strip() for text in found["generated_texts"]]
    same = sum(map(str.__eq__, texts, answers)) / len(answers)
    return (
        found["median_ttft_ms"],
        found["p99_ttft_ms"],
        found["output_throughput"],
        found["request_throughput"],
        Share(same, len(answers)),
    )
