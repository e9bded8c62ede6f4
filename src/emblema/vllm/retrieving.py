"""Linking while decoding, on a server: a reply stops where the model asks for a picture, and a new request goes on.

A middleware around vLLM's chat completions. It reads a body when the server asks for it, so after the server's own
checks, such as that of the API key; what takes time is done on other threads than the event loop's. The continuation is
a request like any other (the conversation, the reply so far and the pictures that were found), so its pictures are
linked as they are anywhere in a prompt. The client sees one reply, streamed or whole.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from emblema.engine.retrieval import RetrievalRules, question_of
from emblema.errors import EmblemaError
from emblema.serve.guard import App, Message, Receive, Send
from emblema.vllm.reply_relays import StreamRelay, WholeRelay, send_json
from emblema.vllm.word_search import PictureFolder, Searched, SearchedItem

_log = logging.getLogger(__name__)
RETRIEVAL_VARIABLE = "EMBLEMA_VLLM_RETRIEVAL"
"""Where a server's processes find `PictureRetrieval`, as JSON: vLLM gives a middleware no arguments."""
PATH = "/v1/chat/completions"
LARGEST_BODY = 128 * 2**20
"""Bytes of a chat request."""
LARGEST_WISH = {"count": 8, "most": 4}
"""What a request may ask for, where the operator's own rules do not allow more."""
LONGEST_WORDS = 1000
"""Characters of a request's own `end`, `start` and `after`."""
REPLY_PICTURES, REPLY_BYTES, REPLY_TOKENS = 16, 16 * 2**20, 16384
"""Most pictures that one reply looks up, their files' bytes, and about how many tokens they have."""
NOT_CONTINUED = ("tools", "stop", "continue_final_message", "prompt_logprobs", "use_beam_search")
"""Options of requests whose replies cannot be continued by another request."""


class BadRequestError(EmblemaError):
    """A chat request that is answered with status 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRetrieval(RetrievalRules):
    """How a served model asks, and what it is shown.

    Attributes:
        after: text after what was found; None for the question again.
    """

    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRetrieval(ReplyRetrieval):
    """How a served model asks for pictures, and where they are.

    Attributes:
        library: the folder of pictures.

    Raises:
        EmblemaError: an attribute is not right.
    """

    library: str

    def __post_init__(self) -> None:
        RetrievalRules.__post_init__(self)
        if not isinstance(self.library, str) or not self.library:
            raise EmblemaError("retrieval needs a library: name a folder of pictures")
        if not isinstance(self.after, str | None):
            raise EmblemaError(f"retrieval: after is {self.after!r}: give text or null")

    @classmethod
    def from_json(cls, written: str) -> "PictureRetrieval":
        """Return what `to_json` wrote.

        Raises:
            EmblemaError: the text is something else.
        """
        try:
            return cls(**json.loads(written))
        except (TypeError, ValueError) as error:
            raise EmblemaError(f"{RETRIEVAL_VARIABLE} is not right: {error}") from error

    def to_json(self) -> str:
        """Return the text for a server's environment."""
        return json.dumps(asdict(self))

    def for_request(self, option: object) -> "PictureRetrieval | None":
        """Return the retrieval that a request's option asks for, from the server's library; None if it wants none.

        Raises:
            EmblemaError: the option is unknown or not right.
        """
        if option is None or option is True:
            return self
        if option is False:
            return None
        if not isinstance(option, Mapping):
            raise EmblemaError(f"retrieval is {option!r}: give true, false, or how the model asks")
        unknown = sorted(set(option) - {"end", "start", "count", "most", "after"})
        if unknown:
            raise EmblemaError(f"retrieval has {unknown[0]!r}: a request may give end, start, count, most and after")
        wanted = replace(self, **option)
        for name, largest in LARGEST_WISH.items():
            largest = max(largest, getattr(self, name))
            if getattr(wanted, name) > largest:
                raise EmblemaError(
                    f"retrieval: {name} is {getattr(wanted, name)}: a request may give {largest} at most"
                )
        for name in ("end", "start", "after"):
            if len(option.get(name) or "") > LONGEST_WORDS:
                raise EmblemaError(f"retrieval: {name} has more than {LONGEST_WORDS} characters")
        return wanted

    def for_chat(self, body: Any) -> "PictureRetrieval | None":
        """Return the retrieval that a chat request asks for; None where it is to be passed on unchanged.

        Raises:
            EmblemaError: its option is not right.
        """
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return None
        parameters = body.get("kv_transfer_params")
        options = parameters.get("emblema") if isinstance(parameters, Mapping) else None
        wanted = self.for_request(options.get("retrieval") if isinstance(options, Mapping) else None)
        continued = body.get("n") in (None, 1) and not any(body.get(name) for name in NOT_CONTINUED)
        return wanted if continued else None


