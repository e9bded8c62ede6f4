"""Time to first token of a stream as it grows, by what it remembers with."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError
from emblema.link.policy.policy import Policy
from emblema.models.load import bundled_folder, load_processor

METHODS = ("mosaic", "rekv", "sliding")
TOGETHER = 64


def streams_table(subject: CostSubject, lengths: Sequence[int], side: int, seed: int, pace: Pace) -> Table:
    """Return the time to first token after so many frames of `side` pixels, by method.

    Raises:
        EmblemaError: the bundled processor does not prepare pictures for this shape.
    """
    if subject.model.config.model_type != "qwen2_5_vl":
        raise EmblemaError(f"the bundled processor prepares no pictures for {subject.name}: streams were left out")
    engine = Engine(subject.model, load_processor(str(bundled_folder("reference"))), policy=Policy.quiet())
    random = np.random.default_rng([seed, 7])
    question = subject.token_ids(16)
    rows: list[tuple[Cell, ...]] = []
    with ExitStack() as stack:
        streams = {name: stack.enter_context(engine.stream(name, template=False)) for name in METHODS}
        seen = 0
        for length in lengths:
            while seen < length:
                frames = [_frame(random, side) for _ in range(min(TOGETHER, length - seen))]
                for stream in streams.values():
                    stream.push(frames)
                seen += len(frames)
            actions: dict[str, Action] = {name: partial(_ask, stream, question) for name, stream in streams.items()}
            found = interleaved(actions, subject.device, pace)
            rows += [(length, name, 1e3 * found.median(name), found.count) for name in METHODS]
    return Table(
        "streams",
        "Time to first token of a stream, by frames seen",
        f"Frames of {side} x {side} pixels of noise, a question of {len(question)} tokens, the default settings.",
        ("frames", "memory", "TTFT ms", "rounds"),
        tuple(rows),
        (Plot("frames", "TTFT ms", "memory", doubling=True),),
    )


def _ask(stream: Any, question: list[int]) -> None:
    stream.prefill(question)


def _frame(random: np.random.Generator, side: int) -> Image.Image:
    squares = random.integers(0, 255, (side // 28, side // 28, 3), dtype=np.uint8)
    return Image.fromarray(squares).resize((side, side), Image.Resampling.NEAREST)
