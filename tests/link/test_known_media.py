"""What is known of a tenant's media: digests alone, of so many, and nothing of another tenant's."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from emblema.link import known_media
from emblema.link.known_media import SIDE, KnownMedia, MediaDigest, ShownMedia, digest_pictures
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from emblema.store import Store
from tests.link.pieces import chunk


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


def picture(seed: int, side: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def shown(name: str, image: Image.Image | None = None, **facets: object) -> ShownMedia:
    media = MediaDigest() if image is None else digest_pictures([image])
    return ShownMedia(name, "f" * 64, facets, None, media)


def test_tenants_are_apart_and_engines_of_a_store_are_not(store: Store) -> None:
    one, two = store.tenant(b"one"), store.tenant(b"two")
    assert KnownMedia.of(one) is KnownMedia.of(store.tenant(b"one"))
    KnownMedia.of(one).note_missing(shown("a"), one)
    assert KnownMedia.of(two).explain(shown("a"), two).reason is MissReason.NEW
    assert KnownMedia.of(one).explain(shown("a"), one).reason is MissReason.NOT_STORED


def test_the_latest_are_known(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_media, "MEDIA", 3)
    known, tenant = KnownMedia(), store.tenant()
    for name in "abcd":
        known.note_missing(shown(name), tenant)
    assert [known.explain(shown(name), tenant).reason for name in "abd"] == ["new", "not_stored", "not_stored"]
    monkeypatch.setattr(known_media, "TENANTS", 2)
    with Store() as other:
        tenants = [other.tenant(salt) for salt in (b"1", b"2", b"3")]
        first = KnownMedia.of(tenants[0])
        for each in tenants:
            KnownMedia.of(each)
        assert KnownMedia.of(tenants[0]) is not first


def test_what_is_kept_of_a_picture_is_digests() -> None:
    image = picture(1, side=256)
    assert len(pickle.dumps(digest_pictures([image]))) < 2000 < len(image.tobytes()) / 50
    plain = digest_pictures([Image.new("RGB", (64, 64), "white")])
    assert plain.tiles is not None and not plain.tiles.any(), "parts of one colour tell no picture from another"


@pytest.mark.parametrize("seed", [1, 77])
@pytest.mark.parametrize(("changed", "reason"), [(1, "changed"), (16, "changed"), (17, "new"), (64, "new")])
def test_a_picture_is_known_again_by_three_quarters_of_its_tiles(
    store: Store, seed: int, changed: int, reason: str
) -> None:
    known, tenant, image = KnownMedia(), store.tenant(), picture(seed)
    known.note_missing(shown("a", image), tenant)
    other = image.copy()
    for number in np.random.default_rng(seed).permutation(SIDE * SIDE)[:changed].tolist():
        row, column = divmod(number, SIDE)
        red, green, blue = other.getpixel((8 * column, 8 * row))  # type: ignore[misc]
        other.putpixel((8 * column, 8 * row), (red ^ 1, green, blue))
    found = known.explain(shown("b", other), tenant)
    assert found.reason == reason
    assert found.detail == ("" if reason == "new" else f"{changed} of 64 tiles differ from one before")


def test_pictures_of_any_size_have_digests(store: Store) -> None:
    known, tenant = KnownMedia(), store.tenant()
    for sides in ((1, 1), (1, 500), (3, 7), (65, 63)):
        known.note_missing(shown(f"{sides}", Image.new("RGB", sides)), tenant)


def prompt(*names: int, text: int = 3) -> Prompt:
    parts = [part for name in names for part in (ChunkPart(chunk(name, 4)), TextPart((9,)))]
    return Prompt.of([TextPart((1, 2)), *parts, TextPart(tuple(range(text)))], 1)


def replaced(known: KnownMedia, store: Store, now: Prompt) -> list[int]:
    """Return the numbers of a prompt's pictures that count as changed, all of them being new."""
    tenant = store.tenant()
    names = [each.id for _, each in now.chunk_segments]
    for name in names:
        known.note_missing(shown(name), tenant)
    causes = known.refine(now)
    return [number for number, name in enumerate(names) if causes[name].reason is MissReason.CHANGED]


def test_a_picture_changed_where_a_prompt_goes_on_with_one_that_had_another(store: Store) -> None:
    known = KnownMedia()
    assert replaced(known, store, prompt(1, 2)) == []
    assert replaced(known, store, prompt(1, 3, 4, text=4)) == [], "the text is another's from the third picture on"
    assert replaced(known, store, prompt(1, 5, text=9)) == [1], "it goes on with the first"
    assert replaced(known, store, prompt(6, 2)) == [], "the same question about another picture, not a later one"


def test_a_picture_that_the_store_has_has_no_cause(store: Store) -> None:
    known, tenant, now = KnownMedia(), store.tenant(), prompt(1)
    (name,) = (each.id for _, each in now.chunk_segments)
    known.note_missing(shown(name), tenant)
    assert known.refine(now) == {name: Cause(MissReason.NEW)}
    known.note_found(name)
    assert known.refine(now) == {}
