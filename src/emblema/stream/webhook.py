"""A webhook: what is to be told goes to an address by POST, on a thread of its own."""

import json
import random
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from emblema.errors import EmblemaError, StreamError
from emblema.media import DEFAULT_LIMITS, MediaLimits
from emblema.media.download import check_address, post

LONGEST_PAUSE = 60.0
"""Seconds between two tries, at most."""


class Webhook:
    """Sends JSON to an address. A receiver that is slow, fails or hangs never makes the sender wait.

    Messages are sent one after another. One that fails, by the network or by a status of 429 or from 500 on, is sent
    again after a pause that doubles, with jitter. Other statuses than 2xx are final.

    Args:
        url: http or https.
        limits: hosts in a private network have to be in `allowed_hosts`, as for media.
        seconds: for one try, everything included.
        tries: of one message.
        pause: seconds before the second try.
        waiting: messages that may wait; beyond it the oldest is dropped.

    Attributes:
        delivered, failed, dropped: messages that arrived, that were given up, and that found no room.
        last_error: why a try failed last; empty if none did.

    Raises:
        MediaError: the address is none that may be sent to.
        StreamError: a number is not right.
    """

    def __init__(
        self,
        url: str,
        limits: MediaLimits = DEFAULT_LIMITS,
        seconds: float = 5.0,
        tries: int = 5,
        pause: float = 1.0,
        waiting: int = 64,
    ) -> None:
        if not seconds > 0 or not pause >= 0 or tries < 1 or waiting < 1:
            raise StreamError("a webhook takes seconds above 0, a pause of 0 or more, and a try and a place at least")
        self._url, self._limits = url, replace(limits, download_seconds=seconds)
        check_address(url, self._limits)
        self._tries, self._pause, self._most = tries, pause, waiting
        self.delivered = self.failed = self.dropped = 0
        self.last_error = ""
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = self._ended = self._sending = False
        self._thread = threading.Thread(target=self._run, name="emblema-webhook", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand a message over; returns at once."""
        body = json.dumps(message).encode()
        with self._changed:
            if self._closing:
                raise StreamError("the webhook is closed: make another one")
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(body)
            self._changed.notify_all()

    def close(self, seconds: float = 5.0) -> None:
        """Send what waits, for so many seconds at most; what has not arrived then counts as failed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            self._ended = True
            if self._sending or self._waiting:
                self.last_error = self.last_error or "it did not answer in time"
            self.failed += len(self._waiting) + self._sending
            self._sending = False
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                body, self._sending = self._waiting.popleft(), True
            arrived = self._deliver(body)
            with self._changed:
                # A message that `close` did not wait for is counted already.
                if self._sending:
                    self._sending = False
                    self.delivered += arrived
                    self.failed += not arrived

    def _deliver(self, body: bytes) -> bool:
        """Try to send one message; return whether it arrived."""
        for count in range(self._tries):
            try:
                status = post(self._url, body, "application/json", self._limits)
                if 200 <= status < 300:
                    return True
                self.last_error = f"it answered {status}"
                if status != 429 and status < 500:
                    return False
            except EmblemaError as error:
                self.last_error = str(error)
            pause = min(LONGEST_PAUSE, self._pause * 2**count) * random.uniform(0.5, 1)
            with self._changed:
                if self._ended or (count + 1 < self._tries and self._changed.wait_for(lambda: self._ended, pause)):
                    return False
        return False
