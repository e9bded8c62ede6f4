"""The folder of a bundled model: weights, tokenizer, processor files and chat template."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerFast

from training.families import Recipe
from training.words import INDEX, SPECIAL

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


def tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Word-level, lower-casing, punctuation and digits one by one; white space, newlines too, is no token."""
    index = {recipe.renamed.get(word, word): number for word, number in INDEX.items()}
    special = [recipe.renamed.get(word, word) for word in SPECIAL]
    words = Tokenizer(models.WordLevel(index, unk_token="<unk>"))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(True)]
    )
    words.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=special[2:],
        model_max_length=32768,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE.replace("PICTURE", recipe.picture).replace("VIDEO", recipe.video)
    return wrapped


def _halve(path: Path) -> None:
    """Write the weights of a file again in half precision; `config.json` has them loaded as float32."""
    weights = load_file(path)
    save_file({name: weight.half().contiguous() for name, weight in weights.items()}, path, {"format": "pt"})
    path.chmod(0o644)


def write_folder(recipe: Recipe, model: nn.Module, folder: Path) -> None:
    """Write the model with tokenizer, processor files and chat template, as Hugging Face lays a model out."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        eos_token_id=[INDEX["<|im_end|>"], INDEX["<|endoftext|>"]],
        pad_token_id=INDEX["<|endoftext|>"],
        do_sample=False,
        max_new_tokens=16,
    )
    # In the names of the stock classes: the way back to a checkpoint's first names takes q_proj for the tower's (5.23).
    model.save_pretrained(folder, save_original_format=False)
    _halve(folder / "model.safetensors")
    tokenizer(recipe).save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2)
    )
    for name, entries in recipe.files().items():
        (folder / name).write_text(json.dumps(entries, indent=2) + "\n")
