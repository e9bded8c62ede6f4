"""Forty answers of each bundled model, as the logits of the first token after the question."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.stream.methods.rekv import Rekv
from emblema import Engine
from emblema.eval.demo_media import SITUATIONS, demo_media
from emblema.link.policy.policy import Policy
from emblema.models.load import load_model

MODELS = ("reference", "reference-stream")
LIKELIEST = 8
STRATEGIES = ("full", "prefix", "blind", "patch-25%", "mpic-8", "cacheblend-15", "query-12%", "auto")
STREAM_QUESTIONS = (
    *("in which land was the tent ?", "in which land was the moon ?", "in which land was the cup ?"),
    *("in which land was the boat ?", "in which land was the fish ?", "in which land was the tree ?"),
    *("in which land was the flag ?", "in which land was the star ?"),
)


def processor_name() -> str:
    """Return the processor and torch's version: where both are the same, equal code gives equal bits."""
    said = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    name = next((line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("model name")), "")
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def answers(model: str) -> dict[str, Tensor]:
    """Return logits, [vocabulary] float32 each, by question and way of answering; on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return dict(_prompts() if model == "reference" else _streams())
    finally:
        torch.set_num_threads(threads)


def answer_words(model: str) -> dict[str, Any]:
    """Return by question the `LIKELIEST` tokens with their logits, and the digest of all logits' bytes."""
    said = {}
    for name, logits in answers(model).items():
        found = logits.topk(LIKELIEST)
        said[name] = {"tokens": found.indices.tolist(), "logits": found.values.tolist(), "bits": bits(logits)}
    return said


def bits(logits: Tensor) -> str:
    """Return the digest of logits' bytes."""
    return hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()


def _prompts() -> Iterator[tuple[str, Tensor]]:
    """Five arrangements, each answered under every strategy by an engine of its own, in this order."""
    media = demo_media()
    names = [*media.legends, *media.maps[:4]]
    questions = media.all_questions[:5]
    loaded, processor = load_model("reference", device="cpu")
    for strategy in STRATEGIES:
        engine = Engine(loaded, processor, policy=Policy.quiet())
        added = {name: engine.add(media.folder / name) for name in (*names, *media.maps)}
        chosen = [situation for situation in SITUATIONS if not situation.clip][:5]
        for index, question in enumerate(questions):
            parts = media.parts(chosen[index % len(chosen)], added, question)
            prefill = engine.prefill(parts, strategy)
            assert engine.policy_runtime.patch_worker.settle(30)
            yield f"{strategy}: {question.text}", prefill.logits.float().reshape(-1)


def _streams() -> Iterator[tuple[str, Tensor]]:
    """Eight questions about the clip: all of it, until a time, between two, with fewer frames, by another method."""
    clip = demo_media().folder / "clip.mp4"
    loaded, processor = load_model("reference-stream", device="cpu")
    engine = Engine(loaded, processor, policy=Policy.quiet())
    settings = {"positions": "packed", "window": 2, "block": 2}
    for title, given in (("of 4", {"budget": 4}), ("of 1", {"budget": 1}), ("rekv", {"method": Rekv, "budget": 4})):
        with engine.stream(**settings, **given) as stream:
            stream.push_video(clip, fps=4)
            for question in STREAM_QUESTIONS:
                yield f"{title}: {question}", stream.prefill(question).float()
                if title == "of 4":
                    yield f"until 1: {question}", stream.prefill(question, at=1.0).float()
                    yield f"between .5 and 1.5: {question}", stream.prefill(question, between=(0.5, 1.5)).float()
