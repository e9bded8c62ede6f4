"""Seconds to the first token inside SGLang: known pictures linked, over the same prompt computed, in one engine."""

import base64
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

from benchmarks.vllm.measure import PLAIN, noise_pictures
from emblema.errors import EmblemaError
from emblema.sglang.plugin import OPTIONS, TESTED
from emblema.sglang.serving import CPU_DEFAULTS

ARMS = (PLAIN, "blind", "mpic-32")
PATIENCE = 300.0
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@dataclass(frozen=True, slots=True)
class FirstTokenOptions:
    """What is measured.

    Attributes:
        model: folder of a model of the family of Qwen2.5-VL.
        label: what the page calls it.
        pictures: in a prompt.
        side: pixels along a picture's side.
        rounds: each of which asks every arm once.
        load_format: SGLang's; `dummy` for random weights.
    """

    model: Path
    label: str
    pictures: int = 8
    side: int = 448
    rounds: int = 7
    load_format: str = "auto"


@dataclass(frozen=True, slots=True)
class LinkedFirstTokens:
    """One arm: median, least and most seconds, the prompt's rows and those linked, and the median over plain's."""

    strategy: str
    median: float
    least: float
    most: float
    prompt_tokens: int
    linked_tokens: int
    share: float


def measure(options: FirstTokenOptions, store: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return figures of one engine, which ends before this returns.

    Raises:
        EmblemaError: the pictures were not stored in five minutes.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ |= {OPTIONS: json.dumps({"store": str(store), "strategy": "blind"}), "SGLANG_USE_CPU_ENGINE": "1"}
    import sglang

    fixed = {name.removeprefix("--").replace("-", "_"): value or True for name, value in CPU_DEFAULTS.items()}
    engine = sglang.Engine(
        model_path=str(options.model), load_format=options.load_format, dtype="float32", disable_radix_cache=True,
        max_total_tokens=16384, context_length=8192, mem_fraction_static=0.3, max_running_requests=4,
        enable_multimodal=True, grammar_backend="none", log_level="warning", random_seed=0, **fixed,
    )  # fmt: skip
    try:
        before = os.getloadavg()[0]
        rows = _rounds(engine, options, say)
        return {
            "sglang": TESTED, "model": options.label, "pictures": options.pictures, "side": options.side,
            "rounds": options.rounds, "load": [before, os.getloadavg()[0]], "rows": [asdict(row) for row in rows],
        }  # fmt: skip
    finally:
        engine.shutdown()


def _rounds(engine: Any, options: FirstTokenOptions, say: Callable[[str], None]) -> list[LinkedFirstTokens]:
    pictures = noise_pictures(numpy.random.default_rng(1), options.pictures, options.side)
    shown = [_address(picture) for picture in pictures]
    prompt = " ".join(["which land does the tent stand on ? " * 5, *[f"{PICTURE} and then"] * options.pictures, "?"])

    def ask(strategy: str) -> tuple[float, Mapping[str, Any]]:
        began = time.perf_counter()
        told = engine.generate(
            prompt=prompt,
            image_data=shown,
            sampling_params={
                "temperature": 0,
                "max_new_tokens": 1,
                "custom_params": {"emblema": {"strategy": strategy}},
            },  # fmt: skip
        )
        return time.perf_counter() - began, told["meta_info"]["emblema"][0]

    until = time.monotonic() + PATIENCE
    while not ask(PLAIN)[1]["stored"]:
        if time.monotonic() > until:
            raise EmblemaError(f"the pictures were not stored in {PATIENCE:g} s")
    for strategy in ARMS:
        ask(strategy)
    found: dict[str, list[tuple[float, Mapping[str, Any]]]] = {strategy: [] for strategy in ARMS}
    for number in range(options.rounds):
        for strategy in ARMS:
            found[strategy].append(ask(strategy))
        say(f"round {number + 1} of {options.rounds}")
    plain = statistics.median(seconds for seconds, _ in found[PLAIN])
    return [_result(strategy, found[strategy], plain) for strategy in ARMS]


def _result(strategy: str, asked: Sequence[tuple[float, Mapping[str, Any]]], plain: float) -> LinkedFirstTokens:
    seconds, report = [taken for taken, _ in asked], asked[0][1]
    median = statistics.median(seconds)
    rows = int(report["prompt_tokens"]), int(report["linked_tokens"])
    return LinkedFirstTokens(strategy, median, min(seconds), max(seconds), *rows, median / plain)


def _address(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def page(found: Mapping[str, Any], line: str) -> str:
    """Return the report of figures; `line` is the command that made them."""
    rows = [LinkedFirstTokens(**row) for row in found["rows"]]
    table = "\n".join(
        f"| {row.strategy} | {row.median:.3f} | {row.least:.3f} to {row.most:.3f} | {row.share:.3f} | "
        f"{row.linked_tokens} of {row.prompt_tokens} |"
        for row in rows
    )
    return f"""# First tokens inside SGLang

`{line}`: {found["pictures"]} known pictures of {found["side"]} pixels, {found["model"]}, float32, SGLang
{found["sglang"]} on a CPU, one thread, torch's attention: **other kernels than users run**. One engine, without prefix
cache; {found["rounds"]} rounds, in each of which every strategy is asked once. Load average before and after:
{found["load"][0]:.1f} and {found["load"][1]:.1f}.

Runs of a linked prompt are attended by the plugin's own function, each with its own queries; SGLang's torch attention,
which works a run out as if all rows before it were asked too, computes the plain prompt.

| strategy | median, s | least to most | of plain | rows linked |
|---|---|---|---|---|
{table}
"""
