"""Video and sound: native segments against the stock feature path and the stock video processor."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from emblema.errors import MediaError
from emblema.models.families import family_of
from emblema.models.families.base import Toolkit, VideoSegment
from emblema.models.families.qwen_vl import video_patches
from emblema.models.video_settings import VideoSettings
from tests import families as matrix

NATIVE = [name for name, case in matrix.CASES.items() if case.native_video]
PICTURES = [name for name, case in matrix.CASES.items() if not case.native_video]


def clip(count: int, width: int = 64, height: int = 48) -> list[Image.Image]:
    return [matrix.picture(width, height, seed=100 + index) for index in range(count)]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("count", [1, 4, 5])
def test_segment_equals_the_stock_forward(name: str, count: int) -> None:
    """Hidden states of a segment between text, with our positions, equal the model's own forward given the same."""
    item = matrix.loaded(name)
    prepared = item.preparer.video(clip(count), 0.5, start=3.0)
    segment = item.adapter.encode(prepared)
    assert segment.token_ids.shape[0] == segment.tokens
    assert int(segment.visual.sum()) == sum(grid.tokens for grid in prepared.grid)
    parts = [item.adapter.encode_text(matrix.words(4)), segment, item.adapter.encode_text(matrix.words(3, 1))]
    prompt = matrix.compose(item.adapter, parts)
    _, logits = matrix.run_all(item.adapter, prompt)
    kinds = torch.zeros_like(prompt.token_ids)
    kinds[prompt.visual] = 2
    arguments: dict[str, Any] = {**prepared.features, "position_ids": prompt.positions}
    if item.adapter.axes > 1:
        arguments["position_ids"] = prompt.positions[:, None]
    if item.adapter.axes > 1 and "omni" not in name:
        arguments["mm_token_type_ids"] = kinds[None]
    with torch.inference_mode():
        stock = item.model(input_ids=prompt.token_ids[None], use_cache=False, **arguments).logits[0]
    assert float((logits - stock).abs().max()) < 1e-4


def test_frames_behind_their_times_equal_the_stock_forward() -> None:
    """Gemma 4 embeds a frame as a picture, by its video processor's budget of tokens."""
    item = matrix.loaded("gemma4")
    prepared = item.preparer.video(clip(3), 40.0, start=3.0)
    parts = [item.adapter.encode_text(matrix.words(4)), item.adapter.encode(prepared)]
    prompt = matrix.compose(item.adapter, [*parts, item.adapter.encode_text(matrix.words(3, 1))])
    _, logits = matrix.run_all(item.adapter, prompt)
    video = int(item.model.config.video_token_id)
    assert int((prompt.token_ids == video).sum()) == int(prompt.visual.sum()) > 3
    arguments = {
        "pixel_values_videos": prepared.features["pixel_values"],
        "video_position_ids": prepared.features["image_position_ids"],
        "num_frames_per_video": torch.tensor([3]),
        "mm_token_type_ids": 2 * (prompt.token_ids == video).long()[None],
    }
    with torch.inference_mode():
        stock = item.model(input_ids=prompt.token_ids[None], use_cache=False, **arguments).logits[0]
    assert float((logits - stock).abs().max()) < 1e-4


def test_times_of_frames_are_minutes_and_seconds() -> None:
    item, texts = matrix.loaded("gemma4"), []
    kit = replace(item.preparer.kit, tokenizer=SimpleNamespace(), video=VideoSettings({"max_soft_tokens": 140}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toolkit, "text", lambda self, text: texts.append(text) or [7])
        whole = item.preparer.family.prepare_video(kit, VideoSegment(clip(3, 160, 160), 40.0, 3.0, 3))
    assert texts == ["00:03 ", " 00:43 ", " 01:23 "]
    frame = int((whole.token_ids == int(item.model.config.video_token_id)).sum()) // 3
    assert 100 < frame <= 140 and whole.token_ids.tolist().count(7) == 3
    picture = item.preparer.image(clip(1, 160, 160)[0])
    assert 50 < int((picture.token_ids == int(item.model.config.image_token_id)).sum()) <= 70


def test_patches_hold_successive_frames() -> None:
    """Each patch, temporal slice and pixel is where the encoder looks for it, checked pixel by pixel."""
    item = matrix.loaded("qwen2_5_vl")
    frames = clip(3, 42, 28)
    pixels, grid = video_patches(item.preparer.kit, frames)
    assert grid.tolist() == [[2, 4, 6]]
    images = item.bundle.image_processor
    mean, spread = torch.tensor(images.image_mean), torch.tensor(images.image_std)
    raw = [(torch.from_numpy(numpy.array(frame)).float() / 255 - mean) / spread for frame in [*frames, frames[-1]]]
    patches = pixels.reshape(2, 2, 3, 2, 2, 3, 2, 7, 7)
    places = ((0, 0, 0, 0, 0, 0), (0, 1, 2, 1, 0, 1), (1, 0, 1, 1, 1, 0), (1, 1, 0, 0, 1, 1))
    for step, down, across, inner, beside, depth in places:
        top, left = (2 * down + inner) * 7, (2 * across + beside) * 7
        block = raw[2 * step + depth][top : top + 7, left : left + 7].permute(2, 0, 1)
        assert torch.allclose(patches[step, down, across, inner, beside, :, depth], block, atol=1e-5)


def test_positions_follow_the_frame_rate() -> None:
    item = matrix.loaded("qwen2_5_vl")
    slow = item.preparer.video(clip(6), 1.0)
    fast = item.preparer.video(clip(6), 0.25)
    assert slow.grid[0].interval == pytest.approx(2 * 2 * 1.0)
    assert fast.grid[0].interval == pytest.approx(2 * 2 * 0.25)
    assert item.adapter.encode(slow).span > item.adapter.encode(fast).span


def test_time_stamps_are_written_for_qwen3_vl_and_glm() -> None:
    item = matrix.loaded("qwen3_vl")
    first, later = (item.preparer.video(clip(4), 0.5, start=start) for start in (0.0, 9.0))
    assert len(first.grid) == 2
    assert first.token_ids.shape == later.token_ids.shape
    assert matrix.loaded("glm4v").preparer.video(clip(4), 0.5).grid[1].start > 0


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("glm4v", None, ["3", "4"]),
        ("glm4v_moe", "Glm4vVideoProcessor", ["3", "4"]),
        ("glm4v_moe", "Glm46VVideoProcessor", ["3.5 seconds", "4.5 seconds"]),
        ("glm46v", None, ["3.5 seconds", "4.5 seconds"]),
        ("glm_ocr", None, ["3.5 seconds", "4.5 seconds"]),
    ],
)
def test_glm_writes_times_as_its_processors_do(name: str, kind: str | None, texts: list[str]) -> None:
    kit = matrix.loaded(name).preparer.kit
    if kind is not None:
        kit = replace(kit, video=VideoSettings({"video_processor_type": kind}))
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toolkit, "text", lambda self, text: written.append(text) or [7])
        family_of(kit.config).prepare_video(kit, VideoSegment(clip(4), 0.5, 3.5, 4))
    assert written == texts


