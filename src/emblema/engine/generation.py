"""A request to generate, and its reply, or several, while they are made."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from emblema.engine.retrieval import Retrieval
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import Sampling
from emblema.session.prompt_reader import PromptLike
from emblema.session.replies import Piece
from emblema.session.requests import SurvivorChoice

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What `Engine.generate` is asked; see its arguments.

    Attributes:
        likeliest: how many of the likeliest tokens are told for every token; None tells no probabilities.
        tools: functions that messages may call, in OpenAI's form.
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
    tools: Sequence[Mapping[str, Any]] = ()


class Generation:
    """Replies to one request that are being made. It may be cancelled from any thread.

    Args:
        request: what is asked.
        deliver: called on the model's thread with every piece, perhaps empty, and once with the error that ended it.
            It must not wait. A reply whose `deliver` raises is wanted by nobody: it is cancelled.
        deadline: `time.perf_counter` after which the reply is given up; None for none.
        rows: rows that the prompt may have, for admission.
        choices: replies that are made of the same prompt, with the seeds that follow the request's.

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
        choices: int = 1,
    ) -> None:
        self.request, self.rows, self.deadline, self.choices = request, rows, deadline, choices
        self._left = choices
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
        self._left -= piece.reply is not None
        self.over = self._left == 0
        self._tell(piece)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.over = True
        self._tell(error)

    def _tell(self, what: Piece | Exception) -> None:
        if self.cancelled:
            return
        try:
            self._deliver(what)
        except Exception as error:
            # The caller's: it may not end the thread that serves all others.
            _LOG.warning("a reply is given up, as it cannot be delivered: %s", error)
            self.cancel()
