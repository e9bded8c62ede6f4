"""How vLLM runs in this process's tests: which model runner, which scheduling, how many tokens a step."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.vllm.startup import cpu_runners
from tests.vllm.startup.cpu_runners import PATIENCE, RUNNER, SCHEDULING

CHUNK = "EMBLEMA_VLLM_CHUNK"
RUNNERS, SCHEDULINGS, CHUNKS = ("v1", "v2"), ("sync", "async"), ("none", "64", "96")
CHOICES = {RUNNER: RUNNERS, SCHEDULING: SCHEDULINGS, CHUNK: CHUNKS}
"""What the environment may say, by its names; the first of each is the default."""
STARTUP = Path(__file__).parent / "startup"
NEED_VLLM = ("test_served*.py", "test_http*.py", "test_packed_rows.py", "test_attention.py")
"""Files whose tests run inside vLLM; `make test` runs the others."""
PATIENT_SECONDS = 60.0
"""How long plans and staged rows are waited for in these tests."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of running vLLM.

    Attributes:
        runner: `v1` or `v2`.
        scheduling: `sync` or `async`.
        chunk: tokens a step at most; None for vLLM's default, into which the prompts of these tests fit whole.
    """

    runner: str = "v1"
    scheduling: str = "sync"
    chunk: int | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Return the cell that an environment names.

        Raises:
            ValueError: there is no such runner, scheduling or chunk.
        """
        told = {name: environment.get(name, choices[0]) for name, choices in CHOICES.items()}
        for name, value in told.items():
            if value not in CHOICES[name]:
                raise ValueError(f"{name} is {value!r}: give one of {', '.join(CHOICES[name])}")
        chunk = told[CHUNK]
        return cls(told[RUNNER], told[SCHEDULING], None if chunk == "none" else int(chunk))

    def __str__(self) -> str:
        return f"{self.runner} {self.scheduling} {self.chunk or 'none'}"

    @property
    def environment(self) -> dict[str, str]:
        """What names this cell."""
        return {RUNNER: self.runner, SCHEDULING: self.scheduling, CHUNK: str(self.chunk or "none")}

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of vLLM's engine."""
        chunk = {} if self.chunk is None else {"max_num_batched_tokens": self.chunk, "enable_chunked_prefill": True}
        return {"async_scheduling": self.scheduling == "async", **chunk}

    @property
    def arguments(self) -> list[str]:
        """The same on a server's command line."""
        line = ["--async-scheduling" if self.scheduling == "async" else "--no-async-scheduling"]
        return line if self.chunk is None else [*line, "--max-num-batched-tokens", str(self.chunk)]


def enter(cell: Cell, environment: MutableMapping[str, str] = os.environ) -> None:
    """Run vLLM in this way in this process and those that it starts; before vLLM is imported."""
    environment.update(cell.environment)
    environment.setdefault(PATIENCE, str(PATIENT_SECONDS))
    # Servers of the tests are given this process's own path.
    if str(STARTUP) not in sys.path:
        sys.path.append(str(STARTUP))
    listed = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(STARTUP) not in listed:
        environment["PYTHONPATH"] = os.pathsep.join([*filter(None, listed), str(STARTUP)])
    cpu_runners.prepare(environment)