@pytest.mark.parametrize("name", PICTURES)
def test_frames_as_pictures(name: str) -> None:
    item = matrix.loaded(name)
    frames = clip(3)
    prepared = item.preparer.video(frames, 0.5)
    segment = item.adapter.encode(prepared)
    assert prepared.kind == "video"
    single = item.adapter.encode(item.preparer.video(frames[1:2], 0.5))
    assert segment.tokens == 3 * single.tokens
    middle = segment.embeds[single.tokens : 2 * single.tokens]
    assert torch.allclose(middle, single.embeds, atol=1e-4)


@pytest.mark.parametrize("name", NATIVE[:1] + PICTURES[:1])
def test_a_segment_without_frames_is_refused(name: str) -> None:
    with pytest.raises(MediaError, match="at least one frame"):
        matrix.loaded(name).preparer.video([], 1.0)


def test_frames_of_different_sizes_are_refused() -> None:
    with pytest.raises(MediaError, match="one size"):
        matrix.loaded("qwen2_5_vl").preparer.video([matrix.picture(40, 30), matrix.picture(30, 40)], 1.0)


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni_moe"])
@pytest.mark.parametrize("seconds", [0.4, 1.1, 1.9])
def test_sound_equals_the_stock_forward(name: str, seconds: float) -> None:
    """Text, a picture, a sound, text: every row against the model's own forward."""
    item = matrix.loaded(name)
    samples = numpy.random.default_rng(0).standard_normal(int(1600 * seconds)).astype(numpy.float32)
    sound = item.preparer.audio(samples, 1600)
    picture = matrix.picture(40, 30)
    parts = [
        item.adapter.encode_text(matrix.words(4)),
        item.adapter.encode(item.preparer.image(picture)),
        item.adapter.encode_text(matrix.words(2, 1)),
        item.adapter.encode(sound),
        item.adapter.encode_text(matrix.words(3, 2)),
    ]
    prompt = matrix.compose(item.adapter, parts)
    _, logits = matrix.run_all(item.adapter, prompt)
    arguments = {**item.case.stock(item.bundle, item.model.config, [picture], prompt.token_ids), **sound.features}
    with torch.inference_mode():
        stock = item.model(input_ids=prompt.token_ids[None], use_cache=False, **arguments).logits[0]
    assert float((logits - stock).abs().max()) < 1e-4


def test_sound_at_another_rate_is_refused() -> None:
    with pytest.raises(MediaError, match="1600 Hz"):
        matrix.loaded("qwen2_5_omni").preparer.audio(numpy.zeros(800, dtype=numpy.float32), 8000)


def test_sound_for_a_family_without_ears_is_refused() -> None:
    with pytest.raises(MediaError, match="no audio"):
        matrix.loaded("llava").preparer.audio(numpy.zeros(800, dtype=numpy.float32), 16000)


def test_segment_equals_the_stock_video_processor() -> None:
    matrix.require_torchvision()
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    frames = clip(5, 70, 56)
    pixels, grid = video_patches(matrix.loaded("qwen2_5_vl").preparer.kit, frames)
    stock = Qwen2VLVideoProcessor(
        patch_size=7, merge_size=2, temporal_patch_size=2, do_sample_frames=False,
        size={"shortest_edge": 4 * 196, "longest_edge": 2400 * 196},
    )(videos=[[numpy.array(frame) for frame in frames]], return_tensors="pt")  # fmt: skip
    assert torch.equal(grid, stock["video_grid_thw"])
    assert torch.allclose(pixels, stock["pixel_values_videos"], atol=1e-5)


@pytest.mark.parametrize("size", [(70, 56), (75, 33), (3, 2), (600, 40)])
def test_kimi_patches_equal_the_stock_image_processor(size: tuple[int, int]) -> None:
    matrix.require_torchvision()
    from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor

    from emblema.models.families.kimi import patches

    picture = matrix.picture(*size)
    stock = Kimi_K25ImageProcessor(patch_size=7)(images=[picture], return_tensors="pt")
    pixels, grid = patches(matrix.loaded("kimi_k25").model.config, picture)
    assert torch.equal(grid, stock["image_grid_thw"])
    assert torch.allclose(pixels, stock["pixel_values"].reshape(pixels.shape), atol=1e-5)
