"""A tiny random model that can write any text: a token a byte, and a chat template that takes tools."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from tests.families import CLIP, LLAMA, loaded, sharpen

SPECIALS = ("<pad>", "<|im_start|>", "<|im_end|>", "<image>")
PLAIN = """\
{%- for message in messages -%}<|im_start|>{{ message.role }}
{% if message.content is string -%}{{ message.content }}
{%- else -%}{%- for item in message.content -%}{%- if item.type == 'image' -%}<image>
{%- else -%}{{ item.text }}{%- endif -%}{%- endfor -%}{%- endif -%}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
HERMES = """\
{%- if tools -%}<|im_start|>system
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% endif -%}""" + PLAIN.replace(
    "<|im_end|>\n{% endfor",
    """{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor -%}<|im_end|>
{% endfor""",
)
"""Functions and calls as Hermes' models write them."""
JSON_CALLS = HERMES.replace("<tool_call>\n", "").replace("\n</tool_call>", "").replace('arguments":', 'parameters":')
"""Calls as JSON alone."""


def byte_tokenizer() -> Any:
    """A token a byte, then the control tokens."""
    letters = sorted(ByteLevel.alphabet())
    plain = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, []))
    plain.pre_tokenizer, plain.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<pad>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIALS)})
    return tokenizer


def write_model(folder: Path, template: str = HERMES) -> Path:
    """Write the model with its tokenizer, image processor and template; return its folder."""
    tokenizer = byte_tokenizer()
    end, image = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<image>"])
    # As of many models, there are more logits than tokens.
    text = {**LLAMA, "vocab_size": 288, "bos_token_id": None, "eos_token_id": end, "pad_token_id": 256}
    torch.manual_seed(0)
    config = LlavaConfig(text_config=text, vision_config=CLIP, image_token_id=image)
    model = sharpen(LlavaForConditionalGeneration(config), 0)
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded("llava").bundle.image_processor.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder
