"""What one tenant's media were shown as lately, so that media without rows are told from those that never came.

Only digests are kept, in memory, of the latest media of the latest tenants. A tenant's media are compared with its own
alone: whether another tenant has the same is not to be told.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from PIL import Image

from emblema.latest import LatestDict
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.prompt import Prompt, TextPart
from emblema.media.origin import Origin
from emblema.store.store import TenantStore

TENANTS, MEDIA, PROMPTS = 32, 1024, 32
"""Tenants that are known, media of each, and prompts of each."""
SIDE = 8
"""Tiles of a picture along each side."""
DTYPES = ("float32", "bfloat16", "float16")
_LEAST_TILES = 2
_LEAST_SHARE = 0.75
"""Tiles by which a picture is known again, of those that are not of one colour: in number, and as a share."""


@dataclass(frozen=True, slots=True)
class MediaDigest:
    """What is kept of the content of a piece of media.

    Attributes:
        content: digest of it as it was given, before it was scaled; empty where it is not known.
        size: width and height of what is shown.
        tiles: [SIDE * SIDE] uint64, digests of the parts of a single picture, 0 for one of a single colour; else None.
    """

    content: str = ""
    size: tuple[int, ...] = ()
    tiles: NDArray[np.uint64] | None = None


def digest_pictures(pictures: Sequence[Image.Image]) -> MediaDigest:
    """Return the digest of a picture, or of the frames of a clip."""
    content = blake3(b"".join(Origin.of(picture).digest for picture in pictures)).hexdigest()
    return MediaDigest(content, pictures[0].size, _digest_tiles(pictures[0]) if len(pictures) == 1 else None)


def _digest_tiles(picture: Image.Image) -> NDArray[np.uint64]:
    pixels, found = np.asarray(picture), np.zeros(SIDE * SIDE, dtype=np.uint64)
    rows, columns = ([side * step // SIDE for step in range(SIDE + 1)] for side in pixels.shape[:2])
    for number in range(SIDE * SIDE):
        row, column = divmod(number, SIDE)
        tile = pixels[rows[row] : rows[row + 1], columns[column] : columns[column + 1]].tobytes()
        if tile != tile[:3] * (len(tile) // 3):
            found[number] = int.from_bytes(blake3(tile).digest(8), "little") or 1
    return found


@dataclass(frozen=True, slots=True)
class ShownMedia:
    """A piece of media as it is shown to a model.

    Attributes:
        id: of its chunk.
        model: fingerprint.
        facets: what beside content and model decides its id, by name; mappings may be in mappings.
        ids: returns its id by a model's fingerprint and a data type; None where that is not known.
        media: what is kept of its content.
    """

    id: str
    model: str
    facets: Mapping[str, object]
    ids: Callable[[str, str], str] | None = field(default=None, compare=False)
    media: MediaDigest = MediaDigest()


class KnownMedia:
    """What one tenant's media were shown as. Any thread may use it."""

    def __init__(self) -> None:
        # Guards what follows.
        self._lock = threading.Lock()
        self._shown: LatestDict[str, ShownMedia] = LatestDict(MEDIA)
        # Ids of chunks by the length and digest of a prompt's text.
        self._prompts: LatestDict[tuple[int, bytes], tuple[str, ...]] = LatestDict(PROMPTS)
        # By a chunk's id, why the store had no rows of it when it was last looked for.
        self._causes: LatestDict[str, Cause] = LatestDict(MEDIA)

    @classmethod
    def of(cls, store: TenantStore) -> "KnownMedia":
        """Return what is known of a tenant's media, which all engines of a store share."""
        return store.parent.attached("known media", _Tenants).of(store.owner)

    def note_missing(self, shown: ShownMedia, store: TenantStore) -> None:
        """Note a piece of media of which the tenant's store has no rows, and why."""
        self.note_cause(shown.id, self.explain(shown, store))
        with self._lock:
            before = self._shown.get(shown.id)
            kept = shown if before is None or shown.media.content else before
            self._shown[shown.id] = replace(kept, ids=None)

    def note_stored(self, shown: ShownMedia) -> None:
        """Note a piece of media that was stored when it was shown for the first time."""
        with self._lock:
            self._shown[shown.id] = replace(shown, ids=None)
            self._causes.pop(shown.id, None)

    def note_cause(self, chunk: str, cause: Cause) -> None:
        """Note why the store had no rows of a chunk, which it has now."""
        with self._lock:
            self._causes[chunk] = cause

    def note_found(self, chunk: str) -> None:
        """Note that the store has rows of a chunk."""
        with self._lock:
            self._causes.pop(chunk, None)

    def explain(self, shown: ShownMedia, store: TenantStore) -> Cause:
        """Return why the tenant's store has no rows of a piece of media."""
        with self._lock:
            still = shown.id in self._causes
        absence = store.absence(shown.id, look=not still)
        if absence.departure is not None:
            return Cause(MissReason(absence.departure))
        with self._lock:
            if shown.id in self._shown:
                return Cause(MissReason.NOT_STORED, "shown before, and not stored since")
            others = [each for each in reversed(self._shown.values()) if each.id != shown.id]
        return (
            _other_options(shown, others)
            or _other_model(shown, store, absence.models)
            or _changed(shown, others)
            or Cause(MissReason.NEW)
        )

    def refine(self, prompt: Prompt) -> dict[str, Cause]:
        """Return the causes of a prompt's chunks, and note the prompt.

        A picture counts as changed, too, where the prompt goes on with an earlier one that had another in its place.
        """
        names = tuple(chunk.id for _, chunk in prompt.chunk_segments)
        if not names:
            return {}
        written = _written(prompt)
        with self._lock:
            causes = {name: self._causes[name] for name in names if name in self._causes}
            new = {number for number, name in enumerate(names) if causes.get(name) == Cause(MissReason.NEW)}
            for number in self._replaced(names, written, new):
                causes[names[number]] = Cause(MissReason.CHANGED, "another was here when the conversation was shorter")
            self._prompts[len(written), blake3(written).digest()] = names
        return causes

    def _replaced(self, names: Sequence[str], written: bytes, new: set[int]) -> Iterator[int]:
        """Yield places of new pictures where an earlier prompt, which this one goes on with, had others."""
        left = set(new)
        for (length, digest), earlier in reversed(self._prompts.items()):
            places = {number for number in left if number < len(earlier) and earlier[number] != names[number]}
            if places and length < len(written) and blake3(written[:length]).digest() == digest:
                left -= places
                yield from sorted(places)


