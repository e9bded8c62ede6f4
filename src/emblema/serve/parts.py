"""Parts of messages and of caches as clients write them, for the server of any engine."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, model_validator

from emblema.media.settings import MediaSettings, settings_of
from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError
from emblema.serve.settings import ServeSettings

LONGEST_KEPT = 2_592_000
"""Seconds that a cache may be kept for."""
KEPT = 1_800
"""Seconds that a part is kept for where its breakpoint does not say."""
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(ttl: str) -> int:
    """Return the seconds of a time such as `30m`; `ValueError` where it is none, or too long."""
    number, unit = ttl[:-1], UNITS.get(ttl[-1:])
    if unit is None or not number.isdecimal() or not 0 < int(number[:9]) * unit <= LONGEST_KEPT:
        raise ValueError("give a time from 1s to 30d, such as 30m or 12h")
    return int(number) * unit


def _checked(ttl: str) -> str:
    seconds_of(ttl)
    return ttl


TimeToLive = Annotated[str, Field(max_length=9), AfterValidator(_checked)]


class CacheOptions(ClientBody):
    """How breakpoints of a request are kept that do not say it themselves."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: TimeToLive | None = None


class CacheBreakpoint(ClientBody):
    """Asks that a part with media is kept, wherever it stands."""

    mode: Literal["explicit"]
    ttl: TimeToLive | None = None

    def seconds(self, options: CacheOptions | None) -> int:
        """Return how long the part is to be kept at least, where the request has such options."""
        ttl = self.ttl or (options or CacheOptions()).ttl
        return KEPT if ttl is None else seconds_of(ttl)


class TextContent(ClientBody):
    """Text."""

    passed = {"annotations": ([],), "cache_control": None}
    type: Literal["text"]
    text: str


class Address(ClientBody):
    """Where a picture or clip is: `data:`, `http:` or `https:`, which may come as the string alone, or a file's id."""

    url: str | None = None
    file_id: str | None = Field(None, max_length=200)
    detail: str | None = None

    @property
    def address(self) -> str | None:
        """Where the media are; None for a file."""
        return self.url

    @model_validator(mode="before")
    @classmethod
    def _of_a_string(cls, given: Any) -> Any:
        return {"url": given} if isinstance(given, str) else given


class SettledContent(ClientBody):
    """Media, and how they are to be taken; see `MediaSettings`.

    Attributes:
        kind: that the media have to be of; None for any.
    """

    kind: ClassVar[str | None] = None
    fps: float | None = None
    num_frames: int | None = None
    nframes: int | None = None
    video_start: float | None = None
    video_end: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @property
    def settings(self) -> MediaSettings:
        """How the media are to be taken; `MediaError` for a value that is not right."""
        given = {name: getattr(self, name) for name in SettledContent.model_fields.keys() - {"prompt_cache_breakpoint"}}
        return settings_of(given | {"detail": getattr(self.named, "detail", None)})

    @property
    def named(self) -> "Address | FileReference | Sound":
        """What the media are named by: the field that is called as the type."""
        named: Address | FileReference | Sound = getattr(self, str(getattr(self, "type", "")))
        return named


class ImageContent(SettledContent):
    """A picture."""

    kind = "image"
    type: Literal["image_url"]
    image_url: Address


class VideoContent(SettledContent):
    """A clip."""

    kind = "video"
    type: Literal["video_url"]
    video_url: Address


class FileReference(ClientBody):
    """An uploaded file, or one that is sent along as a data address."""

    file_id: str | None = Field(None, max_length=200)
    file_data: str | None = None
    filename: str | None = None

    @property
    def address(self) -> str | None:
        """Where the media are; None for a file."""
        return self.file_data


class Sound(ClientBody):
    """Sound as base64, or a file's id."""

    data: str | None = None
    format: str | None = Field(None, max_length=20)
    file_id: str | None = Field(None, max_length=200)

    @property
    def address(self) -> str | None:
        """Where the sound is; None for a file."""
        return None if self.data is None else f"data:;base64,{self.data}"


class SoundContent(SettledContent):
    """Sound, for models that hear."""

    kind = "audio"
    type: Literal["input_audio"]
    input_audio: Sound


class FileContent(SettledContent):
    """A picture, clip or document by the id of its upload.

    One that has `slid` conditioned what stands after it, and no text attends to it, as after a window moved on.
    """

    type: Literal["file"]
    file: FileReference
    slid: bool = False


class CacheReference(ClientBody):
    """A cache by its id."""

    cache_id: str = Field(max_length=200)


class CacheContent(ClientBody):
    """All parts of a cache, in their order."""

    type: Literal["cache"]
    cache: CacheReference


MediaContent = ImageContent | VideoContent | SoundContent | FileContent
Content = Annotated[TextContent | MediaContent | CacheContent, Field(discriminator="type")]
Contents = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Content], Tag("parts")],
    Discriminator(lambda given: "parts" if isinstance(given, list) else "text"),
]
"""What a message says: a text, or parts. A fault in a part is told of that part."""


def text_length(content: str | Sequence[BaseModel]) -> int:
    """Return the characters of a message's text."""
    texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, TextContent)]
    return sum(map(len, texts))


def refuse_large(settings: ServeSettings, media: int, characters: int) -> None:
    """Raise `ServeError` for a request with too many parts with media, or too much text."""
    if media > settings.parts:
        raise ServeError(400, f"the request has {media} parts with media; {settings.parts} may come at once")
    if characters > settings.text_bytes:
        said = f"the request has {characters} characters; {settings.text_bytes} may come at once"
        raise ServeError(400, said, "context_length_exceeded", "messages")


class RetrievalOptions(ClientBody):
    """How the model asks for what is in collections. What is left out is as the server's settings say."""

    told_null = ("start",)
    count: int = Field(1, ge=1, le=8)
    most: int = Field(1, ge=1, le=4)
    start: str | None = Field("<search>", min_length=1, max_length=1_000)
    end: str = Field("</search>", min_length=1, max_length=1_000)


class CollectionChoice(BaseModel):
    """The collections that a request's model may look up, and how it asks."""

    collections: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field([], max_length=8)
    retrieval: RetrievalOptions | None = None

    def rules(self, settings: ServeSettings) -> dict[str, Any]:
        """Return `count`, `most`, `start` and `end` as the request says, or as the server's settings do."""
        wished = {} if self.retrieval is None else self.retrieval.model_dump(exclude_unset=True)
        return {"start": settings.ask_start or None, "end": settings.ask_end} | wished
