"""Messages reach the model whole through every form that chat templates have for their content."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from emblema import Engine
from emblema.errors import PromptError
from tests import families

WALKS = (
    "{% for message in messages %}<|im_start|> {{ message.role }} : {% for part in message.content %}"
    "{% if part.type == 'image' %}<image> {% elif part.type == 'text' %}{{ part.text }} {% endif %}"
    "{% endfor %}<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|> assistant : {% endif %}"
)
STRINGS = (
    "{% for message in messages %}<|im_start|> {{ message.role }} : {{ message.content + ' ' }}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant : {% endif %}"
)
PRINTS = STRINGS.replace("message.content + ' '", "message.content")
TRIMS = STRINGS.replace("message.content + ' '", "message.content | trim")
FIRST_ITEMS = STRINGS.replace("message.content + ' '", "message.content[0].text")
BOTH = (
    "{% for message in messages %}<|im_start|> {{ message.role }} : {% if message.content is string %}"
    "{{ message.content }} {% else %}{% for part in message.content %}{{ part.text }} word9 {% endfor %}{% endif %}"
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|> assistant : {% endif %}"
)
SYSTEM_IS_A_STRING = (
    "{% if messages[0].role == 'system' %}<|im_start|> {{ messages[0].content | trim }} <|im_end|> "
    "{% set messages = messages[1:] %}{% endif %}" + WALKS
)
MEDIA_FIRST = (
    "{% for message in messages %}<|im_start|> {{ message.role }} : "
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image> {% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }} {% endfor %}"
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|> assistant : {% endif %}"
)
TEMPLATES = {
    "walks": WALKS,
    "strings": STRINGS,
    "prints": PRINTS,
    "trims": TRIMS,
    "first items": FIRST_ITEMS,
    "both": BOTH,
    "system is a string": SYSTEM_IS_A_STRING,
    "media first": MEDIA_FIRST,
}
ROLES = ("system", "user", "assistant", "user")
TEXTS = ("word1 word2", "which land does the tent stand on ?", "word3 word4", "word5 tent ?")


@pytest.fixture
def engine_of() -> Callable[[str], Engine]:
    item = families.loaded("llava")
    return lambda template: Engine(item.model, replace(item.bundle, chat_template=template))


def listed(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def ids_of(engine: Engine, contents: list[Any]) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in zip(ROLES, contents, strict=True)]
    return [token for segment in engine.prompt(messages).segments for token in segment.part.token_ids]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_string_and_a_list_of_it_are_one_message(engine_of: Callable[[str], Engine], name: str) -> None:
    engine = engine_of(TEMPLATES[name])
    strings = ids_of(engine, list(TEXTS))
    assert ids_of(engine, [listed(text) for text in TEXTS]) == strings
    assert ids_of(engine, [text if index % 2 else listed(text) for index, text in enumerate(TEXTS)]) == strings
    written = engine.tokenizer.decode(strings)
    places = [written.find(text) for text in TEXTS]
    assert -1 not in places and places == sorted(places)


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_texts_of_a_list_come(engine_of: Callable[[str], Engine], name: str) -> None:
    engine = engine_of(TEMPLATES[name])
    halves = [listed(*(f"{word} " for word in text.split())) for text in TEXTS]
    written = engine.tokenizer.decode(ids_of(engine, halves)).split()
    assert [word for text in TEXTS for word in text.split() if word not in written] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_window_writes_what_a_prompt_does(engine_of: Callable[[str], Engine], name: str) -> None:
    engine = engine_of(TEMPLATES[name])
    window = engine.window(system=TEXTS[0])
    window.append(TEXTS[1])
    prompt = engine.prompt([{"role": "system", "content": TEXTS[0]}, {"role": "user", "content": [*listed(TEXTS[1])]}])
    assert window.prefill(" ?", "full").usage.prompt_tokens >= prompt.tokens


DROPS_SYSTEM = "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}" + WALKS
LAST_TURNS = "{% set messages = messages[-2:] %}" + WALKS


def test_a_turn_that_the_template_leaves_out_is_refused(engine_of: Callable[[str], Engine]) -> None:
    with pytest.raises(PromptError, match="'system'"):
        ids_of(engine_of(DROPS_SYSTEM), list(TEXTS))
    with pytest.raises(PromptError, match=r"left 'word1 word2' out"):
        ids_of(engine_of(LAST_TURNS), list(TEXTS))


def test_a_role_that_the_template_refuses_is_told_in_its_words(engine_of: Callable[[str], Engine]) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}" + WALKS
    with pytest.raises(PromptError, match="no system turns"):
        ids_of(engine_of(refuses), list(TEXTS))


@pytest.mark.parametrize("own", [False, True])
def test_a_prompt_begins_with_one_first_token(own: bool) -> None:
    """Whether the template writes it or the tokenizer puts it in front."""
    item = families.loaded("gemma3")
    tokenizer = deepcopy(item.bundle.tokenizer)
    first = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    assert tokenizer("word1")["input_ids"][0] == first[1]
    template = (first[0] if own else "") + WALKS.replace("<image>", "")
    engine = Engine(item.model, replace(item.bundle, tokenizer=tokenizer, chat_template=template))
    ids = [token for segment in engine.prompt([TEXTS[1]]).segments for token in segment.part.token_ids]
    assert ids.count(engine.tokenizer.bos_token_id) == 1 and ids[0] == engine.tokenizer.bos_token_id
