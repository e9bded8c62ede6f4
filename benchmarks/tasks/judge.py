"""An optional judge for open answers: an OpenAI-compatible endpoint, asked for the six dimensions of MPIC's appendix D.

The dimensions, the scale from 1 to 10 and the overall score are those of MMDU's evaluation, which MPIC takes over; the
wording of the request is this project's own. Like theirs, the judge reads texts only: question, reference, answer.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from emblema.errors import EmblemaError

DIMENSIONS: dict[str, str] = {
    "Creativity": "how much of the answer is its own thought, beyond the expected",
    "Richness": "how much depth, detail and example it gives",
    "Visual Perception": "how truly and fully it says what the pictures show",
    "Logical Coherence": "how well its statements follow from one another",
    "Answer Accuracy": "how well it agrees with the reference and answers what was asked",
    "Image Relationship Understanding": "how well it tells the pictures apart and connects them",
}
OVERALL = "Overall Score"
LEAST, MOST = 1, 10
_ANSWER_BYTES = 4 * 2**20
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_BRACES = re.compile(r"\{[^{}]*\}")
_PAIR = re.compile(r"""["'‘’“”]([A-Za-z ]+)["'‘’“”]\s*:\s*["'‘’“”]?(\d{1,3})\b""")


class JudgeError(EmblemaError):
    """The judge cannot be reached, or its reply holds no scores."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge at an OpenAI-compatible endpoint.

    Attributes:
        url: the endpoint up to its version, such as `http://127.0.0.1:8000/v1`.
        model: the judge's name; the first that the endpoint lists if left out (ask `named` once for many cases).
        seconds: the longest wait for one reply; `tries`: how often a request is sent if the endpoint is busy or its
            reply has no scores; `pause`: seconds before the second try, doubled before each further one.
    """

    url: str
    model: str = ""
    seconds: float = 120.0
    tries: int = 3
    pause: float = 1.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise JudgeError(
                f"the judge's address {self.url!r} is no http or https address, such as http://host:8000/v1"
            )

    def named(self) -> Judge:
        """Return the judge with a model's name, asked of the endpoint where none is given.

        Raises:
            JudgeError: the endpoint cannot be reached or lists no models.
        """
        if self.model:
            return self
        listed = self._send("/models", None)
        try:
            found = str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise JudgeError(f"{self.url} lists no models: name the judge's model") from error
        return Judge(self.url, found, self.seconds, self.tries, self.pause)

    def score(self, question: str, reference: str, answer: str) -> int:
        """Return the judge's overall score of an answer, `LEAST` to `MOST`.

        Raises:
            JudgeError: the endpoint cannot be reached, or none of its replies holds all scores.
        """
        messages = [
            {"role": "system", "content": instruction()},
            {"role": "user", "content": case(question, reference, answer)},
        ]
        body = {"model": self.named().model, "messages": messages, "temperature": 0, "max_tokens": 1024}
        reply = ""
        for _ in range(self.tries):
            sent = self._send("/chat/completions", body)
            try:
                reply = str(sent["choices"][0]["message"]["content"])
            except (KeyError, IndexError, TypeError) as error:
                raise JudgeError(f"{self.url} sent no chat completion: {json.dumps(sent)[:200]}") from error
            overall = read_overall(reply)
            if overall is not None:
                return overall
        raise JudgeError(f"the judge's reply has no scores for all dimensions; it ends with {reply[-120:]!r}")

    def _send(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "emblema"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url.rstrip("/") + path, data=data, headers=headers)
        for attempt in range(self.tries):
            try:
                with _opener().open(request, timeout=self.seconds) as answer:
                    text = answer.read(_ANSWER_BYTES + 1)
                if len(text) > _ANSWER_BYTES:
                    raise JudgeError(f"{self.url} sent more than {_ANSWER_BYTES} bytes")
                return json.loads(text)
            except HTTPError as error:
                if error.code not in _AGAIN or attempt + 1 == self.tries:
                    said = error.read(200).decode(errors="replace")
                    raise JudgeError(f"{self.url} answered {error.code}: {said}") from error
            except (OSError, HTTPException) as error:
                if attempt + 1 == self.tries:
                    raise JudgeError(f"{self.url} cannot be reached: {getattr(error, 'reason', error)}") from error
            except ValueError as error:
                raise JudgeError(f"{self.url} sent no JSON") from error
            time.sleep(self.pause * 2**attempt)
        raise JudgeError(f"{self.url} was asked {self.tries} times: give one try or more")


def instruction() -> str:
    """Return what the judge is told before the first case."""
    listed = "\n".join(f"- {name}: {meaning}" for name, meaning in DIMENSIONS.items())
    shape = json.dumps(dict.fromkeys((*DIMENSIONS, OVERALL), 5))
    return (
        "You judge, strictly and without taking sides, an answer that a model gave to a question about pictures. "
        "You are given the question, a reference answer and the model's answer.\n"
        f"Give each of these a whole number from {LEAST} (bad) to {MOST} (better than the reference):\n{listed}\n"
        f"First explain each score in a sentence. Then give an {OVERALL!r} for the whole answer. "
        f"End with one line that holds all scores in this form:\n{shape}"
    )


def case(question: str, reference: str, answer: str) -> str:
    """Return one question with its reference and the answer to judge."""
    return f"[Question]\n{question}\n\n[Reference answer]\n{reference}\n\n[Answer to judge]\n{answer}\n"


def read_overall(reply: str) -> int | None:
    """Return the overall score in the last pair of braces that holds all scores, each in range; None without one."""
    for braces in reversed(_BRACES.findall(reply)):
        found = {name.strip().title(): int(number) for name, number in _PAIR.findall(braces)}
        if all(LEAST <= found.get(name, 0) <= MOST for name in (*DIMENSIONS, OVERALL)):
            return found[OVERALL]
    return None


class _NoRedirects(HTTPRedirectHandler):
    """A redirect could carry questions and answers elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener() -> OpenerDirector:
    return build_opener(_NoRedirects)
