"""Seconds to the first token of prompts that are read (`query-R%`) over those of plain prefill, and where they go.

One engine in a process of its own, `python -m benchmarks.vllm.readings`, without HTTP. Arms and numbers of pictures
alternate within each round, and no combination of pictures comes again. On a machine that has other work, seconds of
the processor are steadier than those of the clock.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from benchmarks.vllm.measure import PLAIN, noise_pictures
from benchmarks.vllm.server import ENVIRONMENT
from emblema.errors import EmblemaError
from emblema.vllm.serving import ENCODINGS, WORKER, transfer_config

ARMS = (PLAIN, "blind", "auto", "query-12%")
COUNTS = (2, 8, 16)
"""Pictures in a prompt, all of them known."""
SIDE = 448
SECONDS, LEARNING_SECONDS = 3600.0, 600.0
PARTS = ("engine", "rewriting", "batch", "model", "attention")
"""What of the processor's time is whose: vLLM's engine, the plugin beside a step, the runner, its model, attention."""


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """Seconds to one first token, by the clock and of the processor, the plugin's report, and what a meter counted."""

    seconds: float
    processor: float
    report: Mapping[str, Any]
    parts: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReadingResult:
    """One strategy at one number of pictures; means of a request, and medians of seconds.

    Attributes:
        pictures, strategy: what was asked.
        median, least, most: seconds to the first token.
        processor: median seconds of the processor that the process used meanwhile.
        prompt_tokens, linked_tokens: of a request.
        rows: that went into the model's forward.
        requests: of the batches, virtual ones too.
        steps: that computed anything.
        margin: of a prompt that was read; None of others.
        parts: seconds of the processor by `PARTS`.
    """

    pictures: int
    strategy: str
    median: float
    least: float
    most: float
    processor: float
    prompt_tokens: int
    linked_tokens: int
    rows: float
    requests: float
    steps: float
    margin: float | None
    parts: Mapping[str, float]


