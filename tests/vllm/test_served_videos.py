"""Clips inside vLLM: captured, moved and linked like pictures, as the embedded engine links the same chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.models.families.base import tokens
from emblema.served.chunk_stubs import ChunkStubs, build_prompt
from emblema.served.requests import MediaItem, ServedRequest
from emblema.session.chunk_builder import PendingChunk
from tests.families import picture
from tests.vllm.requests import SPEC
from tests.vllm.test_served_exact import TOLERANCE, error, load

FRAMES = {"first": (6, 2.0), "second": (4, 0.8)}
"""Frames of each clip, and how many of them a second has: grid steps of one second, and of two and a half."""


@dataclass(frozen=True)
class Clip:
    """Frames of one size, evenly spaced."""

    frames: tuple[Any, ...]
    rate: float

    @property
    def shown(self) -> tuple[Any, dict[str, Any]]:
        """What vLLM is given."""
        count = len(self.frames)
        told = {
            "fps": self.rate, "duration": count / self.rate, "total_num_frames": count,
            "frames_indices": list(range(count)), "video_backend": "opencv", "do_sample_frames": False,
        }  # fmt: skip
        return numpy.stack([numpy.asarray(frame) for frame in self.frames]), told


@dataclass
class Videos:
    """A prompt with a clip, a picture and another clip, in vLLM and in the embedded engine.

    Attributes:
        stock: what vLLM says without the plugin.
        apart: how far that is from transformers.
    """

    subject: Any
    served: Any
    engine: Engine
    clips: dict[str, Clip]
    stock: Tensor
    apart: float


def clip(name: str) -> Clip:
    count, rate = FRAMES[name]
    return Clip(tuple(picture(112, 84, seed=40 * len(name) + index) for index in range(count)), rate)


def ask(served: Any, subject: Any, shown: Sequence[Any], options: dict[str, Any] | None = None, lead: int = 7) -> Any:
    """Ask about clips and pictures with text before, between and after."""
    ids = list(subject.text(lead, 1))
    for index, item in enumerate(shown):
        place = _video_token(subject) if isinstance(item, Clip) else subject.image
        ids += [*subject.before, place, *subject.after, *subject.text(5 + index, 2 + index)]
    media = {
        "video": [item.shown for item in shown if isinstance(item, Clip)],
        "image": [item for item in shown if not isinstance(item, Clip)],
    }
    prompt = {"prompt_token_ids": ids, "multi_modal_data": {kind: items for kind, items in media.items() if items}}
    (output,) = served.llm.generate([prompt], served.params(options), use_tqdm=False)
    return served._answer(output)


def _video_token(subject: Any) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(subject.folder).video_token_id)


def reference(engine: Engine, subject: Any, shown: Sequence[Any], strategy: str, lead: int = 7) -> Tensor:
    """What the embedded engine says of the same prompt."""
    parts: list[Any] = [subject.text(lead, 1)]
    for index, item in enumerate(shown):
        parts += [_chunk(engine, subject, item), subject.text(5 + index, 2 + index)]
    return torch.log_softmax(engine.prefill(parts, strategy, template=False).logits, -1)


def _chunk(engine: Engine, subject: Any, item: Any) -> Any:
    if not isinstance(item, Clip):
        return engine.add(item)
    builder = engine.session.chunk_builder
    prepared = builder.preparer.video(item.frames, 1 / item.rate)
    if subject.name == "qwen3-vl":
        # Before the first time stamp and after the last step vLLM leaves the prompt's own markers.
        ids = tokens([*subject.before, *prepared.token_ids.tolist(), *subject.after])
        grids = tuple(replace(grid, start=grid.start + len(subject.before)) for grid in prepared.grid)
        prepared = replace(prepared, token_ids=ids, grid=grids)
    id = f"{len(item.frames):064x}"
    return builder.build(PendingChunk((id, id), "video", lambda: builder.adapter.encode(prepared)))


@pytest.fixture(scope="module", params=["qwen2.5-vl", pytest.param("qwen3-vl", marks=pytest.mark.nightly)])
def videos(request: Any, bench: Any, subjects: Any, tmp_path_factory: pytest.TempPathFactory) -> Videos:
    subject, clips = subjects(request.param), {name: clip(name) for name in FRAMES}
    shown = (clips["first"], picture(168, 224, seed=5), clips["second"])
    limits = {"limit_mm_per_prompt": {"image": 4, "video": 4}}
    stock = ask(bench.serve(subject.folder, None, subject.vocabulary, **limits), subject, shown).logits
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary, **limits)
    engine = load(subject, torch.float32)
    apart = float((stock - reference(engine, subject, shown, "full")).abs().max())
    return Videos(subject, served, engine, clips, stock, apart)


def test_linked_clips_agree(videos: Videos, record_property: Any) -> None:
    """In one order for a start, then in another with other text before: rows move."""
    subject, served, clips = videos.subject, videos.served, videos.clips
    shown = (clips["first"], picture(168, 224, seed=5), clips["second"])
    assert videos.apart <= TOLERANCE
    assert error(ask(served, subject, shown, {"strategy": "full"}), videos.stock) <= TOLERANCE
    served.settle()
    for order, lead in ((shown, 7), (shown[::-1], 12)):
        for strategy in ("blind", "mpic-4", "mpic-32"):
            served.forget_prefixes()
            answer = ask(served, subject, order, {"strategy": strategy}, lead)
            wanted = reference(videos.engine, subject, order, strategy, lead)
            record_property(f"{subject.name} {strategy} {lead}", error(answer, wanted))
            assert error(answer, wanted) <= videos.apart + TOLERANCE, (strategy, lead)
            assert answer.report["linked_tokens"] > 0
            if strategy == "blind":
                assert answer.report["linked_tokens"] == answer.report["media_tokens"]
                full = reference(videos.engine, subject, order, "full", lead)
                assert error(answer, full) > 300 * TOLERANCE
    served.forget_prefixes()
    assert error(ask(served, subject, shown, {"strategy": "full"}), videos.stock) <= TOLERANCE


def test_a_kept_clip_is_not_encoded_again(videos: Videos, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, served, shown = videos.subject, videos.served, (videos.clips["first"], videos.clips["second"])
    plain = ask(served, subject, shown, {"strategy": "full"})
    served.settle()
    runner = served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    stock, calls = runner.model.embed_multimodal, list[int]()

    def counted(**given: Any) -> Any:
        calls.append(1)
        return stock(**given)

    monkeypatch.setattr(runner.model, "embed_multimodal", counted)
    for strategy in ("full", "mpic-4"):
        served.forget_prefixes()
        served.llm.llm_engine.reset_encoder_cache()
        answer = ask(served, subject, shown, {"strategy": strategy})
        assert calls == [], strategy
        if strategy == "full":
            assert error(answer, plain.logits) <= TOLERANCE
    served.forget_prefixes()
    served.llm.llm_engine.reset_encoder_cache()
    ask(served, subject, (replace(shown[0], rate=7.0),), {"strategy": "full", "capture": False})
    assert calls, "one that is not known is encoded"


def test_the_same_frames_at_another_pace_are_another_clip(videos: Videos) -> None:
    subject, served = videos.subject, videos.served
    quick = videos.clips["first"]
    slow = replace(quick, rate=quick.rate / 2)
    ask(served, subject, (quick,), {"strategy": "full"})
    served.settle()
    served.forget_prefixes()
    assert ask(served, subject, (quick,), {"strategy": "blind"}).report["linked_tokens"] > 0
    served.forget_prefixes()
    other = ask(served, subject, (slow,), {"strategy": "blind", "capture": False})
    assert other.report["linked_tokens"] == 0 and not other.report["stored"]
    served.settle()


@pytest.mark.parametrize("seconds", [1.0, 2.5, 0.7, 1 / 3, 0.04])
@pytest.mark.parametrize("rate", [None, 2.0, 25])
def test_a_clip_s_positions_are_vllm_s(seconds: float, rate: float | None) -> None:
    """Rounding included: what is given as float32 is rounded down."""
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration as Model

    written = torch.tensor(seconds)
    spec = replace(SPEC, axes=3, merge=2, markers=((1,), (2,)), tokens_per_second=rate or 1.0)
    item = MediaItem(0, "video", "a clip", 4, 40 * 2 * 3, (40, 4, 6), "shown", float(written))
    ids = [3, 3, 3, 1, *[9] * item.tokens, 2, 3, 3]
    ((segment, chunk),) = build_prompt(ServedRequest(ids, (item,)), ChunkStubs(spec)).chunk_segments
    vision = SimpleNamespace(spatial_merge_size=2, **({} if rate is None else {"tokens_per_second": rate}))
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    model.iter_mm_grid_thw = partial(Model.iter_mm_grid_thw, model)
    data = {"video_grid_thw": SimpleNamespace(data=torch.tensor([40, 4, 6])),
            "second_per_grid_ts": SimpleNamespace(data=written)}  # fmt: skip
    place = SimpleNamespace(offset=4, length=item.tokens)
    feature = SimpleNamespace(mm_position=place, modality="video", data=data)
    wanted, _ = Model.get_mrope_input_positions(model, ids, [feature])
    assert torch.equal(wanted[:, segment.start : segment.stop] - 3, chunk.encoded.positions)
    assert wanted[:, segment.stop].tolist() == [3 + chunk.encoded.span] * 3
