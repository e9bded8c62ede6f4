"""Where changed answers to standing questions go: lines of JSON in a file or on stdout, and a webhook."""

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from emblema.errors import StreamError
from emblema.media import DEFAULT_LIMITS
from emblema.stream.standing import AnswerChange
from emblema.stream.webhook import Webhook

STDOUT = Path("-")

Report = Callable[[AnswerChange], None]


@contextmanager
def open_alerts(
    lines: Path | None, webhook: str | None, trusted: Collection[str], note: Callable[[str], None]
) -> Iterator[Report]:
    """Give what reports a change; at the end what waits for the webhook is sent.

    Args:
        lines: a file that lines of JSON are appended to; - is stdout.
        webhook: an address that each change is posted to.
        trusted: hosts in a private network that may be sent to.
        note: told when the file cannot be written any more, and at the end what did not arrive.

    Raises:
        StreamError: the file cannot be written.
        MediaError: the address may not be sent to.
    """
    with ExitStack() as opened:
        hook = None if webhook is None else Webhook(webhook, replace(DEFAULT_LIMITS, allowed_hosts=frozenset(trusted)))
        try:
            file = None if lines in (None, STDOUT) else opened.enter_context(lines.open("a", encoding="utf-8"))
        except OSError as error:
            raise StreamError(f"--alerts {lines}: no line can be written there ({error.strerror})") from error

        def report(change: AnswerChange) -> None:
            nonlocal lines
            try:
                if lines is not None:
                    print(json.dumps(change.to_json()), file=file or sys.stdout, flush=True)
            except OSError as error:
                note(f"no more alerts are written: --alerts {lines}: {error.strerror}; make room, or give another file")
                lines = None
                # What waits in the file's buffer cannot be written either.
                if file is not None:
                    with suppress(OSError):
                        file.close()
            if hook is not None:
                hook.send(change.to_json())

        try:
            yield report
        finally:
            if hook is not None:
                hook.close()
                if lost := hook.failed + hook.dropped:
                    note(f"{lost} of {lost + hook.delivered} alerts did not arrive: {hook.last_error or 'no room'}")
