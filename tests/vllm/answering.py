"""Answers of stock vLLM run in one way, in a process of its own: `python -m tests.vllm.answering FOLDER OUT`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.attached import attached
from tests.vllm.cells import STARTUP, Cell
from tests.vllm.models import Given, Subject, tiny

SECONDS = 300
TOKENS = 8


def prompts(subject: Subject) -> list[Given]:
    """Return prompts of one to eight pictures."""
    return [subject.prompt(count, seed=count) for count in (1, 2, 3, 8)]


def answers(served: Any, given: Sequence[Given]) -> list[tuple[Tensor, list[int]]]:
    """Return log-probabilities of the first token, and eight tokens: each prompt alone, then all at once."""
    alone = [served.ask(prompt.token_ids, prompt.pictures, tokens=TOKENS) for prompt in given]
    served.forget_prefixes()
    together = served.ask_all([(prompt.token_ids, prompt.pictures) for prompt in given], tokens=TOKENS)
    return [(answer.logits, answer.tokens) for answer in (*alone, *together)]


def answers_in(cell: Cell, family: str, folder: Path) -> list[tuple[Tensor, list[int]]]:
    """Return what stock vLLM answers run in another way than this process runs it.

    Args:
        cell: the other way.
        family: of a tiny random model, made anew in `folder` with the same weights.
        folder: a new one.

    Raises:
        AssertionError: the process failed.
    """
    folder.mkdir()
    line = attached([sys.executable, "-m", "tests.vllm.answering", str(folder / family), str(folder / "answers.pt")])
    path = os.pathsep.join([str(STARTUP), *sys.path])
    done = subprocess.run(line, env=os.environ | cell.environment | {"PYTHONPATH": path}, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:]
    found: list[tuple[Tensor, list[int]]] = torch.load(folder / "answers.pt")
    return found


def main(folder: Path, out: Path) -> None:
    from tests.vllm.serving import Served

    subject = tiny(folder.name, folder)
    served = Served(subject.folder, None, subject.vocabulary)
    torch.save(answers(served, prompts(subject)), out)
    served.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
