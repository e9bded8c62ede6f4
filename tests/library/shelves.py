"""Doors to a tiny model and a store, and embedders whose answers are known."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from PIL import Image

from emblema.errors import MediaError
from emblema.kv.chunk import Chunk, Clip
from emblema.library.embedders import Vectors
from emblema.library.items import chunks_of
from emblema.library.tenant_model import TenantModel
from emblema.media import load_image, media_bytes
from emblema.models.adapter import Adapter
from emblema.store.identity import chunk_id
from emblema.store.store import Store, TenantStore
from emblema.store.warm_parts import WarmParts
from tests.families import loaded, picture, token, words


@dataclass
class Clock:
    """A clock that shows the same time until it is set."""

    time: float = 1000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Workbench:
    """Makes chunks on a tiny model as an engine does; a source that starts with `broken` cannot be read."""

    view: TenantStore
    name: str = "llava"
    made: list[str] = field(default_factory=list)
    warmed: list[list[str]] = field(default_factory=list)

    def add(self, source: Any = None, *, text: str | None = None, pages: int = 0) -> Chunk | Clip:
        if source == b"broken":
            raise MediaError("this source is broken")
        if pages:
            chunks = tuple(self._chunk(load_image(source).rotate(90 * page)) for page in range(pages))
            return Clip(chunk_id([c.id.encode() for c in chunks], **self._identity()), "document", chunks)
        return self._chunk(load_image(source)) if text is None else self._passage(text)

    def read(self, text: str) -> Sequence[int]:
        return [token(word) for word in text.split()]

    def _passage(self, text: str) -> Chunk:
        ids = torch.tensor(self.read(text))
        return self._kept("text", text.encode(), lambda adapter, _: adapter.encode_text(ids))

    def _chunk(self, image: Image.Image) -> Chunk:
        return self._kept("image", media_bytes(image), lambda adapter, prepare: adapter.encode(prepare.image(image)))

    def _identity(self) -> dict[str, Any]:
        adapter = loaded(self.name).adapter
        version, salt = adapter.version, self.view.salt
        return {
            "options": {},
            "model_fingerprint": adapter.fingerprint,
            "dtype": adapter.dtype,
            "adapter_version": version,
            "salt": salt,
        }

    def _kept(self, kind: Any, content: bytes, encode: Any) -> Chunk:
        item = loaded(self.name)
        id = chunk_id([kind.encode(), content], **self._identity())
        found = self.view.find(id)
        if found is not None:
            return found
        self.made.append(id)
        encoded = encode(item.adapter, item.preparer)
        rows = item.adapter.capture(encoded)
        return self.view.put(Chunk(id, kind, item.adapter.fingerprint, encoded, rows))

    @property
    def tenant(self) -> TenantModel:
        return TenantModel(self.view, loaded(self.name).adapter, self.add, self.read, self.warm)

    def warm(self, parts: Sequence[Chunk | Clip]) -> WarmParts:
        """Say that every chunk is here, with no patch."""
        chunks = [chunk for part in parts for chunk in chunks_of(part)]
        self.warmed.append([part.id for part in parts])
        return WarmParts(sum(chunk.tokens for chunk in chunks), {chunk.id: chunk.bytes for chunk in chunks})


def tenant(store: Store, salt: bytes = b"one", name: str = "llava") -> Workbench:
    return Workbench(store.tenant(salt), name)


def administrator(store: Store, name: str = "llava") -> Workbench:
    return Workbench(store.shared, name)


def photo(seed: int) -> Image.Image:
    return picture(40, 30, seed)


def png(seed: int) -> bytes:
    """A photograph's bytes."""
    import io

    file = io.BytesIO()
    photo(seed).save(file, "PNG")
    return file.getvalue()


class MeanEmbedder:
    """The plain one: the mean of what the decoder is fed, of unit length.

    Args:
        adapter: the model's.
        read: a text to token ids.
    """

    def __init__(self, adapter: Adapter, read: Callable[[str], Sequence[int]]) -> None:
        self._adapter, self._read = adapter, read

    @property
    def name(self) -> str:
        return "mean of embeddings/1"

    def chunk(self, chunk: Chunk) -> Vectors:
        embeds, visual = chunk.encoded.embeds, chunk.encoded.visual
        return _unit(embeds[visual] if bool(visual.any()) else embeds)

    def query(self, text: str) -> Vectors:
        return _unit(self._adapter.embed(torch.tensor(list(self._read(text)), dtype=torch.int64)))


def _unit(embeds: torch.Tensor) -> Vectors:
    mean = embeds.float().mean(0, keepdim=True)
    vectors: Vectors = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
    return vectors


class Landmarks:
    """An embedder in which every chunk has an axis of its own, in the order they are first seen.

    A query of words such as `word3` asks for the chunk whose axis that is, once for each word.
    """

    name = "landmarks"
    width = 16

    def __init__(self) -> None:
        self.axes: dict[str, int] = {}
        self.embedded: list[str] = []

    def chunk(self, chunk: Chunk) -> Any:
        self.embedded.append(chunk.id)
        axis = self.axes.setdefault(chunk.id, len(self.axes))
        return numpy.eye(self.width, dtype=numpy.float32)[[axis]]

    def query(self, text: str) -> Any:
        return numpy.eye(self.width, dtype=numpy.float32)[[int(number) for number in re.findall(r"\d+", text)]]


__all__ = ["Clock", "Landmarks", "Workbench", "administrator", "photo", "png", "tenant", "words"]
