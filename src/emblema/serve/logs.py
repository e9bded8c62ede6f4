"""The log of a server: lines of JSON."""

import json
import logging
import sys
import time


class JsonLines(logging.Formatter):
    """Writes a record as a line of JSON; a message that is JSON already is taken in."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)), "level": record.levelname}
        message = record.getMessage()
        try:
            told = json.loads(message)
        except ValueError:
            told = None
        line |= told if isinstance(told, dict) else {"message": message}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_lines(*names: str) -> None:
    """Have loggers write lines of JSON to the standard error, and nothing elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
