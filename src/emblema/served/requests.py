"""Requests to a serving engine: their tokens, their media as the engine placed them, and their own options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emblema.link.prompt import Rows
from emblema.store.identity import SHARED_SALT, request_salt


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture or other media of a request, as the engine placed it.

    Attributes:
        index: its number among the request's media.
        kind: `image`, `video`, ….
        identifier: the engine's name of it: a digest of its content, or what the client gave as such.
        start: row of its first token.
        tokens: how many rows it takes.
        grid: frames, height and width in patches, where the model places media on a grid.
        digest: of what the model is shown, made here; empty where that is not there.
        seconds: from one step of a video's grid to the next, where the model is told so.
        runs: rows, counted from its first, that the encoder fills, where there are others between (time stamps).
    """

    index: int
    kind: str
    identifier: str
    start: int
    tokens: int
    grid: tuple[int, int, int] | None = None
    digest: str = ""
    seconds: float | None = None
    runs: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request to a serving engine.

    Attributes:
        token_ids: the prompt's, with a token for each row of media.
        items: its media in order.
        salt: what sets the tenant apart, as vLLM's `cache_salt`.
        options: the request's own, as vLLM's `kv_transfer_params["emblema"]`.
        refusal: why it has to be computed plainly, whatever is stored; None if it may be linked.
        source: the engine's own request.
        digests: makes the digests of the items, which takes a while; None where they have theirs.
    """

    token_ids: Sequence[int]
    items: tuple[MediaItem, ...]
    salt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    source: Any = None
    digests: Callable[[], Sequence[str]] | None = None

    def checked(self) -> "ServedRequest":
        """Return the request with the digests of its items."""
        if self.digests is None:
            return self
        named = zip(self.items, self.digests(), strict=True)
        return replace(self, items=tuple(replace(item, digest=digest) for item, digest in named), digests=None)

    def why_plain(self) -> str | None:
        """Return why it has to be computed plainly, whatever is stored; None if it may be linked."""
        if self.salt == SHARED_SALT.decode():
            return "its cache_salt is the shared library's"
        if self.refusal is None and not all(item.digest for item in self.items):
            return "a picture is not there to be checked against its name"
        return self.refusal

    @property
    def keeps(self) -> bool:
        """Whether it takes the rows that an earlier request of its conversation had, and leaves its own."""
        return self.options.get("survivors") == "keep"

    @property
    def store_salt(self) -> bytes:
        """The salt of the tenant's store, derived from `cache_salt`."""
        return request_salt(self.salt) if self.salt else b""
