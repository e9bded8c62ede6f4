"""Fixed pieces of KV, fixed prompts and fixed look-ups, made by integer arithmetic so that every machine has the same.

This file, `observe.py`, `running.py` and `typed.py` alone know the package's own names.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk, ChunkKind, Encoded
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState, TextPart

MODEL = "0123456789abcdef" * 4
CREATED = 1_780_000_000.25
SALT = b"the tenant's secret"


def digest(number: int) -> str:
    """An id of 64 hexadecimal digits."""
    return f"{number:064x}"


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Multiples of 1/64 from -2 to 2, exact in every dtype of two bytes or more."""
    count = 1
    for length in shape:
        count *= length
    mixed = (torch.arange(count) * 2_654_435 + seed * 40_503 + 12_345) % 1_000_003 % 257 - 128
    return (mixed.float() / 64).reshape(shape).to(dtype)


def made_chunk(
    number: int,
    kind: ChunkKind,
    tokens: int,
    slots: tuple[tuple[int, int], tuple[int, int]],
    *,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    hidden: int = 6,
    axes: int = 1,
    deepstack: int = 0,
    grouped: bool = False,
) -> Chunk:
    """A chunk of which every tensor has contents; `slots` are heads and width of the keys and of the values."""
    line = torch.arange(tokens)
    visual = torch.zeros(tokens, dtype=torch.bool) if kind == "text" else (line > 0) & (line < tokens - 1)
    positions = torch.stack([line // (axis + 1) for axis in range(axes)])
    encoded = Encoded(
        token_ids=(line * 7 + number) % 151,
        embeds=numbers(tokens, hidden, seed=number, dtype=dtype),
        positions=positions,
        span=int(positions.max()) + 1,
        visual=visual,
        deepstack=tuple(
            numbers(int(visual.sum()), hidden, seed=number + 50 + layer, dtype=dtype) for layer in range(deepstack)
        ),
        groups=torch.where(visual, 0, -1) if grouped else torch.full((tokens,), -1),
    )
    rows = tuple(
        LayerRows(
            *(
                numbers(heads, tokens, width, seed=number + 10 * layer + slot, dtype=dtype)
                for slot, (heads, width) in enumerate(slots)
            )
        )
        for layer in range(layers)
    )
    return Chunk(digest(number), kind, MODEL, encoded, rows)


GROUPED = ((2, 4), (2, 4))
LATENT = ((1, 12), (1, 4))
STORED_CHUNKS: dict[str, tuple[Chunk, str]] = {
    "picture-float32": (made_chunk(1, "image", 7, GROUPED), "none"),
    "picture-bfloat16": (
        made_chunk(2, "image", 9, GROUPED, dtype=torch.bfloat16, axes=3, deepstack=2, grouped=True),
        "none",
    ),
    "picture-to-bf16": (made_chunk(3, "image", 7, GROUPED), "bf16"),
    "picture-to-fp8": (made_chunk(4, "image", 7, GROUPED), "fp8"),
    "picture-to-int8": (made_chunk(5, "image", 7, GROUPED, dtype=torch.float16), "int8"),
    "clip-segment": (made_chunk(6, "video", 8, GROUPED, dtype=torch.float16, axes=3), "none"),
    "page-latent": (made_chunk(7, "page", 6, LATENT, layers=3), "none"),
    "recording": (made_chunk(8, "audio", 5, GROUPED), "none"),
    "passage": (made_chunk(9, "text", 5, GROUPED), "none"),
}
"""Chunks as they are stored, with the compression of their rows."""


def factors(tokens: int, rank: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> Factors:
    return Factors(numbers(tokens, rank, seed=seed, dtype=dtype), numbers(rank, width, seed=seed + 1, dtype=dtype))


def made_patch(
    layers: tuple[bool, ...], tokens: int, rank: int, seed: int, dtype: torch.dtype = torch.float32
) -> Patch:
    """A patch on the layers that are true, its keys and values 8 numbers a row."""
    return Patch(
        tuple(
            LayerPatch(factors(tokens, rank, 8, seed + 4 * index, dtype), factors(tokens, rank, 8, seed + 99, dtype))
            if patched
            else None
            for index, patched in enumerate(layers)
        )
    )


def named_keys() -> dict[str, ArtifactKey]:
    """A key of every kind of piece that is made from a chunk."""
    chunk, first, second = digest(1), digest(2), digest(3)
    return {
        "patch": ArtifactKey(MODEL, chunk, (first, second)),
        "patch, other order": ArtifactKey(MODEL, chunk, (second, first)),
        "patch, nothing before": ArtifactKey(MODEL, chunk, ()),
        "patch, one twice before": ArtifactKey(MODEL, chunk, (first, second, first)),
        "orbit": ArtifactKey(MODEL, chunk, (second, first), ArtifactKind.ORBIT),
        "orbit, other order": ArtifactKey(MODEL, chunk, (first, second, first), ArtifactKind.ORBIT),
        "repair": ChunkPart(STORED_CHUNKS["picture-float32"][0]).repair_key,
    }


def stored_patches() -> dict[str, tuple[ArtifactKey, Patch]]:
    """A piece of every kind that is made from a chunk, as it is stored."""
    keys = named_keys()
    return {
        "patch": (keys["patch"], made_patch((True, True), 7, 3, 1)),
        "patch-deep": (keys["patch, other order"], made_patch((False, True), 7, 2, 2, torch.bfloat16)),
        "orbit": (keys["orbit"], made_patch((True, True), 7, 2, 3)),
    }


LAYERS = 4
LAYOUTS = tuple(LayerLayout((2, 8), (2, 8), None) for _ in range(LAYERS))
LETTERS = {"A": 1, "B": 2, "C": 3, "D": 4, "G": 5}
LENGTHS = {"A": 6, "B": 9, "C": 5, "D": 40, "G": 8}


def lettered(letter: str) -> Chunk:
    """A chunk of a prompt; G's rows attend each other both ways."""
    slots = ((2, 8), (2, 8))
    return made_chunk(LETTERS[letter], "image", LENGTHS[letter], slots, layers=LAYERS, hidden=32, grouped=letter == "G")


def text(count: int) -> TextPart:
    return TextPart(tuple(range(1, count + 1)))


def prompts() -> Iterator[tuple[str, Prompt]]:
    """The prompts that are planned, by name."""

    def part(letter: str, **marks: object) -> ChunkPart:
        return ChunkPart(lettered(letter), **marks)  # type: ignore[arg-type]

    laid: dict[str, list[Part]] = {
        "two pictures and text": [text(3), part("A"), text(2), part("B"), text(4)],
        "a picture in front": [part("A"), text(2), part("B"), text(4)],
        "neighbours": [text(3), part("A"), part("B"), part("C"), text(2)],
        "a slid part": [text(3), part("A", slid=True), text(2), part("B"), part("C"), text(4)],
        "a slid part in front": [part("A", slid=True), text(2), part("B"), text(1)],
        "a chunk three times": [text(1), part("A"), text(2), part("A"), part("A"), text(3)],
        "a chunk at the end": [text(3), part("A"), text(2), part("B")],
        "a long chunk": [text(3), part("A"), part("D"), text(2)],
        "rows that attend both ways": [text(3), part("A"), part("G"), text(2)],
        "text alone": [text(5)],
        "a window's parts": [
            text(3),
            part("A", state=RowState.WRITTEN),
            part("B", state=RowState.WRITTEN, kept_after_slide=True),
            part("C", state=RowState.MISSING),
            part("D"),
            text(2),
        ],
        "a window's repair": [
            text(3),
            part("A", state=RowState.WRITTEN, repair=made_patch((True,) * LAYERS, LENGTHS["A"], 2, 7)),
            part("B"),
            text(2),
        ],
    }
    for name, parts in laid.items():
        yield name, Prompt.of(parts, 1)


def patch_of_rank(rank: int) -> Patch:
    """A patch of some rank on every layer of a prompt's model."""
    empty = Factors(torch.zeros(6, rank), torch.zeros(rank, 16))
    return Patch((LayerPatch(empty, empty),) * LAYERS)