class _Tenants:
    """What is known of the media of the tenants of a store that came last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: LatestDict[str, KnownMedia] = LatestDict(TENANTS)

    def of(self, owner: str) -> KnownMedia:
        """Return what is known of one tenant's media."""
        with self._lock:
            return self._known.latest(owner, KnownMedia)

    def close(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._known.clear()


def _other_options(shown: ShownMedia, others: Sequence[ShownMedia]) -> Cause | None:
    same = [each for each in others if each.media.content and each.media.content == shown.media.content]
    if not same:
        return None
    own = [each for each in same if each.model == shown.model]
    if not own:
        return Cause(MissReason.OTHER_MODEL, f"model {same[0].model[:8]} before, {shown.model[:8]} now")
    before, now = dict(_options(own[0])), dict(_options(shown))
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    told = [f"{name} {before.get(name, 'not there')} before, {now.get(name, 'not there')} now" for name in names]
    return Cause(MissReason.OTHER_OPTIONS, "; ".join(told[:2]))


def _other_model(shown: ShownMedia, store: TenantStore, models: Sequence[str]) -> Cause | None:
    """Look for rows that another model on this folder made with the same options."""
    ids = shown.ids
    if ids is None:
        return None
    for model in set(models) - {shown.model}:
        dtype = next((dtype for dtype in DTYPES if ids(model, dtype) in store), None)
        if dtype is not None:
            return Cause(MissReason.OTHER_MODEL, f"stored by model {model[:8]} in {dtype}, this is {shown.model[:8]}")
    return None


def _changed(shown: ShownMedia, others: Sequence[ShownMedia]) -> Cause | None:
    """Look for a picture of the same size that has most of the tiles, of those that are not of one colour."""
    tiles = shown.media.tiles
    alike = [each.media.tiles for each in others if each.media.size == shown.media.size]
    found = [each for each in alike if each is not None]
    if tiles is None or not found or np.count_nonzero(tiles) < _LEAST_TILES:
        return None
    same = np.stack(found) == tiles
    known = np.count_nonzero(same & (tiles != 0), axis=1)
    best = int(known.argmax())
    if known[best] < max(_LEAST_TILES, _LEAST_SHARE * np.count_nonzero(tiles)):
        return None
    return Cause(MissReason.CHANGED, f"{int((~same[best]).sum())} of {SIDE * SIDE} tiles differ from one before")


def _options(shown: ShownMedia) -> Iterator[tuple[str, str]]:
    """Yield what beside content and model decides a chunk's id, each with its name in words, and its size."""
    if shown.media.size:
        yield "size", "x".join(map(str, shown.media.size))
    yield from _flat("", shown.facets)


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, str(value)[:40]


def _written(prompt: Prompt) -> bytes:
    """Return a prompt's text as token ids of 8 bytes, with -1 for each chunk."""
    parts = [each.part.token_ids if isinstance(each.part, TextPart) else (-1,) for each in prompt.segments]
    return b"".join(np.array(part, dtype="<i8").tobytes() for part in parts)