def time_readings(model: Path, options: Mapping[str, Any], rounds: int, folder: Path, seed: int) -> list[ReadingResult]:
    """Time a model in a process of its own.

    Args:
        model: its folder.
        options: of vLLM's engine.
        rounds: that count.
        folder: for the store.
        seed: of the pictures.

    Raises:
        EmblemaError: the process failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {"model": str(model), "options": dict(options), "rounds": rounds, "store": str(folder), "seed": seed}
    environment = ENVIRONMENT | os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    line = [sys.executable, "-m", "benchmarks.vllm.readings", json.dumps(told)]
    done = subprocess.run(line, env=environment, timeout=SECONDS, capture_output=True, text=True)
    if done.returncode:
        raise EmblemaError(f"nothing was timed; the end of what the process said:\n{done.stderr[-2000:]}")
    return [ReadingResult(**result) for result in json.loads(done.stdout.splitlines()[-1])]


class PartMeter:
    """Counts what a worker's steps do, and times their parts, each without those inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        # Parts that are under way, with the seconds of those inside them.
        self._open: list[list[Any]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what the block does as a part."""
        began, inside = time.thread_time(), [0.0]
        self._open.append(inside)
        try:
            yield
        finally:
            taken = time.thread_time() - began
            self._open.pop()
            self.seconds[name] += taken - inside[0]
            if self._open:
                self._open[-1][0] += taken

    def timing(self, owner: Any, method: str, part: str) -> None:
        """Have a method of an object timed as a part."""
        stock: Callable[..., Any] = getattr(owner, method)

        def timed(*given: Any, **named: Any) -> Any:
            with self.part(part):
                return stock(*given, **named)

        setattr(owner, method, timed)

    def clear(self) -> None:
        """Forget what was counted."""
        self.seconds.clear()
        self.counts.clear()

    def watch(self, worker: Any, rewriter: type) -> None:
        """Watch a worker's steps from here on.

        Args:
            worker: vLLM's.
            rewriter: the class that rewrites steps.
        """
        stock = rewriter.rewrite  # type: ignore[attr-defined]

        def rewrite(own: Any, output: Any, step: Any) -> Any:
            with self.part("rewriting"):
                made = stock(own, output, step)
            rows = made.output.total_num_scheduled_tokens
            self.counts.update(rows=rows, requests=len(made.output.num_scheduled_tokens), steps=int(rows > 0))
            return made

        rewriter.rewrite = rewrite  # type: ignore[attr-defined]
        self.timing(worker.model_runner, "execute_model", "batch")
        self.timing(worker, "execute_model", "rewriting")
        model = worker.get_model()
        self.timing(model, "forward", "model")
        for module in model.modules():
            if hasattr(module, "kv_cache") and hasattr(module, "impl"):
                self.timing(module, "forward", "attention")


def prompt_of(
    pictures: Sequence[Image.Image], tokenizer: Any, marks: Sequence[int], shown: Sequence[int]
) -> dict[str, Any]:
    """Return a prompt of some pictures with text around them, as vLLM's engine takes it."""
    before, image, after = marks
    ask = tokenizer("which land does the tent stand on ?")["input_ids"]
    tokens = [*ask]
    for _ in shown:
        tokens += [before, image, after, *tokenizer("and then")["input_ids"]]
    return {"prompt_token_ids": [*tokens, *ask], "multi_modal_data": {"image": [pictures[place] for place in shown]}}


class ReadingBench:
    """One engine, and prompts of known pictures.

    Args:
        model: its folder.
        options: of vLLM's engine.
        store: a new folder.
        seed: of the pictures and their combinations.
    """

    def __init__(self, model: Path, options: Mapping[str, Any], store: Path, seed: int) -> None:
        from transformers import AutoTokenizer
        from vllm import LLM

        from emblema.vllm.step_rewriter import StepRewriter

        # What `auto` weighs is fitted anew in every process, and would not be the same in two runs.
        linking = {"kv_transfer_config": transfer_config(store, weigh=False), "ec_transfer_config": dict(ENCODINGS)}
        self._llm = LLM(str(model), **options, **linking, worker_cls=WORKER)
        self._core = self._llm.llm_engine.engine_core.engine_core
        config = json.loads((model / "config.json").read_text())
        marks = [config[name] for name in ("vision_start_token_id", "image_token_id", "vision_end_token_id")]
        tokenizer = AutoTokenizer.from_pretrained(model)
        rng = numpy.random.default_rng(seed)
        pictures = noise_pictures(rng, max(COUNTS), SIDE)
        self._show = partial(prompt_of, pictures, tokenizer, marks)
        self._rng = rng
        self._meter = PartMeter()
        worker = self._core.model_executor.driver_worker.worker
        self._meter.watch(worker, StepRewriter)

    def run(self, rounds: int) -> list[ReadingResult]:
        """Return every arm at every number of pictures; the first round warms up and does not count.

        Raises:
            EmblemaError: the pictures were not kept.
        """
        self._learn()
        taken: dict[tuple[int, str], list[TimedRequest]] = defaultdict(list)
        for number in range(rounds + 1):
            shift = number % len(ARMS)
            for count in COUNTS:
                for arm in ARMS[shift:] + ARMS[:shift]:
                    # What a choice costs is measured, not whether it stands.
                    made = self._ask(count, {"strategy": arm, "margin": 0, "capture": False})
                    if number:
                        taken[count, arm].append(made)
        return [_result(count, arm, taken[count, arm]) for count in COUNTS for arm in ARMS]

    def _learn(self) -> None:
        until = time.monotonic() + LEARNING_SECONDS
        while time.monotonic() < until:
            if self._ask(max(COUNTS), {"strategy": "blind"}).report["stored"]:
                return
            pause = time.monotonic() + 1
            while time.monotonic() < pause and (self._core.scheduler.has_requests() or self._core.batch_queue):
                self._core.step_fn()
        raise EmblemaError(f"the pictures were not kept within {LEARNING_SECONDS:g} s")

    def _ask(self, count: int, options: Mapping[str, Any]) -> TimedRequest:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=1, extra_args={"kv_transfer_params": {"emblema": dict(options)}}
        )
        prompt = self._show(self._rng.permutation(max(COUNTS))[:count].tolist())
        self._llm.reset_prefix_cache()
        self._meter.clear()
        began, busy = time.perf_counter(), time.process_time()
        with self._meter.part("engine"):
            (output,) = self._llm.generate([prompt], params, use_tqdm=False)
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        report = output.kv_transfer_params["emblema"]
        return TimedRequest(seconds, busy, report, dict(self._meter.seconds), dict(self._meter.counts))


def _result(count: int, arm: str, made: Sequence[TimedRequest]) -> ReadingResult:
    seconds, report = [each.seconds for each in made], made[-1].report

    def mean(name: str) -> float:
        return statistics.fmean(each.counts[name] for each in made)

    return ReadingResult(
        count,
        arm,
        statistics.median(seconds),
        min(seconds),
        max(seconds),
        statistics.median(each.processor for each in made),
        report["prompt_tokens"],
        report["linked_tokens"],
        mean("rows"),
        mean("requests"),
        mean("steps"),
        report.get("margin"),
        {name: statistics.median(each.parts.get(name, 0.0) for each in made) for name in PARTS},
    )


def engine_options(dtype: str, random: bool) -> dict[str, Any]:
    """Return options of vLLM's engine that take the longest prompt whole.

    Args:
        dtype: of the model.
        random: whether its weights are.
    """
    options: dict[str, Any] = {
        "dtype": dtype, "enforce_eager": True, "block_size": 32, "skip_mm_profiling": True, "max_model_len": 8192,
        "max_num_batched_tokens": 8192, "limit_mm_per_prompt": {"image": max(COUNTS), "video": 0}, "seed": 0,
    }  # fmt: skip
    if random:
        options["load_format"] = "dummy"
    if not torch.cuda.is_available():
        options["kv_cache_memory_bytes"] = 512 * 2**20
    return options


def main(given: Mapping[str, Any]) -> None:
    """Print results as JSON, in the last line."""
    bench = ReadingBench(Path(given["model"]), given["options"], Path(given["store"]), given["seed"])
    print(json.dumps([asdict(result) for result in bench.run(given["rounds"])]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
