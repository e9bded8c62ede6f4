"""Calls to a server that may be slow, gone or broken, and a breaker. The client library tries again."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from emblema.errors import LoadError, StoreError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How long a server is waited for, and how often it is asked again.

    One that refuses or cuts is tried again after a pause. One that hangs costs one time-out; a bucket's is asked again
    until `total_seconds` are over.

    Attributes:
        connect_seconds: to reach the server.
        reply_seconds: for one whole reply, however slowly it comes.
        upload_seconds: for one whole value going to the server.
        retries: further tries after the first.
        pause_seconds: before the second try at most; each further pause may be twice as long. The real one is drawn
            between zero and that, so that many callers do not come back together.
        longest_pause_seconds: the longest pause.
        total_seconds: after which no new try of a call to a bucket begins.
        failures: calls that fail in a row before the breaker opens.
        rest_seconds: for how long it then stays open.
    """

    connect_seconds: float = 1.0
    reply_seconds: float = 5.0
    upload_seconds: float = 60.0
    retries: int = 2
    pause_seconds: float = 0.05
    longest_pause_seconds: float = 1.0
    total_seconds: float = 5.0
    failures: int = 3
    rest_seconds: float = 5.0

    def __post_init__(self) -> None:
        if min(self.connect_seconds, self.reply_seconds, self.upload_seconds, self.total_seconds) <= 0:
            raise StoreError("A time-out of a remote tier is not positive: nothing could ever be answered in it.")
        if min(self.retries, self.pause_seconds, self.longest_pause_seconds, self.rest_seconds) < 0:
            raise StoreError("A remote tier's retries, pauses and rest cannot be negative: give zero for none.")
        if self.failures < 1:
            raise StoreError("A remote tier's breaker opens after one failure at least: give failures=1 or more.")


class Breaker:
    """Closed until several calls in a row fail, then open; after each rest one call is let through and decides.

    Args:
        failures: in a row before it opens.
        rest_seconds: how long it stays open before the next call.
        clock: seconds, never going back.
    """

    def __init__(self, failures: int, rest_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures, self.rest_seconds = failures, rest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._rests_since = 0.0

    @property
    def closed(self) -> bool:
        """Whether the server is asked."""
        return self._in_a_row < self.failures

    def enter(self) -> bool:
        """Return whether a call may go ahead now."""
        with self._lock:
            if self.closed:
                return True
            now = self._clock()
            if now - self._rests_since < self.rest_seconds:
                return False
            # The others go on resting until this call has shown how the server is.
            self._rests_since = now
            return True

    def succeeded(self) -> None:
        """Note that the server answered, with an error or not."""
        with self._lock:
            self._in_a_row = 0

    def failed(self) -> None:
        """Note that the server did not answer, or not in time."""
        with self._lock:
            self._in_a_row += 1
            self._rests_since = self._clock()


class CallError(StoreError):
    """A server did not answer after every try, or it refused."""


class RestingError(CallError):
    """A server was not asked: it failed so often just now that its breaker is open."""


class OutageError(LoadError):
    """A record could not be read because its server did not answer or refused; the record may be sound."""


class Caller:
    """Calls one server under one policy.

    Args:
        server: its name in messages, without secrets.
        policy: says when its breaker opens.
        errors: the client library's errors; any other error is a bug here and is not caught.
        is_outage: returns whether such an error means that the server did not answer, rather than refused.
        scrub: takes secrets out of a message.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        server: str,
        policy: CallPolicy,
        errors: tuple[type[Exception], ...],
        is_outage: Callable[[Exception], bool],
        scrub: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server = server
        self.breaker = Breaker(policy.failures, policy.rest_seconds, clock)
        self._errors, self._is_outage, self._scrub = errors, is_outage, scrub

    def call(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Return what `action` returns for the arguments.

        Raises:
            RestingError: the breaker is open.
            CallError: the server did not answer, or refused.
        """
        if not self.breaker.enter():
            raise RestingError(f"{self.server} has not answered lately and is left alone for a moment.")
        try:
            result = action(*arguments)
        except self._errors as error:
            outage, reason = self._is_outage(error), self._reason(error)
        else:
            self.breaker.succeeded()
            return result
        # Outside the handler, so that the error is not chained to one whose text was not scrubbed.
        if outage:
            self.breaker.failed()
            raise CallError(f"{self.server} does not answer: {reason}.")
        self.breaker.succeeded()
        raise CallError(f"{self.server} refused: {reason}.")

    def _reason(self, error: BaseException) -> str:
        """Return an error in one line, without secrets."""
        paragraph = str(error).strip().partition("\n\n")[0]
        text = " ".join(self._scrub(paragraph).split())
        return f"{type(error).__name__}: {text[:300]}".rstrip(" .:")
