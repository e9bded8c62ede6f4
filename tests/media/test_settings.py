"""Settings of media: each is followed, or refused by name."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media.limits import MediaLimits
from emblema.media.load import load_media
from emblema.media.settings import PLAIN, MediaSettings, settings_of
from tests.media.making import encoded, moving, recording

PICTURE = Image.new("RGB", (640, 480), "red")


def test_names_of_all_forms_are_known_and_null_is_not_set() -> None:
    given = {"fps": 2, "video_start": 1, "video_end": 2.5, "resized_height": 56, "resized_width": 84, "detail": None}
    assert settings_of(given) == MediaSettings(fps=2, start=1, end=2.5, height=56, width=84)
    assert settings_of({"nframes": 8, "min_pixels": 4, "max_pixels": 9}).frames == 8
    assert settings_of({"type": "image", "uuid": "x", "cache_control": {"type": "ephemeral"}, "fps": None}) == PLAIN


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"fps": "2"}, "fps"),
        ({"fps": True}, "fps"),
        ({"fps": 0}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"num_frames": 2.5}, "num_frames"),
        ({"num_frames": 0}, "num_frames"),
        ({"fps": 1, "num_frames": 4}, "fps and num_frames"),
        ({"nframes": 3, "num_frames": 4}, "num_frames|nframes"),
        ({"video_start": 3, "video_end": 3}, "video_start"),
        ({"video_start": -1}, "video_start"),
        ({"resized_height": 56}, "resized_width"),
        ({"resized_height": 56, "resized_width": 56, "max_pixels": 9}, "resized_height"),
        ({"min_pixels": 9, "max_pixels": 4}, "min_pixels"),
        ({"max_pixels": -1}, "max_pixels"),
        ({"detail": "medium"}, "detail"),
        ({"detail": 3}, "detail"),
        ({"total_pixels": 5}, "total_pixels"),
        ({"max_frames": 5}, "max_frames"),
        ({"do_resize": False}, "do_resize"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(MediaError, match=name):
        settings_of(given)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"detail": "low"}, (512, 384)),
        ({"detail": "high"}, (640, 480)),
        ({"max_pixels": 76_800}, (320, 240)),
        ({"max_pixels": 10_000_000}, (640, 480)),
        ({"min_pixels": 1_228_800}, (1280, 960)),
        ({"resized_height": 56, "resized_width": 84}, (84, 56)),
    ],
    ids=str,
)
def test_a_picture_has_the_size_that_is_asked_for(given: dict[str, Any], size: tuple[int, int]) -> None:
    settings = settings_of(given)
    for source in (PICTURE, encoded(np.asarray(PICTURE), "PNG"), np.asarray(PICTURE)):
        assert load_media(source, settings=settings).size == size
    clip = load_media(recording(moving(4, 640, 480), kind="mp4"), settings=settings)
    assert {frame.size for frame in clip.frames} == {size}


def test_a_size_that_is_asked_for_is_within_the_limits() -> None:
    for given in ({"resized_height": 20_000, "resized_width": 20_000}, {"min_pixels": 2**31 - 1}):
        with pytest.raises(MediaError, match="the size that is asked for .*too large"):
            load_media(PICTURE, settings=settings_of(given))
    with pytest.raises(MediaError, match="narrow"):
        load_media(PICTURE, settings=settings_of({"resized_height": 4, "resized_width": 4000}))
    clip = recording(moving(20), kind="mp4")
    with pytest.raises(MediaError, match="20 frames of 100x100 are more than"):
        load_media(
            clip, fps=10, limits=MediaLimits(video_pixels=150_000), settings=MediaSettings(height=100, width=100)
        )


@pytest.mark.parametrize("name", ["fps", "num_frames", "video_start", "video_end"])
def test_settings_of_clips_are_refused_for_other_media(name: str) -> None:
    video = load_media(recording(moving(4), kind="mp4"))
    for source in (PICTURE, encoded(moving(1)[0], "PNG"), video):
        with pytest.raises(MediaError, match=f"{name} is given for"):
            load_media(source, settings=settings_of({name: 1}))
