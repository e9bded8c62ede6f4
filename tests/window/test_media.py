"""Parts that are no single picture: a clip and a document move as one, sound and text passages are chunks too."""

from pathlib import Path

import av
import numpy
import pytest
from PIL import Image

from emblema import Engine
from emblema.kv.chunk import Chunk, Clip
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.window.staleness import unseen
from tests.engine.engines import engine, largest_error
from tests.families import CASES, words

QUESTION = tuple(words(4, 9).tolist())
EXACT = Auto(Policy(max_kl=0, canary=0, forming=False))


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seconds in which every second is another."""
    path = tmp_path_factory.mktemp("video") / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = 48, 48, "yuv420p"
        for second in range(8):
            pixels = numpy.full((48, 48, 3), 30 * second, dtype=numpy.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


QUICK = ("llava", "qwen2_5_vl", "qwen3_vl", "gemma3", "kimi_k25")
"""One family of each kind of positions and rows; the others are slow tests."""
SEEN = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name, case in CASES.items()
    if not case.audio
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_the_segments_of_a_clip_move_together(name: str, film: Path) -> None:
    own = Engine(engine(name).adapter.model, engine(name).processor)
    window = own.window(template=False, cascade=unseen)
    text = window.append([70, 71, 72])
    clip = window.append(film, fps=1, frames_per_segment=4)
    assert (clip.kind, window.log[-1].encoder_runs) == ("video", 2)
    asked = window.prefill(QUESTION)
    made = own.add(film, fps=1, frames_per_segment=4)
    assert isinstance(made, Clip) and made.tokens == clip.tokens
    full = own.prefill([[70, 71, 72], made, list(QUESTION)], "full", template=False)
    assert largest_error(asked.logits, full.logits) < 1e-4
    window.reorder([clip, text])
    moved = window.prefill(QUESTION, EXACT)
    full = own.prefill([made, [70, 71, 72], list(QUESTION)], "full", template=False)
    assert largest_error(moved.logits, full.logits) < 1e-4
    window.evict(clip)
    assert window.tokens == text.tokens
    window.recall(clip)
    back = window.prefill(QUESTION, EXACT)
    full = own.prefill([[70, 71, 72], made, list(QUESTION)], "full", template=False)
    assert back.trace.computed == len(QUESTION) + clip.tokens
    if name == "qwen2_5_vl":
        # The text kept what it absorbed in front. (Others' layers may not reach so far back.)
        assert largest_error(back.logits, full.logits) > 1e-4
    window.refresh()
    assert largest_error(window.prefill(QUESTION, EXACT).logits, full.logits) < 1e-4


def test_a_passage_and_what_was_encoded_or_added_before_are_parts(reference: Engine) -> None:
    picture = Image.fromarray(numpy.arange(64 * 64 * 3, dtype=numpy.uint8).reshape(64, 64, 3))
    passage = reference.add(text="the tent stands on sand")
    encoded = reference.encode(picture)
    window = reference.window()
    for part in (passage, encoded, encoded[0]):
        window.append(part)
    assert [part.kind for part in window.parts] == ["text", "image", "image"]
    assert sum(entry.encoder_runs for entry in window.log) == 0
    chunk = reference.add(picture)
    assert isinstance(chunk, Chunk)
    window.append(chunk)
    full = reference.prefill([passage, chunk, chunk, chunk, "Which land?"], "full")
    asked = window.prefill("Which land?", EXACT)
    assert asked.token_ids.tolist() == full.token_ids.tolist()
    assert largest_error(asked.logits, full.logits) < 1e-4
