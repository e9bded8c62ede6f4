"""Answers of one choice as the engine gives them, for the forms of endpoints."""

import json
from collections.abc import Iterable
from typing import Any

from emblema.link.plan import LinkPlan
from emblema.serve.replies import Answer, AnswerForm, Choice
from emblema.session.replies import FinishReason, Piece, Reply
from emblema.session.requests import Usage
from emblema.session.tool_calls import CallReader

USAGE = Usage("x", 9, 5, 4, 0, 0, 0.0, completion_tokens=4, captured_tokens=2)
"""Nine tokens in, five of them taken; two rows were captured; four tokens out."""


def answer_to(form: AnswerForm) -> Answer:
    """An answer whose reply may call `look` and `go`."""
    return Answer(form, [Choice(0, None, CallReader(["look", "go"]))], lambda reply: None)


def pieces_of(texts: Iterable[str], reason: FinishReason = "stop") -> list[Piece]:
    """Pieces of a reply; the last has the whole of it."""
    *most, last = texts
    reply = Reply("".join([*most, last]), (), reason, USAGE, (), LinkPlan("x", 9, 1, ()))
    return [*map(Piece, most), Piece(last, reply)]


def called(*calls: tuple[str, str]) -> str:
    """A reply's text that calls functions, each by its name and its arguments."""
    return "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>' for name, arguments in calls
    )


async def body_of(form: AnswerForm, texts: Iterable[str], reason: FinishReason = "stop") -> dict[str, Any]:
    """What a form makes of a reply."""

    async def given() -> Any:
        for piece in pieces_of(texts, reason):
            yield piece

    return await answer_to(form).whole(given())


async def events_of(form: AnswerForm, texts: Iterable[str], error: Exception | None = None) -> list[dict[str, Any]]:
    """The events that a form makes of a reply; with an error, of its first piece and the error."""
    first, *others = pieces_of(texts)

    async def given() -> Any:
        if error is not None:
            raise error
        for piece in others:
            yield piece

    told = []
    async for event in answer_to(form).events(first, given()):
        named, _, data = event.decode().partition("data: ")
        if data and not data.startswith("[DONE]"):
            told.append(json.loads(data))
            assert named == f"event: {told[-1]['type']}\n"
    return told
