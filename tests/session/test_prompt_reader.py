"""Media in prompts and messages: their settings are followed or refused, whichever way they come."""

import asyncio
import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emblema import AsyncEngine, Engine
from emblema.errors import EmblemaError, PromptError
from tests.media.making import encoded, moving, recording, tiff

CLIP = recording(moving(40), kind="mp4")
QUESTION = {"type": "text", "text": "what ?"}


def asked(engine: Engine, item: Any) -> int:
    """Return the tokens of a message with one item of media."""
    return engine.session.read([{"role": "user", "content": [item, QUESTION]}]).tokens


@pytest.mark.slow
def test_settings_beside_media_are_followed(reference: Engine) -> None:
    address = f"data:video/mp4;base64,{base64.b64encode(CLIP).decode()}"
    for fps in (0.5, 1.0, 5.0):
        right = asked(reference, {"type": "video", "video": reference.add(CLIP, fps=fps)})
        for item in (
            {"type": "video", "video": CLIP, "fps": fps},
            {"type": "video_url", "video_url": {"url": address, "fps": fps}},
            {"type": "video", "url": address, "fps": fps, "detail": None},
        ):
            assert asked(reference, item) == right
    assert asked(reference, {"type": "video", "video": CLIP, "num_frames": 20}) == right
    assert asked(reference, {"type": "video", "video": CLIP, "fps": 5.0, "video_end": 2.0}) < right


def test_an_async_engine_follows_them_too(reference: Engine) -> None:
    async def run() -> list[int]:
        engine = AsyncEngine(reference)
        content = [{"type": "video", "video": CLIP, "fps": 5.0}, QUESTION]
        replies = [
            await engine.generate([{"role": "user", "content": content}], max_new_tokens=1),
            await engine.generate([np.stack(moving(20)), "what ?"], max_new_tokens=1),
        ]
        await asyncio.to_thread(engine.scheduler.close, None)
        return [reply.usage.prompt_tokens for reply in replies]

    tokens = asyncio.run(run())
    reference.defer_idle(False)
    assert tokens[0] == asked(reference, {"type": "video", "video": CLIP, "fps": 5.0})
    assert tokens[1] == asked(reference, {"type": "video", "video": np.stack(moving(20))})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "image", "image": Image.new("RGB", (64, 64)), "fps": 2}, "fps is given for"),
        ({"type": "video", "video": CLIP, "frames": 3}, "'frames' beside media is not followed"),
        ({"type": "video", "video": CLIP, "fps": "fast"}, "fps is 'fast'"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "zoom": 2}}, "'zoom' beside media"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "detail": "most"}}, "detail is 'most'"),
        ({"type": "image", "image": tiff(["red", "blue"])}, "has 2 pages"),
        ({"type": "smell", "smell": "rose"}, "item of type 'smell'"),
        ({"type": "image"}, "no media"),
    ],
    ids=lambda given: given if isinstance(given, str) and len(given) < 60 else "",
)
def test_what_is_not_followed_is_refused_by_name(reference: Engine, item: Any, message: str) -> None:
    with pytest.raises(EmblemaError, match=message):
        asked(reference, item)


def test_settings_of_what_is_prefilled_are_refused(reference: Engine) -> None:
    chunk = reference.add(Image.new("RGB", (64, 64), "red"))
    with pytest.raises(EmblemaError, match="max_pixels is given for media that are prefilled"):
        asked(reference, {"type": "image", "image": chunk, "max_pixels": 100})
    piece = reference.encode(Image.new("RGB", (64, 64), "red"))[0]
    with pytest.raises(EmblemaError, match="detail is given for media that are encoded"):
        asked(reference, {"type": "image", "image": piece, "detail": "low"})


def test_media_as_parts_of_a_prompt(reference: Engine) -> None:
    picture = moving(1)[0]
    png = encoded(picture, "PNG")
    right = reference.session.read([Image.fromarray(picture), "what ?"]).tokens
    for part in (picture, io.BytesIO(png), np.moveaxis(picture, 2, 0)):
        assert reference.session.read([part, "what ?"]).tokens == right
    clip = [Image.fromarray(frame) for frame in moving(4)]
    assert (
        reference.session.read([clip, "what ?"]).tokens
        == reference.session.read([reference.add(clip), "what ?"]).tokens
    )
    with pytest.raises(PromptError, match="a part of the prompt is a bytes"):
        reference.session.read([png, "what ?"])


def test_all_pages_and_frames_are_in_the_prompt(reference: Engine) -> None:
    pages = reference.add(tiff(["red", "lime", "blue"]))
    assert len(pages.chunks) == 3
    assert asked(reference, {"type": "file", "file": tiff(["red", "lime", "blue"])}) == asked(
        reference, {"type": "file", "file": pages}
    )
