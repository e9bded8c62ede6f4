"""Chat completions: one conversation, and its reply."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import Field, ValidationError

from emblema.engine.generation import GenerateRequest
from emblema.errors import MediaError
from emblema.link.miss_log import MOST_MISSES
from emblema.link.strategies.auto import bounded
from emblema.serve.client_body import ClientBody
from emblema.serve.collections import retrieval_of
from emblema.serve.deadlines import seconds_left, within
from emblema.serve.faults import missing
from emblema.serve.host import Held, Owner
from emblema.serve.keys import Tenant
from emblema.serve.messages import ChatRequest, chunk_count
from emblema.serve.parts import CacheContent, TextContent, refuse_large
from emblema.serve.replies import Answer, AnswerForm, Choice, CompletionForm, Entries, Json, json_bytes
from emblema.serve.service import Served, Service
from emblema.serve.token_logprobs import TokenLogprobs
from emblema.session.replies import Piece, Reply
from emblema.session.tool_calls import CallReader

_LATE = "the reply was not begun by its deadline: ask for less, or allow more time"
_SPARE_SECONDS = 1.0
"""After its deadline, in which the engine ends a reply itself and says so."""
ROWS_OF_A_PICTURE = 256
"""Rows that a part with media is taken to have, for admission."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request for text: whose it is, and what it holds. Routes depend on it."""

    request: Request
    service: Served
    tenant: Owner
    holding: Held


Called = Annotated[Call, Depends()]


async def chat(body: ChatRequest, call: Called) -> Response:
    """Answer a conversation."""
    return await answer_chat(body, ChatForm(call.service.settings.name, body.tells_usage), call)


class TranslatedBody(ClientBody):
    """A body of another interface than chat completions, with the fields that are checked there."""

    model: str = Field(max_length=1_000)
    tools: list[Json] = []
    top_p: float | None = None
    stream: bool = False
    strategy: Any = None
    max_kl: Any = None
    survivors: Any = None
    collections: Any = None
    retrieval: Any = None

    @property
    def shared(self) -> Json:
        """The fields that a chat completion has under the same name; what they say is perhaps written otherwise."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in ChatRequest.model_fields}


def translated(content: Any, part: Callable[[Any, str], Json], where: str) -> Any:
    """Return content with each of its parts as `part` translates it, given its place; a text as it is."""
    if not isinstance(content, list):
        return content
    return [part(each, f"{where}[{index}]") for index, each in enumerate(content)]


async def answer_translated(given: Json, form: AnswerForm, call: Call) -> Response:
    """Answer the chat completion that a body of another interface was translated to, in that one's form."""
    try:
        body = ChatRequest.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors(), body=given) from error
    return await answer_chat(body, form, call)


async def answer_chat(body: ChatRequest, form: AnswerForm, call: Call) -> Response:
    """Answer a conversation in an endpoint's form."""
    service = call.service
    if body.model != service.settings.name:
        raise missing("model", body.model)
    body.refuse_conflicts()
    refuse_large(service.settings, len(list(body.media)), body.text_length)

    async def ask(answer: Answer) -> tuple[GenerateRequest, int]:
        rows = await _rows_of(body, service, call.tenant)
        return await _asked(body, call, answer), rows

    logprobs = [TokenLogprobs(service.engine.engine.tokenizer) if body.logprobs else None for _ in range(body.n)]
    names = [tool["function"]["name"] for tool in body.offered]
    choices = [Choice(index, each, CallReader(names) if names else None) for index, each in enumerate(logprobs)]
    return await respond(call, form, choices, ask, body.stream)


async def respond(
    call: Call,
    form: AnswerForm,
    choices: Sequence[Choice],
    ask: Callable[[Answer], Awaitable[tuple[GenerateRequest, int]]],
    stream: bool,
) -> Response:
    """Return the response to a request.

    Args:
        call: whose it is.
        form: how the answer is written.
        choices: that are wanted.
        ask: reads what the engine is asked, which may take long, and about how many rows the prompt has.
        stream: whether it is answered as events.
    """
    began, service, request = time.perf_counter(), call.service, call.request

    def note(finished: Reply) -> None:
        service.metrics.note(finished, time.perf_counter() - began)
        usage = finished.usage
        request.state.lane, request.state.rows = usage.lane, usage.prompt_tokens
        request.state.misses = answer.misses_of(finished)[:MOST_MISSES]

    answer = Answer(form, choices, note)
    deadline = service.settings.deadline

    async def begin() -> AsyncIterator[Piece]:
        """Read the request and begin its reply; its first piece is waited for, so that a refusal has a status."""
        asked, rows = await ask(answer)
        engine, seconds = service.engine_of(call.tenant), seconds_left(request, deadline)
        pieces = engine.pieces(asked, seconds=seconds, rows=rows, choices=len(choices))
        del asked
        first = await anext(pieces)
        # The prompt is in the model: what was decoded for it is let go.
        call.holding.drop_decoded()
        return _with_first(first, pieces)

    async def whole() -> Json:
        return await answer.whole(await begin())

    if stream:
        pieces = await within(request, deadline + _SPARE_SECONDS, begin(), _LATE)
        return StreamingResponse(answer.events(await anext(pieces), pieces), media_type="text/event-stream")
    told = await within(request, deadline + _SPARE_SECONDS, whole(), _LATE)
    return Response(json_bytes(told), media_type="application/json")


