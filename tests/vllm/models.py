"""Tiny random models that vLLM can serve (heads of 32), saved with the processors of the bundled ones; and prompts."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.models import model_folder
from tests.families import picture, sharpen

TEXT = {
    "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
LATENTS = {
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "head_dim": 64, "num_key_value_heads": 4, "first_k_dense_replace": 3, "n_routed_experts": 4, "n_group": 1,
    "n_shared_experts": 1, "topk_group": 1, "moe_intermediate_size": 64, "num_experts_per_tok": 1,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 2048,
        "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    },
}  # fmt: skip
"""MLA in the sizes that vLLM's kernel for CPUs takes, without experts, with the rotation of the published models."""
PROCESSING = ("chat_template.jinja", "generation_config.json", "preprocessor_config.json", "tokenizer.json")
PROCESSING += ("tokenizer_config.json", "video_preprocessor_config.json")
SIZES = ((168, 224), (224, 196), (252, 140), (196, 196), (140, 252), (224, 168), (196, 224), (168, 196))


@dataclass(frozen=True)
class Subject:
    """A model in a folder.

    Attributes:
        name: of its family.
        folder: where it lies.
        vocabulary: size of its vocabulary.
        before, image, after: token ids of a picture in a prompt, as vLLM is given them.
        words: ids that text may have.
    """

    name: str
    folder: Path
    vocabulary: int
    before: tuple[int, ...]
    image: int
    after: tuple[int, ...]
    words: range

    def text(self, count: int, seed: int) -> list[int]:
        """Random text."""
        generator = torch.Generator().manual_seed(seed)
        return (torch.randint(len(self.words), (count,), generator=generator) + self.words.start).tolist()

    @property
    def opening(self) -> list[int]:
        """What the chat template begins a prompt with, which pictures are captured after."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return list(tokenizer("<|im_start|>user\n", add_special_tokens=False).input_ids)

    def prompt(self, pictures: int, seed: int = 0, lead: int = 9, between: int = 6) -> "Given":
        """Text, then each picture with text after it."""
        texts = [self.text(lead, seed)] + [
            self.text(between + index % 3, seed + 1 + index) for index in range(pictures)
        ]
        images = [picture(*SIZES[index % len(SIZES)], seed=100 * seed + index) for index in range(pictures)]
        return Given(self, texts, images)

    def opened(self, pictures: int, seed: int = 0) -> "Given":
        """A prompt whose first picture comes right after the opening."""
        given = self.prompt(pictures, seed)
        return Given(self, [self.opening, *given.texts[1:]], given.pictures)


@dataclass(frozen=True)
class Given:
    """A prompt: texts with a picture between each two."""

    subject: Subject
    texts: list[list[int]]
    pictures: list[Image.Image]

    @property
    def token_ids(self) -> list[int]:
        """For vLLM: one placeholder a picture."""
        ids = list(self.texts[0])
        for text in self.texts[1:]:
            ids += [*self.subject.before, self.subject.image, *self.subject.after, *text]
        return ids

    def parts(self, chunks: Sequence[Any]) -> list[Any]:
        """For the embedded engine."""
        parts: list[Any] = [self.texts[0]]
        for chunk, text in zip(chunks, self.texts[1:], strict=True):
            parts += [chunk, text]
        return parts

    def only(self, *kept: int) -> "Given":
        """The same with some of the pictures, in this order."""
        return Given(self.subject, [self.texts[0], *(self.texts[1 + index] for index in kept)],
                     [self.pictures[index] for index in kept])  # fmt: skip


def bundled(name: str) -> Subject:
    """A bundled model."""
    folder = model_folder(name)
    config = json.loads((folder / "config.json").read_text())
    size = int(config["text_config"]["vocab_size"])
    marks = (config["vision_start_token_id"],), config["image_token_id"], (config["vision_end_token_id"],)
    return Subject(name, folder, size, *marks, range(32, size))


def tiny(name: str, folder: Path) -> Subject:
    """A tiny random model of a family, made in a folder."""
    return BUILDERS[name](folder)


def _qwen(source: str) -> Callable[[Path], Subject]:
    def build(folder: Path) -> Subject:
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = AutoConfig.from_pretrained(model_folder(source))
        text = config.text_config
        for key, value in TEXT.items():
            setattr(text, key, value)
        text.layer_types = ["full_attention"] * TEXT["num_hidden_layers"]
        # vLLM has no bias after the attention of a Qwen3-VL, which transformers adds together with those before it.
        text.attention_bias = False
        text.tie_word_embeddings = config.tie_word_embeddings = False
        config.vision_config.out_hidden_size = TEXT["hidden_size"]
        _save(AutoModelForImageTextToText.from_config(config, dtype=torch.float32), folder, model_folder(source))
        marked = bundled(source)
        return Subject(folder.name, folder, marked.vocabulary, marked.before, marked.image, marked.after, marked.words)

    return build


def _llava_next(folder: Path) -> Subject:
    """Make a LLaVA-NeXT in the shape of `reference-mha`, whose tokenizer and picture processor it has."""
    from transformers import AutoConfig, LlavaNextForConditionalGeneration

    source = model_folder("reference-mha")
    config = AutoConfig.from_pretrained(source)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    _save(LlavaNextForConditionalGeneration(config), folder, source)
    _give_published_names(folder)
    size = int(config.text_config.vocab_size)
    return Subject(folder.name, folder, size, (), int(config.image_token_index), (), range(40, size - 1))


def _give_published_names(folder: Path) -> None:
    """Give weights the names of the published checkpoints, which both sides read."""
    weights = load_file(folder / "model.safetensors")
    named = {key.replace("vision_tower.", "vision_tower.vision_model."): value for key, value in weights.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})


def _glm(folder: Path) -> Subject:
    """Make a GLM-4.1V with the processors of GLM-4.6V."""
    from transformers import AutoTokenizer, Glm4vConfig, Glm4vForConditionalGeneration

    source = model_folder("reference")
    tokenizer = AutoTokenizer.from_pretrained(source)
    words = len(tokenizer)
    kinds = {"image": "<|image|>", "image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>"}
    kinds |= {"video": "<|video|>", "video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>"}
    tokenizer.add_tokens(list(kinds.values()), special_tokens=True)
    ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids(name) for kind, name in kinds.items()}
    text = {key: value for key, value in TEXT.items() if key != "head_dim"} | {
        "vocab_size": len(tokenizer), "max_position_embeddings": 8192, "tie_word_embeddings": False,
        "pad_token_id": None, "eos_token_id": None, "attention_bias": True, "num_hidden_layers": 2,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5,
        },
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "patch_size": 14, "image_size": 56,
        "out_hidden_size": TEXT["hidden_size"], "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    config = Glm4vConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    _save(Glm4vForConditionalGeneration(config), folder, source)
    tokenizer.save_pretrained(folder)
    marked = kinds["image_start"] + kinds["image"] + kinds["image_end"]
    template = (source / "chat_template.jinja").read_text()
    template = template.replace("<|vision_start|><|image_pad|><|vision_end|>", marked)
    (folder / "chat_template.jinja").write_text(template)
    for kind in ("image", "video"):
        name = "preprocessor_config.json" if kind == "image" else "video_preprocessor_config.json"
        processing = json.loads((source / "preprocessor_config.json").read_text())
        processing.pop("image_processor_type")
        processing |= {f"{kind}_processor_type": f"Glm46V{kind.capitalize()}Processor"}
        (folder / name).write_text(json.dumps(processing | {"processor_class": "Glm46VProcessor"}))
    before, image, after = (ids[f"{kind}_token_id"] for kind in ("image_start", "image", "image_end"))
    return Subject(folder.name, folder, len(tokenizer), (before,), image, (after,), range(32, words))


def _onevision(kind: str, **text: Any) -> Callable[[Path], Subject]:
    """Return what makes a LLaVA-OneVision with a decoder of some kind."""

    def build(folder: Path) -> Subject:
        return _build_onevision(folder, {"model_type": kind, **TEXT, **text})

    return build


def _build_onevision(folder: Path, text: dict[str, Any]) -> Subject:
    from transformers import AutoTokenizer, LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    source = model_folder("reference-mha")
    whole = json.loads((source / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<video>"], special_tokens=True)
    size = len(tokenizer)
    points = [[28, 28], [28, 56], [56, 28], [56, 56]]
    text |= {"vocab_size": size, "max_position_embeddings": 8192, "tie_word_embeddings": False}
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 7, "vision_use_head": False,
    }  # fmt: skip
    image = int(whole.get("image_token_id", whole.get("image_token_index")))
    config = LlavaOnevisionConfig(
        text_config=text, vision_config=vision, image_token_index=image, vision_aspect_ratio="anyres_max_9",
        video_token_index=size - 1, image_grid_pinpoints=points,
    )  # fmt: skip
    _save(LlavaOnevisionForConditionalGeneration(config), folder, source)
    tokenizer.save_pretrained(folder)
    _give_published_names(folder)
    processing = json.loads((source / "preprocessor_config.json").read_text())
    processing |= {
        "image_processor_type": "LlavaOnevisionImageProcessor", "processor_class": "LlavaOnevisionProcessor",
        "size": {"height": 28, "width": 28}, "image_grid_pinpoints": points,
    }  # fmt: skip
    processing |= {"do_center_crop": False, "do_pad": True}
    processing.pop("crop_size", None)
    whole = {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "image_token": "<image>"}
    (folder / "processor_config.json").write_text(json.dumps(whole | {"processor_class": "LlavaOnevisionProcessor"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(processing))
    return Subject(folder.name, folder, size, (), image, (), range(40, size - 1))


def _save(model: nn.Module, folder: Path, source: Path) -> None:
    model = sharpen(model, 7)
    with torch.no_grad():
        # Logits of a few units, as trained models have: errors are told in absolute numbers.
        model.get_output_embeddings().weight.mul_(0.2)  # type: ignore[operator]
    model.save_pretrained(folder)  # type: ignore[operator]
    for name in PROCESSING:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)


BUILDERS: dict[str, Callable[[Path], Subject]] = {
    "qwen2.5-vl": _qwen("reference"),
    "qwen3-vl": _qwen("reference-deepstack"),
    "glm-4.6v": _glm,
    "llava-next": _llava_next,
    "llava-onevision": _onevision("qwen2"),
    "windowed": _onevision(
        "gemma3_text", sliding_window=64, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "deepseek-v2": _onevision("deepseek_v2", **LATENTS),
    "deepseek-v3": _onevision("deepseek_v3", **LATENTS, rope_interleave=True),
}
