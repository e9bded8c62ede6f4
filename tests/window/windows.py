"""Windows of pictures on a small random model."""

from typing import Any

from torch import Tensor

from emblema import Engine
from emblema.window.parts import PartHandle
from emblema.window.window import Window
from tests.families import loaded, picture, words

QUESTION = tuple(words(4, 9).tolist())


def shown(seed: int) -> Any:
    return picture(*loaded("qwen2_5_vl").case.sizes[0], seed=2000 + seed)


def filled(made: Engine, *seeds: int, **options: Any) -> tuple[Window, list[PartHandle]]:
    window = made.window(template=False, **options)
    return window, [window.append(shown(seed)) for seed in seeds]


def settled(window: Window) -> Tensor:
    """The logits once every part has rows: the same each time from then on, to the bit."""
    window.prefill(QUESTION)
    logits: Tensor = window.prefill(QUESTION).logits
    return logits


def row_bytes(made: Engine) -> int:
    return sum(layout.features for layout in made.adapter.layouts) * made.adapter.dtype.itemsize