class ChatReply:
    """A reply that is made by several requests. There is no HTTP in here.

    Args:
        body: the client's request.
        retrieval: how the model asks.
        library: where pictures are looked for.

    Attributes:
        body: the request to send next.
        found: the query and the pictures' names of each request that was answered; `left_out` counts those for which
            the reply had no room.

    Raises:
        BadRequestError: the request is malformed where a reply depends on it.
    """

    def __init__(self, body: dict[str, Any], retrieval: ReplyRetrieval, library: Searched) -> None:
        self.retrieval, self.library = retrieval, library
        if not isinstance(body.get("stream"), bool | None):
            raise BadRequestError(f"stream is {str(body['stream'])[:40]!r}: give true or false")
        given = body.get("stream_options")
        if not isinstance(given, Mapping | None):
            raise BadRequestError(f"stream_options is {str(given)[:40]!r}: give an object")
        options = dict(given or {})
        self.stream = bool(body.get("stream"))
        self.usage_wanted = bool(options.get("include_usage"))
        self.found: list[dict[str, Any]] = []
        self._turns = list(body["messages"])
        users = [turn for turn in self._turns if isinstance(turn, Mapping) and turn.get("role") == "user"]
        self._question = question_of(users)
        # The model's unfinished turn, and the whole reply so far.
        self._turn = self._said = ""
        self.body = body | {"stop": [retrieval.end], "include_stop_str_in_output": True}
        if self.stream:
            self.body["stream_options"] = options | {"include_usage": True}
        self._room = {"pictures": REPLY_PICTURES, "bytes": REPLY_BYTES, "tokens": REPLY_TOKENS}

    def proceed(self, text: str, tokens: int) -> bool:
        """Add an answer that stopped where the model asks; return whether there is another request to send.

        Raises:
            EmblemaError: a picture that was found cannot be read.
        """
        query = self.retrieval.query(text.removesuffix(self.retrieval.end), self._question, self._said)
        self._turn += text
        self._said += text
        limits = [name for name in ("max_tokens", "max_completion_tokens") if type(self.body.get(name)) is int]
        left = {name: self.body[name] - tokens for name in limits}
        if any(count < 1 for count in left.values()):
            return False
        shown = [] if query is None else self._look_up(query)
        said = {"role": "assistant", "content": self._turn}
        if shown:
            self._turns += [said, {"role": "user", "content": shown}]
            self._turn = ""
        self.body |= left | {
            "messages": self._turns if shown else [*self._turns, said],
            "add_generation_prompt": bool(shown),
            "continue_final_message": not shown,
        }
        if len(self.found) >= self.retrieval.most:
            self.body |= {"stop": [], "include_stop_str_in_output": False}
        return True

    def _look_up(self, query: str) -> list[dict[str, Any]]:
        """Return the content of a user's turn with the pictures that were found; empty if there are none."""
        pictures, shown = [], []
        found = self.library.search(query, self.retrieval.count)
        for item in found:
            if self._take_room(item):
                pictures.append(item)
                shown.append(item.part())
        self.found.append({"query": query, "items": [item.name for item in pictures]})
        if len(pictures) < len(found):
            self.found[-1]["left_out"] = len(found) - len(pictures)
        after = self._question if self.retrieval.after is None else self.retrieval.after
        return [*shown, {"type": "text", "text": after}] if shown and after else shown

    def _take_room(self, item: SearchedItem) -> bool:
        """Count an item against what a reply may show, if it fits."""
        needed = {"pictures": 1, "bytes": item.bytes, "tokens": item.tokens}
        if any(self._room[name] < count for name, count in needed.items()):
            return False
        self._room = {name: left - needed[name] for name, left in self._room.items()}
        return True


