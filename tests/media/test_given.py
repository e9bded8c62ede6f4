"""What programs and messages hold media in: taken whole, or refused in one line that says what to give."""

import base64
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, load_video, media_bytes
from emblema.media.given import read_item
from emblema.media.load import load_media
from emblema.media.settings import MediaSettings
from emblema.media.video import Video
from tests.media.making import corner, encoded, moving, recording

PIXELS = corner(60, 40)
PNG = encoded(PIXELS, "PNG")
CLIP = recording(moving(20), kind="mp4")
EXPECTED = media_bytes(Image.fromarray(PIXELS))


def opened(data: bytes) -> Any:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    return file


FORMS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text path": str,
    "file address": lambda path: path.as_uri(),
    "bytes": lambda path: PNG,
    "bytearray": lambda path: bytearray(PNG),
    "memoryview": lambda path: memoryview(PNG),
    "BytesIO": lambda path: io.BytesIO(PNG),
    "a file read to its end": lambda path: opened(PNG),
    "data address": lambda path: f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
    "Pillow": lambda path: Image.open(path),
    "array": lambda path: PIXELS,
    "array, channels first": lambda path: np.moveaxis(PIXELS, 2, 0),
    "array of floats": lambda path: PIXELS / 255,
    "tensor": lambda path: torch.from_numpy(PIXELS.copy()),
    "tensor, channels first": lambda path: torch.from_numpy(PIXELS.copy()).permute(2, 0, 1),
    "tensor of floats": lambda path: torch.from_numpy(PIXELS.copy()).permute(2, 0, 1).float() / 255,
    "tensor with a gradient": lambda path: (torch.from_numpy(PIXELS.copy()).double() / 255).requires_grad_(),
    "item": lambda path: {"type": "image", "image": PNG},
    "item with a path": lambda path: {"type": "image", "path": str(path)},
    "item with base64": lambda path: {"type": "image", "base64": base64.b64encode(PNG).decode()},
    "item without a type": lambda path: {"image": str(path)},
    "item of OpenAI": lambda path: {"type": "image_url", "image_url": {"url": FORMS["data address"](path)}},
    "address alone": lambda path: {"type": "image_url", "image_url": FORMS["data address"](path)},
    "file of OpenAI": lambda path: {
        "type": "file", "file": {"file_data": FORMS["data address"](path), "filename": "a.png"},
    },
    "item with a picture as its address": lambda path: {"type": "image_url", "image_url": Image.open(path)},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_in_any_form_is_that_picture(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a picture.png"
    path.write_bytes(PNG)
    found = load_media(FORMS[form](path))
    assert isinstance(found, Image.Image) and media_bytes(found) == EXPECTED


def test_loaders_of_one_kind_take_file_objects_and_tensors_too() -> None:
    for source in (io.BytesIO(PNG), opened(PNG), torch.from_numpy(PIXELS.copy()).permute(2, 0, 1)):
        assert media_bytes(load_image(source)) == EXPECTED
    assert load_video(io.BytesIO(CLIP)).frames == load_video(CLIP).frames


@pytest.mark.parametrize("kind", ["uint8", "float", "channels first", "Pillow", "bytes", "tensor", "list of tensors"])
def test_frames_in_a_list_or_an_array_are_a_clip(kind: str) -> None:
    frames = moving(5)
    array = np.stack(frames)
    forms: dict[str, Any] = {
        "uint8": array,
        "float": array / 255,
        "channels first": np.moveaxis(array, 3, 1),
        "Pillow": [Image.fromarray(frame) for frame in frames],
        "bytes": tuple(encoded(frame, "PNG") for frame in frames),
        "tensor": torch.from_numpy(array.copy()).permute(0, 3, 1, 2),
        "list of tensors": [torch.from_numpy(frame.copy()).permute(2, 0, 1) for frame in frames],
    }
    video = load_media(forms[kind], settings=MediaSettings(fps=4.0))
    assert isinstance(video, Video) and video.times == [0, 0.25, 0.5, 0.75, 1.0]
    assert [media_bytes(frame) for frame in video.frames] == [media_bytes(Image.fromarray(frame)) for frame in frames]


class Upload:
    """What web frameworks give: its `read` has to be awaited."""

    async def read(self, size: int) -> bytes:
        return PNG


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (io.StringIO("text"), None, "binary mode"),
        (Upload(), None, "await"),
        (3.5, None, "float is no media: give a path"),
        (None, None, "is no media"),
        ([], None, "at least one frame"),
        ([PNG, encoded(corner(30, 30), "PNG")], None, "frame 2 of a list is 30x30, and the first 60x40"),
        ([PNG], "image", "one by one"),
        (Image.new("RGB", (9, 9)), "video", "single picture"),
        (PNG, "smell", "unknown kind"),
        ({"type": "image"}, None, "no media"),
        ({"type": "image", "image": PNG, "url": "http://a.example/"}, None, "url and image"),
        ({"type": "image", "base64": "@@@"}, None, "broken"),
        ({"type": "image_url", "image_url": "/etc/passwd"}, None, "no http, https or data address"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, None, "no http, https or data address"),
        ({"type": "file", "file": {"file_url": "x"}}, None, "no media"),
        ({"type": "poem", "poem": "x"}, None, "no known type"),
        ("file://other.example/a.png", None, "another machine"),
        (torch.zeros(3, 8, 8) - 1, None, "floats outside 0 to 1"),
        (torch.zeros(7, 8, 9), None, "is no picture"),
        (np.zeros((2, 2, 3, 8, 8)), None, "is no picture"),
    ],
    ids=lambda given: given if isinstance(given, str) and len(given) < 60 else "",
)
def test_what_cannot_be_taken_is_refused_in_one_line(source: Any, kind: str | None, message: str) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        load_media(source, kind)
    assert "\n" not in str(caught.value)


def test_a_file_object_is_read_no_further_than_is_allowed() -> None:
    class Endless(io.RawIOBase):
        asked = 0

        def read(self, size: int = -1) -> bytes:
            assert size >= 0
            self.asked += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(MediaError, match="the limit file_bytes is 1000"):
        load_media(endless, limits=MediaLimits(file_bytes=1000))
    assert endless.asked == 1001


def test_a_list_of_frames_is_within_the_limits() -> None:
    frames = [Image.new("RGB", (10, 10))] * 5
    with pytest.raises(MediaError, match="5 frames is given; the limit is 4"):
        load_media(frames, limits=MediaLimits(video_frames=4))
    with pytest.raises(MediaError, match="more than 400 pixels"):
        load_media(frames, limits=MediaLimits(video_pixels=400))
    for name in ("frames", "start", "end"):
        with pytest.raises(MediaError, match="cannot be cut"):
            load_media(frames, settings=MediaSettings(**{name: 1}))


def test_settings_stand_beside_the_media_or_beside_their_address() -> None:
    address = f"data:video/mp4;base64,{base64.b64encode(CLIP).decode()}"
    for item in (
        {"type": "video", "video": CLIP, "fps": 5.0},
        {"type": "video_url", "video_url": {"url": address, "fps": 5.0}},
        {"type": "video_url", "video_url": {"url": address}, "fps": 5.0},
        {"type": "video", "url": address, "num_frames": 10},
        {"type": "file", "file": {"file_data": address}, "fps": 5.0},
    ):
        assert len(load_media(item).frames) == 10
    assert read_item({"type": "text", "text": "x"}) is None
