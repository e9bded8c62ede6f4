"""What is known of media by what encoders are given of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.multimodal.inputs import MultiModalKwargsItem

from emblema.vllm import media_digests
from emblema.vllm.media_digests import MediaDigests, MediaPlace


def shown(**fields: object) -> Any:
    """Return a feature whose encoder is given some data."""
    return SimpleNamespace(
        data=MultiModalKwargsItem({name: SimpleNamespace(data=value) for name, value in fields.items()})
    )


def picture(value: float = 0.0, grid: tuple[int, int, int] = (1, 2, 4)) -> Any:
    return shown(pixel_values=torch.full((8, 3), value), image_grid_thw=torch.tensor(grid))


def test_media_are_named_by_what_the_encoder_is_given() -> None:
    media = MediaDigests()
    one, again, value, grid = media.digests([picture(), picture(), picture(1.0), picture(grid=(1, 4, 2))])
    assert one == again
    assert len({one, value, grid}) == 3


def test_media_without_data_have_no_name_and_no_place() -> None:
    media = MediaDigests()
    assert media.digests([SimpleNamespace(data=None), shown(pixel_values=None)]) == ["", ""]
    assert media.place(SimpleNamespace(data=None)) == MediaPlace()


def test_media_have_the_grid_of_their_kind() -> None:
    media = MediaDigests()
    assert media.place(picture()).grid("image") == (1, 2, 4)
    assert media.place(picture()).grid("video") is None
    clip = media.place(shown(video_grid_thw=torch.tensor([[3, 2, 4]]), second_per_grid_ts=torch.tensor(0.5)))
    assert (clip.grid("video"), clip.grid("image"), clip.seconds) == ((3, 2, 4), None, 0.5)


def test_what_is_known_is_found_once_while_the_data_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(media_digests, "add_to_digest", lambda hasher, value: made.append(value))
    media, feature = MediaDigests(), picture()
    places = [media.place(feature) for _ in range(3)]
    assert all(place is places[0] for place in places)
    media.digests([feature, feature])
    found = len(made)
    media.digests([feature])
    assert len(made) == found > 0


def test_other_data_at_the_same_address_are_looked_at_again() -> None:
    media = MediaDigests()
    places = set()
    for height in range(1, 65):
        # Freed at once, so that Python gives its address to the next.
        places.add(media.place(picture(grid=(1, height, 4))).image)
    assert len(places) == 64


def test_a_bounded_number_of_media_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_digests, "REMEMBERED_MEDIA", 2)
    media, features = MediaDigests(), [picture(grid=(1, height, 4)) for height in (1, 2, 3)]
    first, *_, last = (media.place(feature) for feature in features)
    assert media.place(features[0]) is not first
    assert media.place(features[0]) == first
    assert media.place(features[2]) is last


def test_data_that_are_not_there_yet_are_looked_at_again() -> None:
    media, feature = MediaDigests(), shown(image_grid_thw=None)
    assert media.place(feature) == MediaPlace() and media.digests([feature]) == [""]
    feature.data["image_grid_thw"].data = torch.tensor((1, 2, 4))
    assert media.place(feature).image == (1, 2, 4) and media.digests([feature]) != [""]
