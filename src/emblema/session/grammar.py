"""Grammars that a reply follows: which tokens may come next, so that it is JSON of a schema (llguidance)."""

import json
import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emblema.errors import PromptError
from emblema.extras import import_extra
from emblema.session.vocabulary import closed_vocabulary

RULE_BYTES = 2**16
"""Characters of a grammar's rules, its schemas as JSON, at most."""
SCHEMA_DEPTH = 64
"""Levels of a schema, at most."""
LIMITS = {
    "initial_lexer_fuel": 200_000, "step_lexer_fuel": 30_000, "step_max_items": 20_000,
    "max_items_in_row": 2_000, "max_lexer_states": 10_000, "max_grammar_size": 100_000,
}  # fmt: skip
"""What a grammar may cost: tenths of a second when it is made, some milliseconds at each token."""
WHITESPACE = r"( |\n[ \t]{0,40})?"
"""Between two tokens of JSON: a space, or a new line. A model that is free to write more may never end."""
_NEEDED = frozenset(b'{}[]":,\\-. 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ')
"""Bytes of which each needs a token of its own, so that any JSON can be written."""


class GrammarMatcher:
    """Where one reply is in its grammar.

    Args:
        matcher: of llguidance; it is this one's alone.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def banned(self, tokens: int) -> Tensor:
        """Return which of so many tokens may not come next, bool [tokens].

        Raises:
            PromptError: following the grammar takes too much here.
        """
        allowed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._refuse_error()
        bits = np.unpackbits(~allowed, bitorder="little")[:tokens]
        # A model may have more logits than its tokenizer has tokens.
        whole = bits if len(bits) == tokens else np.pad(bits, (0, tokens - len(bits)), constant_values=1)
        return torch.from_numpy(whole.view(bool))

    def take(self, token: int) -> None:
        """Go on after a token that was allowed.

        Raises:
            PromptError: following the grammar takes too much here.
        """
        self._matcher.consume_token(token)
        self._refuse_error()

    def _refuse_error(self) -> None:
        if self._matcher.is_error():
            raise PromptError(f"the schema cannot be followed: {_first_line(self._matcher.get_error())}")


class Grammar:
    """A grammar of one model's tokens; any number of replies follow it.

    Args:
        matcher: of llguidance, at the beginning.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the beginning of a reply."""
        return GrammarMatcher(self._matcher.deep_copy())


class GrammarCompiler:
    """Makes grammars for one model. Any thread may call it, best one that is not the model's.

    Args:
        tokenizer: of the model.
        ends: tokens that end a reply.
        name: of the model, for messages.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int], name: str) -> None:
        self._given, self._ends, self._name = tokenizer, sorted(ends), name
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def of_schema(self, schema: Mapping[str, Any], *, strict: bool = True) -> Grammar:
        """Return the grammar of JSON that a schema accepts; see `json_rule`, and `of_rules` for errors."""
        return self.of_rules(f"start: {json_rule(schema, strict=strict)}")

    def of_rules(self, rules: str) -> Grammar:
        """Return the grammar of rules in Lark's form, as llguidance reads them.

        Raises:
            PromptError: they are not right, too large or take too much; or the model cannot write JSON.
        """
        if len(rules) > RULE_BYTES:
            raise PromptError(f"the schema has {len(rules)} bytes, more than {RULE_BYTES}: give a smaller one")
        library, tokenizer = import_extra("llguidance", "serve"), self._of_model()
        grammar = library.LLMatcher.grammar_from_lark(rules)
        matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=library.LLParserLimits(**LIMITS))
        made = Grammar(matcher)
        # Some faults, such as a schema that nothing fits, show at the first token.
        made.matcher().banned(tokenizer.vocab_size)
        return made

    def _of_model(self) -> Any:
        """Return the model's tokenizer for llguidance, which takes a second to make."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read()
        return self._tokenizer

    def _read(self) -> Any:
        given = self._given
        if closed_vocabulary(given) is not None or not getattr(given, "is_fast", False) or not self._ends:
            raise self._refusal()
        found = import_extra("llguidance.hf", "serve").from_tokenizer(given, eos_token=self._ends)
        written = {found.decode_bytes([token]) for token in range(found.vocab_size)}
        if not all(bytes([byte]) in written for byte in _NEEDED):
            raise self._refusal()
        return found

    def _refusal(self) -> PromptError:
        return PromptError(
            f"the model {self._name} cannot be held to JSON: its vocabulary of {len(self._given):,} tokens cannot "
            "write any text; ask without response_format and without a forced tool"
        )


def json_rule(schema: Mapping[str, Any], *, strict: bool) -> str:
    """Return the rule of JSON that a schema accepts.

    Args:
        schema: a JSON schema.
        strict: refuse keywords that cannot be followed; else they are passed over.

    Raises:
        PromptError: it has too many levels.
    """
    refuse_deep(schema)
    options = {"whitespace_pattern": WHITESPACE, "lenient": not strict, "coerce_one_of": not strict}
    return "%json " + json.dumps({**schema, "x-guidance": options})


def refuse_deep(schema: Mapping[str, Any]) -> None:
    """Raise `PromptError` for a schema of more than `SCHEMA_DEPTH` levels."""
    level: list[Any] = [schema]
    for _ in range(SCHEMA_DEPTH):
        level = [each for value in level for each in _inside(value)]
    if level:
        raise PromptError(f"the schema has more than {SCHEMA_DEPTH} levels: give a flatter one")


def _inside(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _first_line(error: str) -> str:
    return error.strip().partition("\n")[0][:300]
