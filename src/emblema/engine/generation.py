"""A request to generate, and the reply while it is made."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from emblema.engine.retrieval import Retrieval
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import PromptLike
from emblema.session.replies import Piece
from emblema.session.survivors import SurvivorChoice


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What `Engine.generate` is asked; see its arguments.

    Attributes:
        likeliest: how many of the likeliest tokens are told for every token; None tells no probabilities.
        shorten: whether the reply may be shorter than the sampling says where the model's context has no more room.
    """

    parts: PromptLike
    strategy: str | Strategy = "auto"
    sampling: Sampling = field(default_factory=Sampling)
    template: bool = True
    retrieval: Retrieval | None = None
    survivors: SurvivorChoice = "drop"
    likeliest: int | None = None
    shorten: bool = False


class Generation:
    """A reply that is being made. It may be cancelled from any thread.

    Args:
        request: what is asked.
        deliver: called on the model's thread with every piece, perhaps empty, and once with the error that ended it.
            It must not wait.
        deadline: `time.perf_counter` after which the reply is given up; None for none.
        rows: rows that the prompt may have, for admission.

    Attributes:
        began: `time.perf_counter` at the call.
        over: whether the last piece or an error was delivered, or it was cancelled.
    """

    def __init__(
        self,
        request: GenerateRequest,
        deliver: Callable[[Piece | Exception], None],
        deadline: float | None = None,
        rows: int = 0,
    ) -> None:
        self.request, self.rows, self.deadline = request, rows, deadline
        self.began = perf_counter()
        self._deliver = deliver
        self._cancelled = threading.Event()
        self.over = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants it any more."""
        return self._cancelled.is_set()

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and perf_counter() > self.deadline

    def cancel(self) -> None:
        """Give it up: it ends at the next block of rows, or the next token. Nothing more is delivered."""
        self._cancelled.set()

    def give(self, piece: Piece) -> None:
        """Deliver a piece."""
        self.over = piece.reply is not None
        if not self.cancelled:
            self._deliver(piece)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.over = True
        if not self.cancelled:
            self._deliver(error)
