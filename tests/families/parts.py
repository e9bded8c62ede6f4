"""What the models of the matrix are made of: a vocabulary, pictures, words, weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

SPECIALS = [
    "<pad>", "<unk>", "<s>", "</s>", "<image>", "<video>", "<audio>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|audio_start|>", "<|audio_end|>", "<|audio_bos|>", "<|audio_eos|>", "<|audio_pad|>",
    "<img>", "</img>", "<IMG_CONTEXT>", "<fake_token_around_image>", "<global-img>",
    *[f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)],
    "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>",
    "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|media_start|>",
    "<image_placeholder>", "<|im_start|>", "<|im_end|>",
]  # fmt: skip
WORDS = ["which", "land", "does", "the", "tent", "stand", "on", "image", "video", "seconds", "and"]
WORDS += ["\n", "\n\n", ".", "?", ":"]
WORDS += [str(number) for number in range(10)] + [f"word{number}" for number in range(60)]
MARKERS = [
    "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL",
    *[f"TILE_{tile}" for tile in range(1, 5)],
    "<IMG_START>", "<IMG_END>", "<IMG_ATOM>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<vision>", "</vision>",
    "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
    *[f"<|img_row_{row}_col_{column}|>" for row in range(1, 3) for column in range(1, 3)],
]  # fmt: skip
"""Special tokens that no random text has."""
VOCABULARY = {token: index for index, token in enumerate([*SPECIALS, *WORDS, *MARKERS])}
VOCAB = 192


@dataclass
class Bundle:
    """What an engine is given in place of a full processor."""

    tokenizer: Any
    image_processor: Any = None
    feature_extractor: Any = None
    chat_template: str | None = None


@dataclass(frozen=True)
class Case:
    """One family of the matrix.

    Attributes:
        name: its name in test ids.
        build: seed to (model in eval mode, bundle).
        stock: prepared pieces, the pictures and the joint token ids to the stock forward's keyword arguments.
        sizes: sizes of the two pictures of the joint prompt.
        native_video, audio: what else it takes.
        relocatable: whether the adapter should accept it.
        marker: seed-independent notes.
    """

    name: str
    build: Callable[[int], tuple[nn.Module, Bundle]]
    stock: Callable[[Bundle, Any, Sequence[Image.Image], Tensor], dict[str, Tensor]]
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((40, 30), (28, 50))
    native_video: bool = False
    audio: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


@cache
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.add_special_tokens({"additional_special_tokens": [*SPECIALS[4:], *MARKERS]})
    return fast


def token(name: str) -> int:
    return VOCABULARY[name]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture whose regions differ, so that its tokens do."""
    rng = numpy.random.default_rng(seed)
    coarse = rng.integers(0, 255, (max(2, height // 6), max(2, width // 6), 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST)


def words(count: int, seed: int = 0) -> Tensor:
    """Random text token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(token("word0"), len(SPECIALS) + len(WORDS), (count,), generator=generator)


def sharpen(model: nn.Module, seed: int, gain: float = 1.6) -> nn.Module:
    """Random weights under which attention matters: outputs depend strongly on what is attended, no layer dominates."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                fan = parameter.shape[-1] if parameter.dim() == 2 else parameter[0].numel()
                noise = torch.randn(parameter.shape, generator=generator)
                if "embed" in name:
                    parameter.copy_(noise * 0.5)
                elif parameter.dim() == 3:
                    parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
                else:
                    parameter.copy_(noise * gain / fan**0.5)
            elif "bias" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif "norm" not in name and "layer_scale" not in name and "lambda" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()


def typed(ids: Tensor, image: int | None, video: int | None = None) -> Tensor:
    """The processors' mm_token_type_ids [1, tokens]: 0 text, 1 image, 2 video."""
    kinds = torch.zeros_like(ids)
    if image is not None:
        kinds[ids == image] = 1
    if video is not None:
        kinds[ids == video] = 2
    return kinds[None]
