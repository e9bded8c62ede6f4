"""What a program hands in as media, in the forms that people have it in: files, addresses, objects, content items."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emblema.errors import MediaError
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.settings import PLAIN, MediaSettings, settings_of
from emblema.media.source import describe, is_address, read_object

_KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "file": None,
    "input_file": None,
}
"""Types of content items, and the kind of media that each must have; a file may have any."""

_SOURCES = (
    *("url", "path", "base64", "data", "file_data", "image", "image_url", "video", "video_url", "audio"),
    *("audio_url", "input_audio", "file"),
)
"""Keys of an item, or of a mapping in it, that hold the media themselves."""
_BASE64 = frozenset({"base64", "data"})
_BY_CLIENTS = frozenset({"image_url", "video_url", "audio_url", "file_url"})
"""Keys that clients of a server write: they name addresses, and no file of this machine."""


@dataclass(frozen=True, slots=True)
class GivenMedia:
    """A content item of a message: where its media are, the kind that they must have, and how they are to be taken."""

    source: Any
    kind: str | None
    settings: MediaSettings = PLAIN


def read_item(item: Mapping[str, Any]) -> GivenMedia | None:
    """Return what a content item in Qwen's, transformers' or OpenAI's form says; None where it has no media.

    Raises:
        MediaError: it holds no media or several, a setting is not known, or an address is none.
    """
    given = [key for key in _SOURCES if item.get(key) is not None]
    type_ = item.get("type")
    if type_ is None and len(given) == 1 and given[0] in _KINDS:
        type_ = given[0]
    if not isinstance(type_, str) or type_ not in _KINDS:
        return None
    if len(given) != 1:
        raise MediaError(f"an item of type {type_} holds {' and '.join(given) or 'no media'}: give it one source")
    kind, settings, key, source = _KINDS[type_], dict(item), given[0], item[given[0]]
    by_client = bool({type_, key} & _BY_CLIENTS)
    del settings[key]
    if isinstance(source, Mapping):
        inner = [name for name in _SOURCES if source.get(name) is not None]
        if len(inner) != 1:
            raise MediaError(
                f"{key} in an item of type {type_} holds {' and '.join(inner) or 'no media'}: give it a url"
            )
        settings = {**{name: value for name, value in source.items() if name != inner[0]}, **settings}
        key, source = inner[0], source[inner[0]]
        by_client = by_client or key in _BY_CLIENTS
    if key in _BASE64:
        source = _from_base64(source, type_)
    if (
        by_client
        and not (isinstance(source, str) and is_address(source) and not _is_file(source))
        and not _made(source)
    ):
        raise MediaError(f"an {type_} is no http, https or data address")
    return GivenMedia(source, kind, settings_of(settings))


def plain_source(source: Any, limits: MediaLimits = DEFAULT_LIMITS) -> Any:
    """Return media as the loaders take them: a path, bytes, an address, a picture, an array, or a list of frames.

    File objects are read, from their start where they have one; tensors become arrays, whose channels come last; an
    address of a file becomes its path.

    Raises:
        MediaError: it is of another type, or a file object cannot be read.
    """
    if isinstance(source, str) and _is_file(source):
        return _path_of(source)
    if isinstance(source, str | os.PathLike | bytes | Image.Image):
        return source
    if isinstance(source, np.ndarray):
        return _channels_last(source)
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    if hasattr(source, "read"):
        return read_object(source, limits)
    if hasattr(source, "detach") and hasattr(source, "cpu"):
        return _channels_last(_from_tensor(source))
    if hasattr(source, "__array__") and hasattr(source, "shape"):
        return _channels_last(np.asarray(source))
    if isinstance(source, Sequence):
        return list(source)
    raise MediaError(
        f"{describe(source)} is no media: give a path, bytes, an address, a file object, a Pillow image, an array or "
        "tensor, or a list of frames."
    )


def _made(source: Any) -> bool:
    """Return whether media come as an object of the program itself."""
    return not isinstance(source, str | bytes | bytearray | memoryview | os.PathLike | Mapping) and source is not None


def _is_file(source: str) -> bool:
    return source[:7].lower() == "file://"


def _path_of(address: str) -> Path:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        raise MediaError(f"{describe(address)} lies on another machine: give a path.")
    return Path(url2pathname(parts.path))


def _from_base64(text: Any, type_: str) -> str | bytes:
    """Return the bytes that base64 spells; a `data:` address stays one."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not isinstance(text, str):
        raise MediaError(f"the base64 of an item of type {type_} is a {type(text).__name__}: give a string")
    if text[:5].lower() == "data:":
        return text
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"the base64 of an item of type {type_} is broken ({error})") from error


def _from_tensor(tensor: Any) -> NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16.
    array: NDArray[np.generic] = np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
    return array


def _channels_last(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a picture or a clip as [(frames,) height, width, channels], where its channels are known to come first."""
    channels = (1, 3, 4)
    if array.ndim in (3, 4) and array.shape[-1] not in channels and array.shape[-3] in channels:
        return np.moveaxis(array, -3, -1)
    return array
