"""Linking while decoding, on a server: a reply stops where the model asks for a picture, and a new request goes on.

A middleware around vLLM's chat completions. It reads a body when the server asks for it, so after the server's own
checks, such as that of the API key; what takes time is done on other threads than the event loop's. The continuation is
a request like any other (the conversation, the reply so far and the pictures that were found), so its pictures are
linked as they are anywhere in a prompt. The client sees one reply, streamed or whole.
"""

import asyncio
import base64
import json
import logging
import mimetypes
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

from PIL import Image

from emblema.engine.retrieval import RetrievalRules, question_of
from emblema.errors import EmblemaError, StoreError

_log = logging.getLogger(__name__)
RETRIEVAL_VARIABLE = "EMBLEMA_VLLM_RETRIEVAL"
"""Where a server's processes find `PictureRetrieval`, as JSON: vLLM gives a middleware no arguments."""
PATH = "/v1/chat/completions"
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
LARGEST_TEXT = 2**20
LARGEST_BODY = 128 * 2**20
"""Bytes of a chat request."""
LARGEST_WISH = {"count": 8, "most": 4}
"""What a request may ask for, where the operator's own rules do not allow more."""
LONGEST_WORDS = 1000
"""Characters of a request's own `end`, `start` and `after`."""
REPLY_PICTURES, REPLY_BYTES, REPLY_TOKENS = 16, 16 * 2**20, 16384
"""Most pictures that one reply looks up, their files' bytes, and their tokens as `TOKEN_PIXELS` counts them."""
TOKEN_PIXELS = 28 * 28
"""Pixels of a picture for each token: those of Qwen-VL models."""
NOT_CONTINUED = ("tools", "stop", "continue_final_message", "prompt_logprobs", "use_beam_search")
"""Options of requests whose replies cannot be continued by another request."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class BadRequestError(EmblemaError):
    """A chat request that is answered with status 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRetrieval(RetrievalRules):
    """How a served model asks for pictures, and where they are.

    Attributes:
        library: the folder of pictures.
        after: text after the pictures; None for the question again.

    Raises:
        EmblemaError: an attribute is not right.
    """

    library: str
    after: str | None = None

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