async def go_on(reply: ChatReply, relay: WholeRelay | StreamRelay, app: App, scope: Message, receive: Receive) -> None:
    """Answer what a model asks for until it asks no more, after the answer to its first request, and end the reply."""
    while True:
        answer = relay.take_answer()
        if answer is None or answer.stopped_by != reply.retrieval.end:
            break
        try:
            if not await asyncio.to_thread(reply.proceed, answer.text, answer.tokens):
                break
        except EmblemaError as error:
            _log.warning("emblema: a reply ends where its model asked: %s", error)
            break
        body = await asyncio.to_thread(written, reply.body)
        await app(scope, with_body(body, receive), relay.catch)
    await relay.end()


def relay_of(reply: ChatReply, send: Send) -> WholeRelay | StreamRelay:
    """Return what joins the answers of a reply."""
    return StreamRelay(reply.found, reply.usage_wanted, send) if reply.stream else WholeRelay(reply.found, send)


class Retrieving:
    """`--middleware emblema.vllm.retrieving.Retrieving`, with a `PictureRetrieval` in the environment.

    Raises:
        EmblemaError: the environment does not say how a model asks, or the library cannot be opened.
    """

    def __init__(self, app: App) -> None:
        if RETRIEVAL_VARIABLE not in os.environ:
            raise EmblemaError(
                f"{RETRIEVAL_VARIABLE} is not set: start the server with `emblema vllm-serve --library FOLDER`"
            )
        self.app, self.retrieval = app, PictureRetrieval.from_json(os.environ[RETRIEVAL_VARIABLE])
        self.library = PictureFolder(Path(self.retrieval.library))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATH):
            await self.app(scope, receive, send)
            return
        await ChatExchange(self, scope, receive, send).run()


class ChatExchange:
    """A chat request and its reply, over as many requests to the server as it takes.

    The server is called before the body is read: a request that it refuses by its path or headers is never looked at.

    Args:
        middleware: what is around the server.
        scope, receive, send: of the client's request.
    """

    def __init__(self, middleware: Retrieving, scope: Message, receive: Receive, send: Send) -> None:
        self._middleware, self._scope, self._receive, self._send = middleware, scope, receive, send
        self._read = False
        self._refusal: str | None = None
        self._reply: ChatReply | None = None
        self._relay: WholeRelay | StreamRelay | None = None

    async def run(self) -> None:
        """Answer the request."""
        app = self._middleware.app
        try:
            await app(self._scope, self._receive_body, self._catch)
        except BadRequestError:
            if self._refusal is None:
                raise
        if self._refusal is not None:
            error = {"message": self._refusal, "type": "BadRequestError", "code": 400}
            await send_json(self._send, 400, {"error": error})
            return
        reply, relay = self._reply, self._relay
        if reply is None or relay is None:
            return
        await go_on(reply, relay, app, self._scope, self._receive)

    async def _receive_body(self) -> Message:
        """Give the server the body that it is to answer, and later what the client sends: that it has gone."""
        if self._read:
            return await self._receive()
        self._read = True
        try:
            raw = await _read_body(self._receive)
            body = await asyncio.to_thread(self._begin, raw)
        except EmblemaError as error:
            # The server is left; what it would say of this is not sent.
            self._refusal = str(error)
            raise BadRequestError(str(error)) from error
        return {"type": "http.request", "body": body, "more_body": False}

    def _begin(self, raw: bytes) -> bytes:
        """Read a request; return the body for the server, which is the client's own where nothing is looked up.

        Raises:
            EmblemaError: the request is malformed.
        """
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is no JSON that can be read: {error}") from error
        retrieval = self._middleware.retrieval.for_chat(body)
        if retrieval is None:
            return raw
        reply = ChatReply(body, retrieval, self._middleware.library)
        body_of_reply = written(reply.body)
        self._reply = reply
        self._relay = relay_of(reply, self._send)
        return body_of_reply

    async def _catch(self, message: Message) -> None:
        if self._refusal is not None:
            return
        await (self._send(message) if self._relay is None else self._relay.catch(message))


def written(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON; BadRequestError where it is nested too deeply."""
    try:
        return json.dumps(body).encode()
    except RecursionError as error:
        raise BadRequestError("the body is nested too deeply") from error


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            raise BadRequestError(f"the body has more than {LARGEST_BODY} bytes")
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body first, and then what the client sends: that it has gone."""
    left = [body]

    async def receive_body() -> Message:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    return receive_body
