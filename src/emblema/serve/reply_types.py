"""What replies are made of, as the routes build them and the description shows them."""

from typing import Any, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

T = TypeVar("T")


class ListedPage(TypedDict, Generic[T]):
    """A page of a list."""

    object: Literal["list"]
    data: list[T]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ModelObject(TypedDict):
    """The model, for OpenAI's clients and Anthropic's. `created` is in seconds of Unix time."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str


class FileReport(TypedDict):
    """What was made of a file: its kind once it was read, and the number of its chunks."""

    progress: float
    kind: str | None
    chunks: int


class FileObject(TypedDict):
    """A file. Its status is `uploaded`, `processed`, or `error`, with why in the details."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: str | None
    emblema: FileReport


class CacheObject(TypedDict):
    """A cache. Its status is that of a file; `holders` says how often it was made and not deleted."""

    id: str
    object: Literal["cache"]
    model: str
    name: str | None
    created_at: int
    expires_at: int
    tokens: int
    bytes: int
    status: str
    status_details: str | None
    holders: int
    content: NotRequired[list[dict[str, Any]]]


class DeletedFile(TypedDict):
    """A file that is deleted."""

    id: str
    object: Literal["file"]
    deleted: bool


class DeletedCache(TypedDict):
    """A cache that is let go of; it is there for those who hold it still."""

    id: str
    object: Literal["cache"]
    deleted: bool
    holders: int


class PromptDetails(TypedDict):
    """Tokens of a prompt whose rows were taken, and those whose rows were kept."""

    cached_tokens: int
    cache_write_tokens: int
    audio_tokens: int


class ChatUsage(TypedDict):
    """Tokens of a reply and its prompt."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ChatReport(TypedDict):
    """How a reply came about: which kind of reuse served it, and where its prompt's rows came from.

    `parts` has rows and lane of each piece of media that the strategy chose for; `misses` number, rows, reason and a
    detail of each of which no row was taken, in chat completions with its place in the messages.
    """

    lane: str
    cached_tokens: int
    patched_tokens: int
    computed_tokens: int
    captured_tokens: int
    linked_tokens: int
    repeated_tokens: int
    margin: float | None
    ttft_seconds: float
    found: list[dict[str, Any]]
    parts: list[tuple[int, str]]
    misses: list[tuple[int, int, str, str]]
    remark: str | None


class ReplyFunction(TypedDict):
    """A function by name, and its arguments as JSON."""

    name: str
    arguments: str


class ReplyCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: ReplyFunction


class ChatReplyMessage(TypedDict):
    """What the model says, and the functions that it calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: NotRequired[list[ReplyCall]]


class ChatChoice(TypedDict):
    """One reply."""

    index: int
    message: ChatReplyMessage
    finish_reason: str
    logprobs: dict[str, Any] | None


class ChatCompletion(TypedDict):
    """The answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    emblema: ChatReport
