"""Requests to vLLM's own routes whose model looks things up in collections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError

from emblema.plugin.resolving import ResolvedBody, Resolving, with_body
from emblema.serve.faults import ServeError
from emblema.serve.guard import Message, Receive, Send
from emblema.serve.parts import CollectionChoice
from emblema.vllm.host import VllmHost
from emblema.vllm.retrieving import NOT_CONTINUED, ChatReply, ReplyRetrieval, go_on, relay_of, written
from emblema.vllm.word_search import Searched


class SearchResolving(Resolving):
    """What stands before vLLM's own routes: a reply that asks goes on in other requests."""

    _host: VllmHost

    def _take(self, body: dict[str, Any]) -> tuple[ReplyRetrieval, Searched] | None:
        return take_collections(body, self._host)

    async def _prepare(
        self, resolved: ResolvedBody, scope: Message, receive: Receive, send: Send
    ) -> Callable[[], Awaitable[None]]:
        if resolved.taken is None:
            return await super()._prepare(resolved, scope, receive, send)
        reply = ChatReply(resolved.body, *resolved.taken)
        whole = with_body(scope, receive, await asyncio.to_thread(written, reply.body))
        relay = relay_of(reply, send)

        async def answer() -> None:
            await self._app(scope, whole, relay.catch)
            await go_on(reply, relay, self._app, scope, receive)

        return answer


def take_collections(body: dict[str, Any], host: VllmHost) -> tuple[ReplyRetrieval, Searched] | None:
    """Take the choice of collections off a request; return how its model asks, and where that is looked for.

    Raises:
        ServeError: the choice is malformed, there is no such collection, or the reply could not be continued.
    """
    given = {name: body.pop(name) for name in ("collections", "retrieval") if name in body}
    try:
        choice = CollectionChoice.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ServeError(400, f"{place}: {problem['msg']}", None, place) from error
    if not choice.collections:
        return None
    refused = [name for name in ("logprobs", "top_logprobs", *NOT_CONTINUED) if body.get(name)]
    if refused or body.get("n") not in (None, 1):
        name = (*refused, "n")[0]
        raise ServeError(400, f"{name} is not taken with collections: a reply goes on in another request", None, name)
    if not isinstance(body.get("messages"), list):
        raise ServeError(400, "messages are a list", None, "messages")
    rules = choice.rules(host.settings)
    return ReplyRetrieval(**rules, after=host.settings.ask_after or None), host.collections.search(choice.collections)
