"""Calls to a server that may be slow, gone or broken: time-outs, tries with growing pauses, a breaker, counters."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from emblema.errors import LoadError, StoreError

Result = TypeVar("Result")
BreakerState = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How long a server is waited for, and how often it is asked again.

    One call takes at most `total_seconds + connect_seconds + reply_seconds`: a server that hangs costs one time-out,
    one that refuses or cuts is tried again at once.

    Attributes:
        connect_seconds: to reach the server.
        reply_seconds: for one whole reply of a few parts, however slowly it comes.
        upload_seconds: for one whole value going to S3.
        retries: further tries after the first.
        pause_seconds: before the second try at most; each further pause may be twice as long. The real one is drawn
            between zero and that, so that many callers do not come back together.
        longest_pause_seconds: the longest pause.
        total_seconds: after which no new try of a call begins.
        failures: tries that fail in a row, of all calls together, before the breaker opens.
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
        if min(self.retries, self.pause_seconds, self.longest_pause_seconds) < 0:
            raise StoreError("A remote tier's retries and pauses cannot be negative: give zero for none.")


@dataclass(frozen=True, slots=True)
class RemoteStatistics:
    """Counters since the tier was made.

    Attributes:
        hits: reads that found a record.
        misses: reads that found none.
        skipped: reads that were not tried because the breaker was open; to the caller they look like misses.
        damaged: records that were there and could not be trusted, parts missing included.
        failures: calls that got no answer after all their tries.
        retries: tries after the first.
        writes: records kept.
        deletes: records deleted, patches that went with their chunk included.
        bytes_read: of records, as they came over the wire.
        bytes_written: of records.
        opened: how many times the breaker has opened.
        breaker: its present state.
    """

    hits: int = 0
    misses: int = 0
    skipped: int = 0
    damaged: int = 0
    failures: int = 0
    retries: int = 0
    writes: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    opened: int = 0
    breaker: BreakerState = "closed"


class Breaker:
    """Closed until several tries in a row fail, then open; after a rest one try is let through and decides.

    Every `enter` that returns True is followed by exactly one of `succeeded`, `failed` and `abandoned`.

    Args:
        failures: in a row before it opens.
        rest_seconds: how long it stays open before the next try.
        clock: seconds, never going back.
    """

    def __init__(
        self, failures: int = 3, rest_seconds: float = 5.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failures < 1 or rest_seconds < 0:
            raise StoreError(
                f"A breaker of {failures} failures and {rest_seconds:g} s of rest cannot work: give at least one "
                "failure and no negative rest."
            )
        self.failures = failures
        self.rest_seconds = rest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._trying = False
        self._opened = 0

    @property
    def state(self) -> BreakerState:
        with self._lock:
            return self._state()

    @property
    def opened(self) -> int:
        """Return how many times it has opened."""
        with self._lock:
            return self._opened

    def enter(self) -> bool:
        """Return whether a try may go ahead now."""
        with self._lock:
            state = self._state()
            if state == "closed":
                return True
            if state == "open" or self._trying:
                return False
            self._trying = True
            return True

    def succeeded(self) -> None:
        """Note that the server answered, with an error or not."""
        with self._lock:
            self._in_a_row = 0
            self._opened_at = None
            self._trying = False

    def failed(self) -> None:
        """Note that the server did not answer, or not in time."""
        with self._lock:
            self._in_a_row += 1
            was = self._state()
            if was == "half-open" or (was == "closed" and self._in_a_row >= self.failures):
                self._opened_at = self._clock()
                self._opened += 1
            self._trying = False

    def abandoned(self) -> None:
        """Note that the try ended without showing whether the server answers."""
        with self._lock:
            self._trying = False

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._clock() - self._opened_at >= self.rest_seconds else "open"


class UnansweredError(StoreError):
    """A server did not answer, after every try that the policy allows."""


class RestingError(UnansweredError):
    """A server was not asked: it failed so often just now that its breaker is open."""


class OutageError(LoadError):
    """A record could not be read because its server did not answer or refused; the record may be sound."""


class Caller:
    """Calls one server under one policy, and counts.

    Args:
        server: its name in messages, without secrets.
        policy: time-outs, tries and breaker.
        errors: the client library's errors; any other error is a bug here and is not caught.
        is_outage: returns whether such an error means that the server did not answer, rather than refused.
        scrub: takes secrets out of a message.
        clock: seconds, never going back.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        server: str,
        policy: CallPolicy,
        errors: tuple[type[Exception], ...],
        is_outage: Callable[[Exception], bool],
        scrub: Callable[[str], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server = server
        self.policy = policy
        self.breaker = Breaker(policy.failures, policy.rest_seconds, clock=clock)
        self.errors = errors
        self.failures: tuple[type[Exception], ...] = (UnansweredError, *errors)
        self._is_outage = is_outage
        self._scrub = scrub
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    @property
    def statistics(self) -> RemoteStatistics:
        with self._lock:
            counts = dict(self._counts)
        return RemoteStatistics(opened=self.breaker.opened, breaker=self.breaker.state, **counts)

    def call(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Return what `action` returns for the arguments, tried again while the server does not answer.

        Raises:
            RestingError: the breaker is open.
            UnansweredError: no try was answered.
        """
        began = self._clock()
        tries = 0
        while True:
            if not self.breaker.enter():
                raise RestingError(f"{self.server} has not answered lately and is left alone for a moment.")
            try:
                result = action(*arguments)
            except self.errors as error:
                if not self._is_outage(error):
                    self.breaker.succeeded()
                    raise
                self.breaker.failed()
                reason = self.reason(error)
            except BaseException:
                self.breaker.abandoned()
                raise
            else:
                self.breaker.succeeded()
                return result
            # Outside the handler, so that the error below is not chained to one whose text was not scrubbed.
            tries += 1
            pause = self._pause(tries)
            late = self._clock() - began + pause > self.policy.total_seconds
            if tries > self.policy.retries or late or self.breaker.state == "open":
                self.count("failures")
                raise UnansweredError(f"{self.server} does not answer ({tries} tries): {reason}.")
            self.count("retries")
            self._sleep(pause)

    def outage(self, id: str, error: Exception) -> OutageError:
        """Return the error of reading a record for a failed call."""
        if isinstance(error, UnansweredError):
            return OutageError(id, str(error).rstrip("."))
        return OutageError(id, f"{self.server} refused: {self.reason(error)}")

    def store(self, id: str, action: Callable[..., Result], *arguments: Any) -> Result:
        """Call as `call` does, to change a record.

        Raises:
            StoreError: no try was answered, or the server refused.
        """
        try:
            return self.call(action, *arguments)
        except UnansweredError as error:
            raise StoreError(f"{id[:12]}: {error} Nothing was changed for certain; try again later.") from None
        except self.errors as error:
            raise StoreError(f"{id[:12]}: {self.server} refused: {self.reason(error)}.") from None

    def reason(self, error: BaseException) -> str:
        """Return an error in one line, without secrets."""
        paragraph = str(error).strip().partition("\n\n")[0]
        text = " ".join(self._scrub(paragraph).split())
        return f"{type(error).__name__}: {text[:300]}".rstrip(" .:")

    def _pause(self, tries: int) -> float:
        longest = min(self.policy.longest_pause_seconds, self.policy.pause_seconds * 2.0 ** (tries - 1))
        with self._lock:
            return self._random.uniform(0.0, longest)
