"""Media in bodies for an engine: what they name is read, and its bytes are written in its place.

Chat completions, responses and messages have lists of parts in different places, with different names. A part with
media is written anew, so that no field of a client's reaches the engine beside those that were looked at.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from emblema.serve.faults import ServeError

Form = Literal["chat", "responses", "messages"]
FORMS: Mapping[str, Form] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
}
"""The form of a body by its path."""
EMBEDDINGS = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds")
_TEXTS = ("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "tool_use")
_ADDRESSES = {"image_url": "image", "video_url": "video", "audio_url": "audio"}


@dataclass(frozen=True, slots=True)
class MediaReference:
    """What a part names.

    Attributes:
        file: id of an upload; None for an address.
        address: a `data:`, http or https address.
        kind: image, video or audio, where the part says.
    """

    file: str | None
    address: str = ""
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class ReadMedia:
    """What was read of it: its kind, its media type, its bytes in base64, and a name where one is to be given."""

    kind: str
    type: str
    text: str
    name: str | None = None


async def resolve_media(
    body: dict[str, Any],
    form: Form,
    read: Callable[[MediaReference], Awaitable[ReadMedia]],
    most: int,
    most_bytes: int,
) -> int:
    """Write what the parts of a body name in their place.

    Args:
        body: of a request; changed in place.
        form: of the body.
        read: reads what a part names.
        most: parts with media that a request may have.
        most_bytes: what they may be written as, together: a short id may stand for a large file, and many times.

    Returns:
        How many bytes were written for media.

    Raises:
        EmblemaError: a part cannot be read or holds what is not taken, or there are too many.
    """
    found: list[tuple[list[Any], int, MediaReference]] = []
    for parts in lists_of_parts(body, form):
        for index, part in enumerate(parts):
            if not isinstance(part, dict):
                continue
            for name in EMBEDDINGS:
                if name in (part.get("type"), *part):
                    raise ServeError(400, f"{name} are not taken: send the media themselves", None, name)
            # An engine would look under this name for a picture that was sent before.
            part.pop("uuid", None)
            if part.get("slid") and part.get("type") not in _TEXTS:
                raise ServeError(400, "slid is taken by `emblema serve` alone", None, "slid")
            reference = reference_of(part)
            if reference is not None:
                found.append((parts, index, reference))
    if len(found) > most:
        raise ServeError(400, f"the request has {len(found)} parts with media; {most} may come at once")
    written = 0
    for parts, index, reference in found:
        media = await read(reference)
        written += len(media.text)
        if written > most_bytes:
            raise ServeError(413, f"the request's media are more than {most_bytes} bytes together", "body_too_large")
        parts[index] = _part_of(media, form, parts[index])
    return written


def lists_of_parts(body: dict[str, Any], form: Form) -> Iterator[list[Any]]:
    """Yield the lists of parts in a body's turns."""
    turns = body.get("input" if form == "responses" else "messages")
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        for name in ("content", "output"):
            parts = turn.get(name)
            if isinstance(parts, list):
                yield parts
                # Results of tools, in messages.
                yield from (
                    part["content"]
                    for part in parts
                    if isinstance(part, dict) and isinstance(part.get("content"), list)
                )


def reference_of(part: dict[str, Any]) -> MediaReference | None:
    """Return what a part names; None for one without media, `ServeError` where it names nothing."""
    kind = part.get("type")
    if kind in _TEXTS:
        return None
    match part:
        case {"type": "file", "file": {"file_id": str(id)}} | {"type": "input_file", "file_id": str(id)}:
            return MediaReference(id)
        case {"type": "input_audio", "input_audio": {"file_id": str(id)}}:
            return MediaReference(id, kind="audio")
        case {"type": "input_image", "file_id": str(id)}:
            return MediaReference(id, kind="image")
        case {"type": "file", "file": {"file_data": str(address)}}:
            return MediaReference(None, address)
        case {"type": "input_file", "file_data": str(address)} | {"type": "input_file", "file_url": str(address)}:
            return MediaReference(None, address)
        case {"type": "image", "source": {"type": "file", "file_id": str(id)}}:
            return MediaReference(id, kind="image")
        case {"type": "image", "source": {"type": "url", "url": str(address)}}:
            return MediaReference(None, address, "image")
        case {"type": "image", "source": {"data": str(data)}}:
            return MediaReference(None, f"data:;base64,{data}", "image")
    for field, kind in _ADDRESSES.items():
        match part.get(field):
            case {"file_id": str(id)}:
                return MediaReference(id, kind=kind)
            case str(address) | {"url": str(address)}:
                return MediaReference(None, address, kind)
    if part.get("type") == "cache":
        raise ServeError(400, "a cache is used in chat completions alone: send its parts themselves")
    if part.get("type") in ("file", "input_file", "image"):
        raise ServeError(400, f"a part of type {part['type']} names no file that can be read", None, part["type"])
    return None


def _part_of(media: ReadMedia, form: Form, given: Mapping[str, Any]) -> dict[str, Any]:
    if form != "chat" and media.kind != "image":
        raise ServeError(400, f"{media.kind} is taken in chat completions alone, here are {form}")
    if form == "messages":
        source = {"type": "base64", "media_type": media.type, "data": media.text}
        return {"type": "image", "source": source}
    address = f"data:{media.type};base64,{media.text}"
    if form == "responses":
        return {"type": "input_image", "image_url": address, "detail": _detail_of(given) or "auto"}
    name = f"{media.kind}_url"
    detail = _detail_of(given.get(name)) if media.kind == "image" else None
    part = {"type": name, name: {"url": address} | ({} if detail is None else {"detail": detail})}
    # Without a name an engine's caches of pictures in memory go by the pixels alone, whoever sent them.
    return part if media.name is None else part | {"uuid": media.name}


def _detail_of(given: Any) -> str | None:
    """Return how closely a picture is to be looked at, where that is said as OpenAI has it."""
    detail = given.get("detail") if isinstance(given, Mapping) else None
    return detail if detail in ("auto", "low", "high") else None


_MAGIC = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def media_type(data: bytes, kind: str) -> str:
    """Return the media type of a file of a kind, for engines that do not know it by its content."""
    known = (type for magic, type in _MAGIC.items() if kind == "image" and data.startswith(magic))
    return next(known, "application/octet-stream")