class ChatForm(CompletionForm):
    """Choices as chat completions have them."""

    kind, chunk_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def whole(self, choice: Choice) -> Json:
        """Return a finished choice."""
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.called:
            message |= {"content": choice.text or None, "tool_calls": choice.called}
        logprobs = None if choice.logprobs is None else {"content": choice.told, "refusal": None}
        reason = choice.finish_reason
        return {"index": choice.index, "message": message, "finish_reason": reason, "logprobs": logprobs}

    def begin(self, answer: Answer) -> list[Json]:
        """Return what begins the stream of each choice."""
        return [self._chunk(_delta(choice, {"role": "assistant", "content": ""})) for choice in answer.choices]

    def parts(self, choice: Choice, fresh: str, entries: Entries) -> list[Json]:
        """Return what a stream tells of a piece; the last part of a choice says why it ended."""
        parts = [_delta(choice, {"content": fresh}, entries)] if fresh or entries else []
        if choice.finish_reason is None:
            return parts
        for index, call in enumerate(choice.called):
            parts.append(_delta(choice, {"tool_calls": [{"index": index, **call}]}))
        return [*parts, _delta(choice, {}, reason=choice.finish_reason)]


def _delta(choice: Choice, delta: Json, entries: Entries | None = None, reason: str | None = None) -> Json:
    logprobs = {"content": entries, "refusal": None} if entries else None
    return {"index": choice.index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}


async def _rows_of(body: ChatRequest, service: Service, tenant: Tenant) -> int:
    """Return about how many rows a request's prompt has; `ServeError` where it has too much with its caches."""
    media, characters = len(list(body.media)), body.text_length
    for part in body.media:
        if isinstance(part, CacheContent):
            entry = await service.pools.tables.run(tenant.owner, service.caches.entry, tenant, part.cache.cache_id)
            media, characters = media + len(entry.files) - 1, characters + entry.characters
    refuse_large(service.settings, media, characters)
    return characters // 3 + media * ROWS_OF_A_PICTURE


async def _asked(body: ChatRequest, call: Call, answer: Answer) -> GenerateRequest:
    """Return what the engine is asked, with all media read; a request's own strategy and bound win over the server's.

    Errors are those of `ContentReader.read`, and `EmblemaError` where a field is out of range.
    """
    service, tenant = call.service, call.tenant
    engine = service.engine_of(tenant).engine
    # It looks collections up in this process's memory, or in a small file.
    retrieval = await service.pools.tables.run(tenant.owner, retrieval_of, body, engine, service.settings)
    grammar = None
    if body.held:
        # It takes some milliseconds, and for the first of a model a second or more.
        grammar = await service.engine.beside.run(tenant.owner, body.grammar, service.grammars, engine.template)
    turns = [await _turn(index, body, call, answer) for index in range(len(body.messages))]
    bounds = None if body.max_kl is None else replace(engine.policy, max_kl=body.max_kl)
    asked = GenerateRequest(
        turns,
        bounded(body.strategy or service.settings.strategy, bounds),
        replace(body.sampling, grammar=grammar),
        retrieval=retrieval,
        survivors=body.survivors,
        likeliest=(body.top_logprobs or 0) if body.logprobs else None,
        tools=body.offered,
        shorten=body.max_completion_tokens is None and body.max_tokens is None,
    )
    call.holding.settle()
    return asked


async def _turn(index: int, body: ChatRequest, call: Call, answer: Answer) -> Json:
    """Return the turn of a message of the body, with its media read."""
    message, content = body.messages[index], list[Any]()
    for number, part in enumerate(() if isinstance(message.content, str) else message.content):
        if isinstance(part, TextContent):
            content.append(part.text)
            continue
        try:
            found = await call.service.content.read(call.tenant, part, call.holding, body.kept_seconds(part))
        except MediaError as error:
            raise MediaError(f"a part of type {part.type}: {error}") from error
        answer.written += found.written
        answer.remarks += [] if found.remark is None else [found.remark]
        if isinstance(answer.form, ChatForm):
            answer.places += [f"messages[{index}].content[{number}]"] * sum(map(chunk_count, found.items))
        content += found.items
    role = "system" if message.role == "developer" else message.role
    turn: Json = {"role": role, "content": message.content if isinstance(message.content, str) else content}
    if message.tool_calls:
        turn["tool_calls"] = [each.model_dump() for each in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


async def _with_first(first: Piece, others: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    yield first
    async for piece in others:
        yield piece
