"""The log of a server: lines of JSON for programs, short lines for people at a terminal."""

import json
import logging
import sys
import time
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """Writes a record as a line of JSON; a message that is JSON already is taken in."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)), "level": record.levelname}
        told = _told(record)
        line |= told or {"message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Writes a record as people read it: the time, the level unless it is INFO, and a request in half a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = _told(record)
        if told is None or not {"method", "path", "status", "seconds"} <= told.keys():
            said = record.getMessage()
        else:
            lane = f" {told['lane']}" if told.get("lane") else ""
            said = f"{told['method']} {told['path']} {told['status']} {told['seconds']:.3f} s{lane}"
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        # No control character of a client's reaches a terminal.
        shown = "".join(letter if letter.isprintable() else "?" for letter in said)
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{shown}{error}"


def _told(record: logging.LogRecord) -> dict[str, Any] | None:
    try:
        told = json.loads(record.getMessage())
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def log_lines(*names: str, level: str = "info") -> None:
    """Have loggers write to the standard error, and nothing elsewhere: for people where it is a terminal, else JSON.

    Args:
        names: of the loggers.
        level: one of `LEVELS`; what is less is not written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if sys.stderr.isatty() else JsonLines())
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
