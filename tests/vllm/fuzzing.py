"""Steps of vLLM's engine with requests, aborts and losses drawn by chance between them."""

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from emblema import Engine
from emblema.session.requests import LinkRequest
from tests.vllm.models import Given, Subject
from tests.vllm.plans import Read, RowsTaken
from tests.vllm.row_meter import RequestRows, RowMeter

SEATS = 4
"""Requests in a step at most."""
PAGE = 32
"""Rows of a page."""
LONGEST = 256
"""Rows of a request at most."""
STUCK_SECONDS = 60.0
CROWDS = 50
"""How often a server is crowded at most, until it preempts a request."""
TOKENS = (1, 1, 1, 2, 3, 30, 60)
STRATEGIES = ("full", "blind", "mpic-4", "mpic-32", "query-25%", "query-12%")
MARGINS = (0, 0, 1)
"""Of a prompt that is read: what was read stands, or is computed."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Bounds of one server.

    Attributes:
        tokens: of a step.
        pages: that there are.
        scarce: whether so few that requests have to be preempted.
    """

    tokens: int
    pages: int
    scarce: bool = False

    @classmethod
    def of(cls, drawn: random.Random, number: int) -> "Draw":
        """Return the bounds of one server of several; every other one has to preempt requests."""
        if number % 2:
            return cls(drawn.choice((8, 24, 40, 64, 96, 160, 512)), drawn.choice((10, 12, 16, 40)))
        return cls(drawn.choice((160, 512)), 10, scarce=True)


@dataclass(slots=True)
class Asked:
    """A request under way, and its answer."""

    prompt: int
    strategy: str
    tokens: int
    began: float
    name: str
    linked: int = 0
    written: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


