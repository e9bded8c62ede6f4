"""Tiny models whose weights are fixed by arithmetic: the ids of their chunks, and counts of what they link."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from emblema import Engine, Store, slid
from emblema.kv.chunk import Chunk
from emblema.session.requests import Prefill
from emblema.store.settings import StoreSettings
from tests.engine.engines import AT_ONCE
from tests.families import CASES, token
from tests.golden.pieces import SALT, numbers

CLIP = Path(__file__).parent / "data" / "clip.mkv"
FAMILIES = ("llava", "qwen2_5_vl", "kimi_k25")
"""Of one position axis; of three, with a clip as its processor takes it; with a latent cache."""

Json = Any


def tiny(name: str) -> tuple[Any, Any]:
    """A family's tiny model, its weights the same on every machine, and its processor."""
    model, processor = CASES[name].build(0)
    with torch.no_grad():
        for index, (path, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() >= 2:
                # A power of two, so that the products are exact.
                scale = 2.0 ** -round(float(numpy.log2(parameter[0].numel())) / 2)
                parameter.copy_(numbers(*parameter.shape, seed=index) * (0.5 if "embed" in path else scale))
            else:
                parameter.copy_(numbers(*parameter.shape, seed=index) / 16 + (1.0 if "norm" in path else 0.0))
    return model, processor


def engine(model: Any, processor: Any, store: Store, salt: bytes = b"") -> Engine:
    """An engine that forms patches at the first sighting, without canary, which would draw by chance."""
    return Engine(model, processor, store=store, policy=replace(AT_ONCE, canary=0), salt=salt)


def picture(number: int, width: int = 40, height: int = 30) -> Image.Image:
    """A picture with contents everywhere."""
    steps = numpy.arange(height * width * 3, dtype=numpy.int64)
    pixels = (steps * 7_919 // (64 + number) + steps // (3 * width) * 53 + number * 71) % 251
    return Image.fromarray(pixels.astype(numpy.uint8).reshape(height, width, 3))


def words(count: int, first: int = 0) -> list[int]:
    """Token ids of a stretch of text."""
    return [token(f"word{(first + index) % 60}") for index in range(count)]


def write_clip(path: Path) -> None:
    """Write a lossless clip of eight frames, two a second."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=2)
        stream.width, stream.height, stream.pix_fmt = 28, 28, "bgr0"
        for number in range(8):
            for packet in stream.encode(av.VideoFrame.from_image(picture(number, 28, 28))):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def model_identities(name: str) -> Json:
    """Digests of a tiny model and the ids of what is added to it."""
    model, processor = tiny(name)
    with Store(settings=StoreSettings(device="cpu")) as store:
        own, tenant = engine(model, processor, store), engine(model, processor, store, SALT)
        passage = "which land does the tent stand on ?"
        said: dict[str, Json] = {
            "weights": own.adapter.fingerprint,
            "adapter": own.adapter.version,
            "a picture": own.add(picture(1)).id,
            "a picture of a tenant": tenant.add(picture(1)).id,
            "a passage": own.add(text=passage).id,
            "a passage of a tenant": tenant.add(text=passage).id,
            "a picture, encoded alone": [[piece.id, piece.owner] for piece in own.encode(picture(2))],
        }
        if CASES[name].native_video:
            clips = {
                "a clip": own.add(CLIP, fps=2.0),
                "a clip at one frame a second": own.add(CLIP, fps=1.0, frames_per_segment=4),
            }
            for title, clip in clips.items():
                said[title] = [clip.id, *([chunk.id, chunk.tokens] for chunk in clip)]  # type: ignore[union-attr]
        return said


def counts(prefill: Prefill) -> Json:
    """All that is counted of a linked prompt, seconds aside."""
    usage, trace = prefill.usage, prefill.linked.trace
    said = {
        "lane": usage.lane,
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "computed": usage.computed_tokens,
        "patched": usage.patched_tokens,
        "forming": usage.forming_tokens,
        "recaptured": usage.recaptured_tokens,
        "linked": usage.linked_tokens,
        "absent": trace.absent,
        "row layers": trace.row_layers,
        "bytes read": trace.bytes_read,
        "patch bytes": trace.patch_bytes,
        "selected": [list(rows) for rows in trace.selected],
        "fallback": usage.fallback is not None,
        "sources": ["".join(map(str, row)) for row in prefill.plan.sources().tolist()],
    }
    return {name: value for name, value in said.items() if value not in ([], False) or type(value) is int and value}


Step = tuple[str, str, Callable[[list[Chunk]], list[Any]]]


def visible(chunks: list[Chunk]) -> list[Any]:
    return [words(3), chunks[0], words(2, 9), chunks[1], words(4, 20)]


def gone(chunks: list[Chunk]) -> list[Any]:
    return [words(3), slid(chunks[0]), words(2, 9), chunks[1], chunks[2], words(4, 20)]


def turned(chunks: list[Chunk]) -> list[Any]:
    return [words(3), chunks[1], words(2, 9), chunks[0], words(4, 20)]


def more(chunks: list[Chunk]) -> list[Any]:
    return [words(3), chunks[0], chunks[2], words(2, 9), chunks[1], words(4, 20)]


def brought(chunks: list[Chunk]) -> list[Any]:
    return [words(3), picture(11), words(4, 20)]


def leading(chunks: list[Chunk]) -> list[Any]:
    return [chunks[0], words(2, 9), chunks[1]]


SINGLE = (
    *("full", "blind", "patch-4", "patch-25%", "patch-4-deep", "orbit-4", "mpic-2", "full-reuse", "cacheblend-15"),
    *("epic-2", "vlcache-20"),
)


def sequences(name: str) -> dict[str, list[Step]]:
    """Prompts that are linked one after another on one store, by name: title, strategy, parts."""
    found: dict[str, list[Step]] = {
        strategy: [("two pictures", strategy, visible), ("again", strategy, visible)]
        for strategy in (SINGLE if name == "llava" else ("patch-25%", "cacheblend-15", "full-reuse"))
    }
    found["auto"] = [
        ("first use", "auto", visible),
        ("second use", "auto", visible),
        ("with another in front", "auto", more),
        ("in another order", "auto", turned),
    ]
    found["auto on kept prompts"] = [("first use", "auto", visible), ("kept", "auto", visible)]
    if name == "llava":
        for strategy in ("full", "patch-25%", "cacheblend-15", "full-reuse", "auto"):
            found[f"{strategy}, one slid"] = [("first use", strategy, gone), ("second use", strategy, gone)]
        for strategy in ("patch-25%", "full-reuse", "auto"):
            found[f"{strategy}, chunks at both ends"] = [("first use", strategy, leading)]
        found["prefix"] = [("first use", "prefix", visible), ("kept", "prefix", visible), ("more", "prefix", gone)]
        found["auto after patches"] = [("patched", "patch-25%", visible), ("taken", "auto", visible)]
        found["auto, a picture brought"] = [(title, "auto", brought) for title in ("first", "second", "third")]
    return found


def traces(name: str) -> Json:
    """By sequence and prompt, what was counted."""
    model, processor = tiny(name)
    said = {}
    with Store(settings=StoreSettings(device="cpu")) as first:
        shared = engine(model, processor, first)
        for title, steps in sequences(name).items():
            with Store(settings=StoreSettings(device="cpu")) as store:
                # `auto` learns nothing from other sequences.
                own = engine(model, processor, store) if title.startswith("auto") else shared.on(store)
                said[title] = dict(linked(own, steps, title))
    return said


def linked(own: Engine, steps: Iterable[Step], title: str) -> Iterator[tuple[str, Json]]:
    """The counts of each prompt of a sequence; kept prompts are forgotten unless it is about them."""
    chunks = [own.add(picture(number)) for number in range(3)]
    for name, strategy, parts in steps:
        prefill = own.prefill(parts(chunks), strategy, template=False)  # type: ignore[arg-type]
        yield name, counts(prefill)
        settle(own)
        if "kept" not in title and title != "prefix":
            own.forget_prompts()


def settle(own: Engine) -> None:
    """Wait until the patches of the answers so far are formed."""
    assert own.policy_runtime.patch_worker.settle(30)