class PictureFolder:
    """The pictures of a folder as they are when it is opened, found by words: a server has no model to search with.

    A picture's words are those of its file's name, and of a text file of the same name beside it. Its size in pixels is
    read from the file's header.

    Raises:
        StoreError: there is no such folder, no picture in it, or a text that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"{folder} is no folder: name one with pictures")
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        if not paths:
            raise StoreError(f"{folder} holds no picture ({', '.join(SUFFIXES)})")
        self._words = {path: _words(f"{path.stem} {_text_beside(path)}") for path in paths}
        spread = Counter(word for words in self._words.values() for word in words)
        self._weights = {word: log(1 + len(paths) / count) for word, count in spread.items()}
        self._tokens = {path: _tokens_of(path) for path in paths}

    def search(self, query: str, count: int) -> list[Path]:
        """Return the pictures that share the rarest words with a query, the best first; only those that share any."""
        wanted = _words(query)
        scores = {path: sum(self._weights[word] for word in wanted & words) for path, words in self._words.items()}
        found = sorted((path for path in scores if scores[path] > 0), key=lambda path: (-scores[path], path.name))
        return found[:count]

    def tokens(self, picture: Path) -> int:
        """Return about how many tokens a picture of the folder has."""
        return self._tokens[picture]


def _tokens_of(picture: Path) -> int:
    try:
        with Image.open(picture) as image:
            return -(-image.width * image.height // TOKEN_PIXELS)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StoreError(f"{picture} is no picture that can be read: {error}") from error


def data_url(path: Path) -> str:
    """Return a picture as a data URL.

    Raises:
        StoreError: the file cannot be read any more.
    """
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    try:
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _text_beside(picture: Path) -> str:
    path = picture.with_suffix(".txt")
    try:
        if path.is_file() and path.stat().st_size > LARGEST_TEXT:
            raise StoreError(f"{path} is larger than {LARGEST_TEXT} bytes")
        return path.read_text() if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", text.lower()))


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

    def __init__(self, body: dict[str, Any], retrieval: PictureRetrieval, library: PictureFolder) -> None:
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
        for path in found:
            if self._take_room(path):
                pictures.append(path)
                shown.append({"type": "image_url", "image_url": {"url": data_url(path)}})
        self.found.append({"query": query, "items": [path.name for path in pictures]})
        if len(pictures) < len(found):
            self.found[-1]["left_out"] = len(found) - len(pictures)
        after = self._question if self.retrieval.after is None else self.retrieval.after
        return [*shown, {"type": "text", "text": after}] if shown and after else shown

    def _take_room(self, picture: Path) -> bool:
        """Count a picture against what a reply may show, if it fits."""
        try:
            needed = {"pictures": 1, "bytes": picture.stat().st_size, "tokens": self.library.tokens(picture)}
        except OSError as error:
            raise StoreError(f"{picture} cannot be read: {error}") from error
        if any(self._room[name] < count for name, count in needed.items()):
            return False
        self._room = {name: left - needed[name] for name, left in self._room.items()}
        return True


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
            await _send_json(self._send, 400, {"error": error})
            return
        reply, relay = self._reply, self._relay
        if reply is None or relay is None:
            return
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
            body = await asyncio.to_thread(_written, reply.body)
            await app(self._scope, _with_body(body, self._receive), relay.catch)
        await relay.end()

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
        written = _written(reply.body)
        self._reply = reply
        self._relay = StreamRelay(reply, self._send) if reply.stream else WholeRelay(reply, self._send)
        return written

    async def _catch(self, message: Message) -> None:
        if self._refusal is not None:
            return
        await (self._send(message) if self._relay is None else self._relay.catch(message))


def _written(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body).encode()
    except RecursionError as error:
        raise BadRequestError("the body is nested too deeply") from error


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """The answer to one request of a reply: its text, how many tokens that is, and the text that stopped it."""

    text: str
    tokens: int
    stopped_by: str | None


@dataclass(slots=True)
class WholeRelay:
    """Joins the server's answers to a single one. If the server refuses a continuation, the reply ends before it."""

    reply: ChatReply
    send: Send
    start: Message = field(default_factory=dict)
    body: bytes = b""
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def catch(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self.start, self.body = message, b""
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def take_answer(self) -> PartialAnswer | None:
        """Return the answer that is complete now; None where the server refused."""
        if self.start.get("status") != 200:
            return None
        answer = json.loads(self.body)
        self.answers.append(answer)
        choice = answer["choices"][0]
        tokens = answer["usage"]["completion_tokens"]
        return PartialAnswer(choice["message"]["content"] or "", tokens, choice.get("stop_reason"))

    async def end(self) -> None:
        """Send the reply."""
        if not self.answers:
            await self.send(self.start)
            await self.send({"type": "http.response.body", "body": self.body})
            return
        first = self.answers[0]
        choices = [answer["choices"][0] for answer in self.answers]
        choice = dict(choices[-1])
        text = "".join(part["message"]["content"] or "" for part in choices)
        choice["message"] = choice["message"] | {"content": text}
        logprobs = [part.get("logprobs") for part in choices]
        if all(logprobs):
            choice["logprobs"] = {"content": [token for part in logprobs for token in part["content"]]}
        made = sum(answer["usage"]["completion_tokens"] for answer in self.answers)
        reports = [(answer.get("kv_transfer_params") or {}).get("emblema") for answer in self.answers]
        for found, linking in zip(self.reply.found, reports[1:], strict=False):
            found["linking"] = linking
        joined = {
            "choices": [choice],
            "usage": _usage(first["usage"], made),
            "kv_transfer_params": {"emblema": (reports[0] or {}) | {"found": self.reply.found}},
        }
        await _send_json(self.send, 200, first | joined)


@dataclass(slots=True)
class StreamRelay:
    """Passes server-sent events on as they come, but for those that end an answer."""

    reply: ChatReply
    send: Send
    status: int = 0
    id: str | None = None
    buffer: bytes = b""
    text: str = ""
    tokens: int = 0
    made: int = 0
    stopped_by: str | None = None
    last: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    async def catch(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self.status, self.buffer, self.text, self.tokens, self.stopped_by = message["status"], b"", "", 0, None
            if self.id is None:
                await self.send(message)
        elif message["type"] == "http.response.body":
            if self.status != 200 and self.id is None:
                await self.send(message)
            elif self.status == 200:
                *events, self.buffer = (self.buffer + message.get("body", b"")).split(b"\n\n")
                for event in events:
                    await self._pass_on(event.removeprefix(b"data: "))

    async def _pass_on(self, data: bytes) -> None:
        if not data.startswith(b"{"):
            return
        event = json.loads(data)
        self.id = self.id or event.get("id")
        if "choices" in event:
            event["id"] = self.id
        if event.get("usage") and not event.get("choices"):
            self.tokens = event["usage"]["completion_tokens"]
            self.usage = self.usage or event
            return
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            self.text += delta.get("content") or ""
            empty = not any(value for name, value in delta.items() if name != "role")
            if choice.get("finish_reason"):
                self.stopped_by = choice.get("stop_reason")
                self.last = event | {"choices": [choice | {"delta": {}}]}
                choice["finish_reason"] = choice["stop_reason"] = None
            if empty and (self.made or "role" not in delta):
                # The reply opens once; what closes it comes at its end.
                return
        await self._send_event(event)

    def take_answer(self) -> PartialAnswer | None:
        """Return the answer that is complete now; None where the server refused."""
        self.made += self.tokens
        return PartialAnswer(self.text, self.tokens, self.stopped_by) if self.status == 200 else None

    async def end(self) -> None:
        """Send the events that end the reply."""
        if self.id is None:
            return
        if self.last is not None:
            await self._send_event(self.last | {"kv_transfer_params": {"emblema": {"found": self.reply.found}}})
        if self.usage is not None and self.reply.usage_wanted:
            await self._send_event(self.usage | {"usage": _usage(self.usage["usage"], self.made)})
        await self.send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _send_event(self, event: dict[str, Any]) -> None:
        body = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode(errors="replace")
        await self.send({"type": "http.response.body", "body": body, "more_body": True})


def _usage(first: dict[str, Any], made: int) -> dict[str, Any]:
    return first | {"completion_tokens": made, "total_tokens": first["prompt_tokens"] + made}


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


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body first, and then what the client sends: that it has gone."""
    left = [body]

    async def receive_body() -> Message:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    return receive_body


async def _send_json(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content, ensure_ascii=False).encode(errors="replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