class StepFuzz:
    """Drives one server.

    Attributes:
        finished: requests with whole answers.
        aborts, losses: how many requests were aborted, and how many files were deleted.
    """

    def __init__(
        self, served: Any, meter: RowMeter, prompts: Sequence[Given], store: Path | None, drawn: random.Random
    ) -> None:
        self._served, self._meter, self._prompts = served, meter, prompts
        self._store, self._drawn = store, drawn
        self._engine = served.llm.llm_engine
        self._open: dict[str, Asked] = {}
        self._made = 0
        self.finished: list[Asked] = []
        self.aborts = self.losses = 0

    def run(self, steps: int) -> None:
        """Run steps until the worker has had so many with rows, then answer what is left.

        Raises:
            TimeoutError: a step, or a request, took more than a minute.
        """
        while len(self._meter.steps) < steps:
            self._disturb()
            self._step()
        self._finish()

    def crowd(self) -> None:
        """Have a server with few pages preempt a request, if it has not: as many as it seats come with long answers."""
        for _ in range(CROWDS):
            if self._meter.preempted:
                return
            for _ in range(SEATS):
                self._ask(max(TOKENS))
            self._finish()

    def _finish(self) -> None:
        while self._open:
            self._step()

    def _disturb(self) -> None:
        chance = self._drawn.random()
        if len(self._open) < 3 or (chance < 0.3 and len(self._open) < 9):
            for _ in range(self._drawn.choice((1, 1, 1, 4))):
                self._ask()
        elif chance < 0.34:
            self._abort(self._drawn.choice(list(self._open)))
        elif chance < 0.40:
            self._lose()
        elif chance < 0.42:
            self._served.forget_prefixes()
        elif chance < 0.44:
            self._rest()

    def _rest(self) -> None:
        """Let pictures be captured in idle time, which may end too early for that."""
        self._finish()
        for _ in range(self._drawn.choice((3, 30))):
            self._step()

    def _ask(self, tokens: int | None = None) -> None:
        number, strategy = self._drawn.randrange(len(self._prompts)), self._drawn.choice(STRATEGIES)
        tokens, given = tokens or self._drawn.choice(TOKENS), self._prompts[number]
        prompt: dict[str, Any] = {"prompt_token_ids": given.token_ids, "multi_modal_data": {"image": given.pictures}}
        own = f"asked-{self._made}"
        self._made += 1
        options: dict[str, Any] = {"strategy": strategy}
        if strategy.startswith("query"):
            options["margin"] = self._drawn.choice(MARGINS)
        name = self._engine.add_request(own, prompt, self._served.params(options, tokens))
        self._open[own] = Asked(number, strategy, tokens, time.monotonic(), name)

    def _abort(self, own: str) -> None:
        self._engine.abort_request([own])
        del self._open[own]
        self.aborts += 1

    def _lose(self) -> None:
        files = [] if self._store is None else sorted(path for path in self._store.rglob("*") if path.is_file())
        for path in self._drawn.sample(files, min(len(files), self._drawn.choice((1, 1, 3, 100)))):
            path.unlink(missing_ok=True)
            self.losses += 1

    def _step(self) -> None:
        with limited(STUCK_SECONDS):
            outputs = self._engine.step()
        now = time.monotonic()
        for output in outputs:
            if output.finished:
                asked = self._open.pop(output.request_id)
                answer = output.outputs[0]
                asked.written = list(answer.token_ids)
                told = (output.kv_transfer_params or {}).get("emblema") or {}
                asked.linked = int(told.get("linked_tokens", 0))
                for entries in answer.logprobs:
                    logits = torch.full((self._served.vocabulary,), float("-inf"))
                    logits[list(entries)] = torch.tensor([entry.logprob for entry in entries.values()])
                    asked.logits.append(logits)
                self.finished.append(asked)
        late = [own for own, asked in self._open.items() if now - asked.began > STUCK_SECONDS]
        if late:
            raise TimeoutError(f"{', '.join(late)} wait for more than {STUCK_SECONDS:.0f} s")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer; in the main thread alone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"a step took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class AloneAnswers:
    """What requests get alone, from the embedded engine: each is computed once."""

    def __init__(self, engine: Engine, prompts: Sequence[Given]) -> None:
        self._engine, self._prompts = engine, prompts
        self._made: dict[tuple[int, tuple[tuple[int, int], ...], tuple[int, ...]], Tensor] = {}
        self._read: dict[tuple[int, str, int], Tensor] = {}
        self._chunks = [[engine.add(picture) for picture in given.pictures] for given in prompts]
        self.rows = [self._prompt(index, ()).tokens for index in range(len(prompts))]

    def _prompt(self, prompt: int, written: Sequence[int]) -> Any:
        parts = self._prompts[prompt].parts(self._chunks[prompt])
        return self._engine.prompt([*parts[:-1], [*parts[-1], *written]], template=False)

    def logits(self, prompt: int, taken: tuple[tuple[int, int], ...], written: Sequence[int]) -> Tensor:
        """Return log-probabilities of the next token after what was written, with some rows taken."""
        key = (prompt, taken, tuple(written))
        if key not in self._made:
            parts = self._prompts[prompt].parts(self._chunks[prompt])
            parts = [*parts[:-1], [*parts[-1], *written]]
            found = self._engine.prefill(parts, RowsTaken(taken), template=False).logits
            self._made[key] = torch.log_softmax(found, -1)
        return self._made[key]

    def read_error(self, asked: Asked, known: RequestRows) -> float:
        """Return how far the first token of a prompt that was read is from this; any of its readings may have given it.

        One that was preempted may have its first token from before, and be read or computed since.
        """
        found = [self._error_of_reading(asked, first) for first in known.read]
        if known.earlier or not asked.linked:
            found.append(self.error(asked, known.taken_each(self.rows[asked.prompt])))
        return min(found)

    def _error_of_reading(self, asked: Asked, first: int) -> float:
        key = asked.prompt, asked.strategy, first
        if key not in self._read:
            prompt, strategy = self._prompt(asked.prompt, ()), Read(asked.strategy, first)
            table = self._engine.session.link(LinkRequest(prompt, strategy)).linked
            self._read[key] = torch.log_softmax(table.logits, -1)
        return float((asked.logits[0] - self._read[key]).abs().max())

    def error(self, asked: Asked, taken: Sequence[tuple[tuple[int, int], ...]]) -> float:
        """Return how far an answer is from this at its first, second and last token.

        Args:
            asked: the request.
            taken: the rows that were taken for it; several where it was preempted, as its tokens may come of any.
        """
        last = min(asked.tokens, LONGEST - self.rows[asked.prompt]) - 1
        assert len(asked.logits) == last + 1
        places = sorted({0, min(1, last), last})
        return max(min(self._error(asked, place, rows) for rows in taken) for place in places)

    def _error(self, asked: Asked, place: int, taken: tuple[tuple[int, int], ...]) -> float:
        wanted = self.logits(asked.prompt, taken, asked.written[:place])
        return float((asked.logits[place] - wanted).abs().max())


def prompts(subject: Subject) -> list[Given]:
    """Return prompts of one to three pictures, some with pictures in common, the first with one at row 0."""
    three = [subject.prompt(3, seed=200 + number, lead=lead) for number, lead in enumerate((0, 5, 40))]
    return [*three, three[1].only(2, 0), three[2].only(1), subject.prompt(1, seed=210), subject.prompt(2, seed=211)]
