"""What a model that asks while it answers is given, and how its request is told from other text. No vLLM, no HTTP."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError

VARIABLE = "EMBLEMA_VLLM_RETRIEVAL"
"""Where a server's processes find `Asking`, as JSON: vLLM gives a middleware no arguments."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a model asks for a picture, and from where it is answered; see `engine.retrieval`.

    Attributes:
        library: the folder of pictures.
        end: text that completes a request.
        start: text that begins one; None where the question and all that was said is the query.
        count: pictures for one request.
        most: requests of one reply that are answered.
        after: text behind the pictures; None for the question again.
    """

    library: str
    end: str = "</search>"
    start: str | None = "<search>"
    count: int = 1
    most: int = 1
    after: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.library, str) or not self.library:
            raise EmblemaError("retrieval needs a library: name a folder of pictures")
        if not isinstance(self.end, str) or not self.end or self.start == "":
            raise EmblemaError("retrieval needs the text that ends a request, and a start that is not empty or null")
        for name in ("start", "after"):
            if not isinstance(getattr(self, name), str | None):
                raise EmblemaError(f"retrieval: {name} is {getattr(self, name)!r}: give text or null")
        for name in ("count", "most"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise EmblemaError(f"retrieval: {name} is {getattr(self, name)!r}: give a number from 1")

    @classmethod
    def read(cls, written: str) -> "Asking":
        """From a server's environment.

        Raises:
            EmblemaError: it is not what `write` gives.
        """
        try:
            return cls(**json.loads(written))
        except (TypeError, ValueError) as error:
            raise EmblemaError(f"{VARIABLE} is not right: {error}") from error

    def write(self) -> str:
        return json.dumps(asdict(self))

    def of_request(self, wish: object) -> "Asking | None":
        """As one request wants it, or None where it wants none; the library stays the server's.

        Raises:
            EmblemaError: a wish is unknown or not right.
        """
        if wish is None or wish is True:
            return self
        if wish is False:
            return None
        if not isinstance(wish, Mapping):
            raise EmblemaError(f"retrieval is {wish!r}: give true, false, or how the model asks")
        strange = sorted(set(wish) - {"end", "start", "count", "most", "after"})
        if strange:
            raise EmblemaError(f"retrieval has {strange[0]!r}: a request may give end, start, count, most and after")
        return replace(self, **wish)

    def query(self, question: str, said: str, before: str) -> str | None:
        """What a reply that stopped at `end` asks for; None where no request had begun.

        Args:
            said: since the last request, `end` included.
            before: what was said up to there.
        """
        request = said.removesuffix(self.end)
        if self.start is None:
            return f"{question} {before}{request}".strip()
        _, begun, query = request.rpartition(self.start)
        return query.strip() if begun else None


def asking_of(folder: Path, start: str | None, end: str) -> Asking:
    """From a command line; an empty start stands for none."""
    return Asking(str(folder.resolve()), end, start or None)


def question_of(messages: Any) -> str:
    """The last text that a user wrote."""
    for message in reversed(messages if isinstance(messages, list) else []):
        content = message.get("content") if isinstance(message, Mapping) and message.get("role") == "user" else None
        if isinstance(content, str):
            return content
        for part in reversed(content if isinstance(content, list) else []):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                return str(part["text"])
    return ""
