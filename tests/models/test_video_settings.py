"""Frames are sized as the checkpoint's video processor says; transformers' own rules are the measure."""

import ast
import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from emblema.models.load import Bundle, load_parts
from emblema.models.prepare import Preparer
from emblema.models.video_settings import VideoSettings, video_settings_of
from tests import families as matrix

TOKEN = 14 * 14


def stock_rule(module: str) -> Callable[..., tuple[int, int]]:
    """Return `smart_resize` of one of transformers' modules, which needs torchvision to be imported as a whole."""
    found = find_spec("transformers")
    assert found is not None and found.origin is not None
    path = Path(found.origin).parent / "models" / module / f"video_processing_{module}.py"
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    space: dict[str, Any] = {"math": math}
    wanted = [node for node in functions if node.name == "smart_resize"]
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    rule: Callable[..., tuple[int, int]] = space["smart_resize"]
    return rule


SIDES = st.integers(4, 3000)


@given(SIDES, SIDES, st.integers(1, 40), st.integers(1, 500), st.integers(1, 3000))
def test_frames_have_the_size_of_transformers_rule(width: int, height: int, frames: int, least: int, most: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    least, most = least * 784, max(least, most) * 784
    size = {"shortest_edge": least, "longest_edge": most}
    alone = VideoSettings({"video_processor_type": "Qwen2VLVideoProcessor", "size": size})
    right = stock_rule("qwen2_vl")(height, width, factor=28, min_pixels=least, max_pixels=most)
    assert alone.frame_size(width, height, frames, 28, 2) == right[::-1]
    for module, name in (("qwen3_vl", "Qwen3VLVideoProcessor"), ("glm4v", "Glm4vVideoProcessor")):
        together = VideoSettings({"video_processor_type": name, "size": size})
        right = stock_rule(module)(max(frames, 2), height, width, 2, 28, least, most)
        assert together.frame_size(width, height, frames, 28, 2) == right[::-1]


def test_older_names_of_the_limits_go_first_and_classes_have_defaults() -> None:
    old = VideoSettings({"video_processor_type": "Qwen2VLVideoProcessor", "min_pixels": 784, "max_pixels": 784 * 4})
    assert old.frame_size(1920, 1080, 2, 28, 2) == (56, 28)
    plain = VideoSettings({"video_processor_type": "Qwen2VLVideoProcessor"})
    width, height = plain.frame_size(1920, 1080, 2, 28, 2)
    assert 700 < width * height / 784 <= 768


def checkpoint(
    folder: Path, name: str, pictures: dict[str, int], clips: dict[str, int], kind: str, nested: bool
) -> Any:
    """Write a checkpoint's processor as transformers 4 (a file for clips) or 5 (a section) does, and load its parts."""
    item = matrix.loaded(name)
    matrix.tokenizer().save_pretrained(folder)
    item.model.config.save_pretrained(folder)
    item.bundle.image_processor.save_pretrained(folder)
    path = folder / "preprocessor_config.json"
    values = json.loads(path.read_text()) | {"size": pictures}
    path.write_text(json.dumps(values))
    video = {"size": clips, "video_processor_type": kind, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    if nested:
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": values, "video_processor": video}))
    else:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return load_parts(str(folder)), item


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen2_5_vl", "Qwen2VLVideoProcessor"),
        ("qwen2_5_omni", "Qwen2VLVideoProcessor"),
        ("qwen3_vl", "Qwen3VLVideoProcessor"),
        ("glm4v", "Glm4vVideoProcessor"),
    ],
)
def test_a_checkpoints_clips_follow_its_video_processor(tmp_path: Path, name: str, kind: str, nested: bool) -> None:
    pictures = {"shortest_edge": TOKEN, "longest_edge": 1_000 * TOKEN}
    clips = {"shortest_edge": 4 * TOKEN, "longest_edge": 16 * TOKEN}
    bundle, item = checkpoint(tmp_path, name, pictures, clips, kind, nested)
    preparer = Preparer(bundle, item.model.config)
    frames = [Image.new("RGB", (224, 168), (40 * index, 0, 0)) for index in range(4)]
    factor = int(item.model.config.vision_config.patch_size) * preparer.family.merge(preparer.kit)
    for count in (4, 40):
        size = VideoSettings({"video_processor_type": kind, "size": clips}).frame_size(224, 168, count, factor, 2)
        prepared = preparer.video(frames, 0.5, clip_frames=count)
        assert sum(grid.tokens for grid in prepared.grid) == 2 * size[0] * size[1] // factor**2
    # A red of 0 is -2 by the video processor's mean and spread.
    assert float(preparer.video(frames[:2], 0.5).features["pixel_values_videos"].min()) == pytest.approx(-2)
    assert preparer.image(frames[0]).grid[0].tokens == round(224 / factor) * round(168 / factor)


def test_without_a_video_processor_clips_are_fed_as_pictures() -> None:
    preparer = matrix.loaded("qwen2_5_vl").preparer
    assert preparer.kit.video is None and preparer.video_options(64, 48, 8) == {}


@pytest.mark.parametrize("name", [name for name, case in matrix.CASES.items() if not case.native_video])
def test_frames_that_are_pictures_follow_it_too(name: str) -> None:
    """Mean and spread of the video processor are those of frames; pictures keep theirs."""
    item = matrix.loaded(name)
    if item.bundle.image_processor is None or not hasattr(item.bundle.image_processor, "image_mean"):
        pytest.skip("its pictures are prepared without an image processor")
    settings = VideoSettings({"image_mean": [0.0] * 3, "image_std": [0.1] * 3})
    bundle = Bundle(item.bundle.tokenizer, item.bundle.image_processor, video_settings=settings)
    preparer = Preparer(bundle, item.model.config)
    frame = Image.new("RGB", (56, 56), "white")
    values = [preparer.video([frame], 1.0).features, preparer.image(frame).features]
    highest = [float(features["pixel_values"].max()) for features in values]
    assert highest[0] == pytest.approx(10, abs=0.01) and highest[1] < 9


def test_frames_of_smolvlm_have_the_size_of_its_sampling() -> None:
    item = matrix.loaded("smolvlm") if "smolvlm" in matrix.CASES else matrix.loaded("idefics3")
    sampled = {"size": {"longest_edge": 64}, "video_sampling": {"fps": 1, "video_size": {"longest_edge": 32}}}
    assert VideoSettings(sampled).options(item.bundle.image_processor)["size"] == {"longest_edge": 32}


def test_a_full_processors_video_part_is_read() -> None:
    class Part:
        def to_dict(self) -> dict[str, Any]:
            return {"size": {"shortest_edge": 784, "longest_edge": 1568}, "do_resize": True}

    class Processor:
        video_processor = Part()

    found = video_settings_of(Processor())
    assert found is not None and found.kind == "Part" and found.to_json()["size"]["longest_edge"] == 1568
    assert video_settings_of(object()) is None
