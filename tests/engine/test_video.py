"""Video through the engine: segments are chunks; only those that say when they happen are bound to their time."""

from dataclasses import replace
from pathlib import Path

import av
import numpy
import pytest
import torch

from emblema import Engine
from emblema.kv.chunk import Clip
from tests.engine.engines import engine, largest_error
from tests.families import CASES, words

VIDEO = [name for name, case in CASES.items() if not case.audio]


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seconds in which nothing changes."""
    path = tmp_path_factory.mktemp("video") / "still.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = 48, 48, "yuv420p"
        frame = av.VideoFrame.from_ndarray(numpy.full((48, 48, 3), 120, dtype=numpy.uint8), format="rgb24")
        for _ in range(8):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("name", "distinct"), [("qwen2_5_vl", 1), ("llava", 1), ("qwen3_vl", 4), ("glm4v", 4)])
def test_a_segment_is_bound_to_its_time_only_if_it_says_it(name: str, distinct: int, still: Path) -> None:
    clip = engine(name).add(still, fps=1)
    assert isinstance(clip, Clip) and len(clip) == 4 and clip.kind == "video"
    assert len({chunk.id for chunk in clip}) == distinct


@pytest.mark.slow
@pytest.mark.parametrize("name", VIDEO)
def test_segments_link_like_pictures(name: str, still: Path) -> None:
    own = Engine(engine(name).adapter.model, engine(name).processor)
    # No patch corrects a map of a state: only rows give the full prefill back.
    own.adapter.layouts = tuple(replace(layout, mapped_from=None) for layout in own.adapter.layouts)
    clip = own.add(still, fps=1, frames_per_segment=4)
    assert isinstance(clip, Clip) and len(clip) == 2
    prompt = [words(3).tolist(), clip, words(4, 1).tolist()]
    full, patched = (own.prefill(prompt, name, template=False) for name in ("full", "patch-60000"))
    assert largest_error(patched.logits, full.logits) <= 1e-3
    assert patched.usage.cached_tokens == clip.tokens
    positions = full.prompt.positions
    after = full.prompt.next_position - 4 + torch.arange(4)
    assert torch.equal(positions[:, -4:], after.expand_as(positions[:, -4:]))
    assert int(positions[:, :-4].max()) < int(positions[:, -4:].min()), "text after a video is past all of it"


def test_the_frame_rate_is_part_of_a_segment(still: Path) -> None:
    own = engine("qwen2_5_vl")
    slow, fast = own.add(still, fps=0.5), own.add(still, fps=2)
    assert isinstance(slow, Clip) and isinstance(fast, Clip)
    assert len(slow) == 2 and len(fast) == 8 and slow[0].id != fast[0].id
