"""A reply that follows a grammar is JSON that its schema accepts, whatever the logits; other schemas are refused."""

import json
import random
from time import perf_counter
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from emblema import Engine
from emblema.errors import PromptError
from emblema.session.decoding import Sampler, Sampling
from emblema.session.grammar import RULE_BYTES, SCHEMA_DEPTH, GrammarCompiler
from tests.serve.writing_model import byte_tokenizer

TEXT = {"type": "string", "maxLength": 8}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}, TEXT]}, "minItems": 1, "maxItems": 4},
    {"enum": ["one", 'two " quoted', 3, None]},
    {
        "$defs": {"leaf": {"type": "object", "properties": {"x": {"const": 1}}, "additionalProperties": False}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"type": "string", "pattern": "^[a-c]{2,5}$"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    {"type": "string", "format": "date"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, {tokenizer.eos_token_id}, "tiny")


def written(tokenizer: Any, sampling: Sampling, seed: int, tokens: int = 2_000) -> str:
    """Choose tokens from noise, for a model with more logits than tokens, until the end token."""
    sampler, generator = Sampler(sampling), torch.Generator().manual_seed(seed)
    made: list[int] = []
    while len(made) < tokens:
        made.append(sampler(3 * torch.randn(len(tokenizer) + 30, generator=generator)))
        if made[-1] == tokenizer.eos_token_id:
            return str(tokenizer.decode(made[:-1]))
    raise AssertionError("the reply has no end")


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_what_is_written_is_what_the_schema_accepts(tokenizer: Any, compiler: GrammarCompiler, schema: Any) -> None:
    grammar = compiler.of_schema(schema)
    texts = set()
    for seed in range(12):
        knobs: dict[str, Any] = {"temperature": float(seed % 3), "seed": seed, "grammar": grammar}
        knobs |= {"frequency_penalty": 1.0, "logit_bias": {ord("x"): 3}} if seed % 2 else {}
        text = written(tokenizer, Sampling.of(**knobs), seed)
        Draft202012Validator(schema).validate(json.loads(text))
        texts.add(text)
    assert len(texts) > 2


def test_every_json_text_of_the_usual_forms_can_be_written(tokenizer: Any, compiler: GrammarCompiler) -> None:
    value = {"a": [1, 2.5, -3e2, {"b": None}], "c": 'tab\t, quote " and é', "d": {}, "e": [True, False]}
    for options in ({}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}):
        matcher = compiler.of_schema({"type": "object"}).matcher()
        for token in [
            *tokenizer(json.dumps(value, ensure_ascii=False, **options))["input_ids"],
            tokenizer.eos_token_id,
        ]:  # type: ignore[arg-type]
            assert not matcher.banned(len(tokenizer))[token], options
            matcher.take(token)


def test_replies_of_one_grammar_do_not_meet(tokenizer: Any, compiler: GrammarCompiler) -> None:
    grammar = compiler.of_schema(SCHEMAS[0])
    first, second = grammar.matcher(), grammar.matcher()
    first.take(tokenizer("{")["input_ids"][0])
    assert not torch.equal(first.banned(260), second.banned(260))
    assert torch.equal(second.banned(300), grammar.matcher().banned(300))
    assert set(second.banned(300).tolist()) == {True, False} and second.banned(300)[260:].all()


def test_logits_that_are_not_finite_are_still_told(compiler: GrammarCompiler) -> None:
    sampler = Sampler(Sampling.of(grammar=compiler.of_schema(SCHEMAS[0])))
    with pytest.raises(Exception, match="not finite"):
        sampler(torch.full((260,), torch.nan))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"type": "king"}, "king"),
    "no such place": ({"$ref": "#/$defs/x"}, "does not exist"),
    "from elsewhere": ({"$ref": "http://example.com/x"}, "does not fetch"),
    "never itself": ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "cannot be followed"),
    "nothing fits": ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum"),
    "not offered": ({"type": "object", "propertyNames": {"pattern": "x"}}, "propertyNames"),
    "no pattern": ({"type": "string", "pattern": "(" * 5_000}, "regex"),
    "deep": (nested(SCHEMA_DEPTH), "levels"),
    "very deep": (nested(900), "levels"),
    "large": ({"enum": ["a" * RULE_BYTES]}, "bytes"),
    "slow": ({"type": "string", "pattern": "^" + "(a|b|ab)*c" * 3_000}, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_cannot_be_followed_is_refused_at_once(compiler: GrammarCompiler, name: str) -> None:
    schema, word = HOSTILE[name]
    compiler.of_schema({"type": "object"})
    began = perf_counter()
    try:
        compiler.of_schema(schema).matcher()
        refused = ""
    except PromptError as error:
        refused = str(error)
    assert word in refused and bool(refused) >= bool(word) and len(refused) < 500
    assert perf_counter() - began < 5


def test_a_grammar_that_grows_too_large_on_the_way_ends_its_reply_alone(
    tokenizer: Any, compiler: GrammarCompiler
) -> None:
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(900)}}
    with pytest.raises(PromptError, match="cannot be followed"):
        written(tokenizer, Sampling.of(grammar=compiler.of_schema(schema)), 0, 300)


def test_keywords_that_are_not_offered_are_passed_over_unless_strict(tokenizer: Any, compiler: GrammarCompiler) -> None:
    schema = {"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "boolean"}], "not": {"const": 3}}
    with pytest.raises(PromptError, match="not"):
        compiler.of_schema(schema)
    text = written(tokenizer, Sampling.of(grammar=compiler.of_schema(schema, strict=False)), random.randint(0, 9))
    assert json.loads(text) in (True, False, *range(10))


def test_a_model_whose_words_cannot_write_json_is_refused_by_name(reference: Engine) -> None:
    compiler = GrammarCompiler(reference.tokenizer, reference.end_tokens, "reference")
    with pytest.raises(PromptError, match="the model reference cannot be held to JSON: its vocabulary of 794 tokens"):
        compiler.of_schema({"type": "object"})


def test_a_vocabulary_without_some_bytes_cannot_write_json() -> None:
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    letters = sorted(set(ByteLevel.alphabet()) - {"{"})
    plain = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, []))
    plain.pre_tokenizer, plain.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")
    with pytest.raises(PromptError, match="cannot be held to JSON"):
        GrammarCompiler(tokenizer, {tokenizer.eos_token_id}, "poor").of_schema({"type": "object"})
